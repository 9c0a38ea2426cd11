"""docs/tensorflow.md, "Deliberate differences": each row is asserted, here or by a test that is named here."""

import io
import itertools
import re
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    ParseError,
    RaggedFeature,
    RawTensor,
    TFRecordWriter,
    VarLenFeature,
    decode_image,
    encode_example,
    encode_image,
    make_dataloader,
    parse_example,
    parse_single_example,
    read_records,
)
from torch_tfrecord.media.headers import read_header

TESTS = Path(__file__).parents[1]
DOC = TESTS.parent / "docs" / "tensorflow.md"
CHECKS = {}


def row(text):
    """Registers the check of the row that begins so."""

    def register(check):
        CHECKS[text] = check
        return check

    return register


def framed(folder, *records):
    path = folder / "framed.tfrecord"
    with TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path.read_bytes()


def write(folder, content, name="a.tfrecord"):
    (folder / name).write_bytes(content)
    return folder / name


@row("a file that another process still writes")
def _(folder):
    whole = framed(folder, b"abc", b"defg", b"hi")
    path = write(folder, whole[:45])
    records = read_records(path)
    found = [next(records), next(records)]
    with pytest.raises(CorruptRecordError, match="truncated"):
        next(records)
    path.write_bytes(whole)
    assert [*found, *itertools.islice(read_records(path), 2, None)] == [b"abc", b"defg", b"hi"]


GOOD = encode_example({"a": 5})
INT = FixedLenFeature((), torch.int64)


def entry(key, feature):
    """One map entry of an Example, as bytes."""
    content = b"\x0a" + bytes([len(key)]) + key + b"\x12" + bytes([len(feature)]) + feature
    return b"\x0a" + bytes([len(content)]) + content


def example(*entries):
    content = b"".join(entries)
    return b"\x0a" + bytes([len(content)]) + content


@row("malformed bytes in features that you did not ask for")
def _(folder):
    cut = entry(b"b", b"\x1a\x03\x0a\x05\x01")  # an int64_list whose packed values end too early
    with pytest.raises(ParseError):
        parse_single_example(example(entry(b"a", b"\x1a\x03\x0a\x01\x05"), cut), {"a": INT})


@row("an empty batch of ragged features; partitions and values both missing")
def _(folder):
    ragged = RaggedFeature(torch.int64, value_key="v", partitions=[RaggedFeature.RowSplits("p")])
    assert len(parse_example([], {"x": RaggedFeature(torch.int64)})["x"]) == 0
    assert parse_single_example(b"", {"x": ragged})["x"].size(0) == 0


# By how a row begins: the test of another folder that asserts it.
ELSEWHERE = {
    "1 to 11 stray bytes at the end": "test_every_truncation",
    "a damaged record, skipped": "test_skipping_loses_exactly_the_damaged_record",
    "a length far beyond the file": "test_huge_lengths_with_a_good_checksum",
    "truncated gzip or zlib": "test_every_cut",
    "an empty gzip member": "test_empty_members",
    "bytes after a zlib stream": "test_bytes_behind_the_stream",
    "unknown `compression_type`": "test_unknown_types_are_refused_before_anything_is_opened",
    "a record of more than 256 KiB in a Snappy file": "test_files_of_tensorflow",
    "a writer that fails": "test_while_a_file_is_written",
    "a writer that is never closed": "test_dropped_without_close",
    "`list_files`: names with a leading dot": "test_patterns",
    "`list_files`: a file named": "test_wrong_paths",
    "`list_files`: a folder; `**`": "test_a_directory",
    "file order": "test_lists_are_sorted_bytewise",
    "packed values in several chunks": "test_specs_read_any_wire_form_of_an_example_as_protobuf_does",
    "sparse indices out of range": "test_sparse_values_that_do_not_fit",
    "different numbers of sparse indices and values": "test_sparse_values_that_do_not_fit",
    "dtypes": "test_a_cast_that_would_change_the_value_is_an_error",
    "the same key in a dense and in a ragged or sparse spec": "test_one_key_is_read_in_several_ways",
    "`decode_json_example`: single quotes": "test_the_examples_of_decode_json_example",
    "`decode_json_example`: floats": "test_the_examples_of_decode_json_example",
    "TF-Ranking: sizes of lists": "test_the_values_of_tf_ranking",
    "`decode_compressed`: zstd": "test_zstd",
    "a wrong default": "test_wrong_specs",
    "`shuffle`": "test_order_does_not_depend_on_workers",
    "`shard`": "test_length_and_equal_ranks",
    "`padding_values` of another dtype": "test_exact_values_are_taken",
    "`batch` of 1-D tensors": "test_vectors_of_unequal_length_become_jagged_also_without_a_feature",
    "no file matches": "test_pattern_without_match",
    "layout": "test_png_pixels_are_exact_in_every_mode",
    "GIF, WebP": "test_gif_and_webp_animations_give_the_first_frame",
    "16-bit PNG, without `dtype`": "test_16_bit_png",
    "JPEG": "test_jpeg_pixels_are_libjpegs",
    "layout of sounds": "test_wav_files_have_tensorflows_values",
    "WAV of 8, 24 or 32": "test_more_wav_files_than_tensorflow_reads",
}


@row("`decode_compressed`: a truncated stream, bytes after a zlib stream")
def _(folder):
    spec = {"x": RawTensor((-1,), torch.uint8, compression="zlib")}
    stream = zlib.compress(b"abc")
    assert bytes(parse_single_example(encode_example({"x": stream}), spec)["x"].tolist()) == b"abc"
    for wrong in (stream[:-1], stream + b"junk"):
        with pytest.raises(ParseError):
            parse_single_example(encode_example({"x": wrong}), spec)


@row("variable-length features of a batch")
def _(folder):
    batch = parse_example(
        [encode_example({"a": [1, 2], "b": ["x"]})] * 2, {"a": VarLenFeature(torch.int64)}
    )
    assert batch["a"].layout == torch.jagged
    assert parse_example([encode_example({"b": ["x"]})], {"b": VarLenFeature(bytes)}) == {
        "b": [[b"x"]]
    }


def numbered(folder, count=7):
    return write(
        folder, framed(folder, *(encode_example({"a": number}) for number in range(count)))
    )


@row("`repeat` before `batch`")
def _(folder):
    loader = make_dataloader(numbered(folder), 3, {"a": INT}, shuffle=False, num_epochs=2)
    assert [batch["a"].tolist() for batch in loader] == [[0, 1, 2], [3, 4, 5], [6]] * 2


@row("`make_batched_features_dataset` without `num_epochs`")
def _(folder):
    path = numbered(folder)
    assert len(list(make_dataloader(path, 3))) == 3
    assert len(list(make_dataloader(path, 3, drop_last=True))) == 2


@row("size of a GIF")
def _(folder):
    frozen = np.load(TESTS / "data/images/pictures.npz")
    found = decode_image(frozen["gif one small"])
    assert frozen["gif one small|0"].shape == (2, 3, 3) and found.shape == (3, 5, 6)
    assert found[:, 1:3, 2:5].any(0).all()


@row("a PNG with a palette of 2, 4 or 16 colours, none transparent, `channels=4`")
def _(folder):
    for colors in (2, 4, 16):
        picture = PillowImage.new("P", (6, 4), 1)
        picture.putpalette(range(100, 100 + 3 * colors))
        picture.save(buffer := io.BytesIO(), "PNG")
        bits = read_header(buffer.getvalue()).bits
        assert 1 << bits == colors
        assert decode_image(buffer.getvalue(), "RGBA")[:, 0, 0].tolist() == [103, 104, 105, 255]


@row("an 8-bit BMP with a palette")
def _(folder):
    picture = PillowImage.new("P", (6, 4), 1)
    picture.putpalette(range(60))
    picture.save(buffer := io.BytesIO(), "BMP")
    assert decode_image(buffer.getvalue())[:, 0, 0].tolist() == [3, 4, 5]
    frozen = np.load(TESTS / "data/images/pictures.npz")
    data = frozen["bmp gray"]
    assert decode_image(data, "unchanged")[0].tolist() == frozen["bmp gray|0"][:, :, 0].tolist()


@row("RGB to gray")
def _(folder):
    picture = np.arange(4 * 4 * 3, dtype=np.uint8).reshape(4, 4, 3) * 5
    data = encode_image(picture.transpose(2, 0, 1), "png")
    assert (
        decode_image(data, "L")[0].numpy().tolist()
        == np.asarray(PillowImage.fromarray(picture).convert("L")).tolist()
    )


def rows():
    section = (
        DOC.read_text(encoding="utf-8").split("## Deliberate differences")[1].split("\n## ")[0]
    )
    firsts = [
        line.strip("| ").split(" | ")[0] for line in section.splitlines() if line.startswith("| ")
    ]
    return [first for first in firsts if first != "what"]


@pytest.mark.parametrize("first", CHECKS, ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_row(first, tmp_path):
    CHECKS[first](tmp_path)


def test_each_row_has_its_test():
    begins = (*CHECKS, *ELSEWHERE)
    assert len(rows()) == len(begins)
    assert [row for row in rows() if not row.startswith(begins)] == []
    tests = "".join(path.read_text("utf-8") for path in TESTS.rglob("test_*.py"))
    assert [name for name in ELSEWHERE.values() if f"def {name}(" not in tests] == []
