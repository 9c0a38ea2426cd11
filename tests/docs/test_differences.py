"""docs/tensorflow.md, "Deliberate differences": what each row says of this package, asserted."""

import gzip
import io
import itertools
import re
import struct
import sys
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image as PillowImage

from torch_tfrecord import (
    Audio,
    CompressionError,
    CorruptRecordError,
    FixedLenFeature,
    ListFeatures,
    NestedExample,
    PaddedCollate,
    ParseError,
    RaggedFeature,
    RawTensor,
    SparseFeature,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    decode_example,
    decode_image,
    encode_example,
    encode_image,
    make_dataloader,
    parse_example,
    parse_single_example,
    read_records,
)
from torch_tfrecord.media import read_header

DOC = Path(__file__).parents[2] / "docs" / "tensorflow.md"
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


def raises(error, path, **options):
    with pytest.raises(error):
        list(read_records(path, **options))


@row("1 to 11 stray bytes at the end")
def _(folder):
    content = framed(folder, b"abc")
    for count in range(1, 12):
        raises(CorruptRecordError, write(folder, content + b"\0" * count))


@row("truncated gzip or zlib")
def _(folder):
    for compress in (gzip.compress, zlib.compress):
        whole = compress(framed(folder, b"abc", b"defg"))
        for size in range(14, len(whole)):
            raises((CompressionError, CorruptRecordError), write(folder, whole[:size]))


@row("an empty gzip member inside, a second zlib stream")
def _(folder):
    first, second = framed(folder, b"abc"), framed(folder, b"defg")
    path = write(folder, gzip.compress(first) + gzip.compress(b"") + gzip.compress(second))
    assert list(read_records(path)) == [b"abc", b"defg"]
    assert list(read_records(write(folder, zlib.compress(first) + zlib.compress(second)))) == [
        b"abc",
        b"defg",
    ]


@row("bytes after a zlib stream")
def _(folder):
    raises(CompressionError, write(folder, zlib.compress(framed(folder, b"abc")) + b"junk"))


@row("a record of more than 256 KiB in a Snappy file")
def _(folder):
    pytest.importorskip("cramjam")
    path = Path(__file__).parents[1] / "data/snappy/long.tfrecord"
    assert [len(record) for record in read_records(path)] == [10, 400_000, 5000, 0, 3]


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


@row("a damaged record, skipped")
def _(folder):
    content = bytearray(framed(folder, b"abc", b"defg", b"hi"))
    content[19 + 12] ^= 1
    with pytest.warns(UserWarning, match="1 "):
        found = list(read_records(write(folder, bytes(content)), on_error="skip"))
    assert found == [b"abc", b"hi"]


@row("a length far beyond the file")
def _(folder):
    # The header of an honest record of 16 MiB; its payload is not there.
    header = framed(folder, bytes(1 << 24))[:12]
    with pytest.raises(CorruptRecordError, match="16777216"):
        list(read_records(write(folder, header + b"abc")))


@row("unknown `compression_type`")
def _(folder):
    path = write(folder, gzip.compress(framed(folder, b"abc")))
    raises(ValueError, path, compression_type="BZ2")
    assert list(read_records(path, compression_type="gzip")) == [b"abc"]


@row("a writer that fails or is killed")
def _(folder):
    with pytest.raises(KeyError), TFRecordWriter(folder / "new.tfrecord") as writer:
        writer.write(b"abc")
        assert not (folder / "new.tfrecord").exists()
        raise KeyError
    assert not (folder / "new.tfrecord").exists()


@row("a writer that is never closed")
def _(folder):
    writer = TFRecordWriter(folder / "new.tfrecord")
    writer.write(b"abc")
    with pytest.warns(
        UserWarning, match=rf"{folder}/new.tfrecord: .* without close\(\).* \(records lost: 1\)"
    ):
        del writer
    assert not (folder / "new.tfrecord").exists()


@row("`list_files`: names with a leading dot")
def _(folder):
    content = framed(folder, b"abc")
    path = write(folder, content, "b.data")
    write(folder, content, ".hidden.data")
    assert TFRecordDataset(folder / "*.data").files == [str(path)]


@row("`list_files`: a file named twice; a pattern without a match, among others")
def _(folder):
    path = write(folder, framed(folder, b"abc"))
    with pytest.raises(ValueError, match="named once"):
        TFRecordDataset([path, path])
    with pytest.raises(FileNotFoundError):
        TFRecordDataset([path, folder / "none-*"])


@row("`list_files`: a folder; `**`")
def _(folder):
    (folder / "x" / "y").mkdir(parents=True)
    path = write(folder / "x" / "y", framed(folder, b"abc"))
    assert TFRecordDataset(folder / "x" / "y").files == [str(path)]
    assert TFRecordDataset(folder / "x" / "**" / "*.tfrecord").files == [str(path)]


@row("file order")
def _(folder):
    content = framed(folder, b"abc")
    paths = [str(write(folder, content, f"f-{number}")) for number in (9, 10, 2)]
    assert TFRecordIterableDataset(paths).files == [paths[1], paths[2], paths[0]]


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


@row("packed values in several chunks, mixed with unpacked ones, unknown fields")
def _(folder):
    # packed, unpacked, packed, unknown
    chunks = b"\x0a\x02\x01\x02" + b"\x08\x03" + b"\x0a\x01\x04" + b"\x78\x07"
    record = example(entry(b"a", b"\x1a" + bytes([len(chunks)]) + chunks))
    assert decode_example(record)["a"].tolist() == [1, 2, 3, 4]
    assert parse_single_example(record, {"a": VarLenFeature(torch.int64)})["a"].tolist() == [
        1,
        2,
        3,
        4,
    ]


@row("sparse indices out of range or duplicate, inconsistent ragged partitions")
def _(folder):
    sparse = {"s": SparseFeature("i", "v", torch.int64, 3)}
    for indices in ([0, 3], [1, 1]):
        with pytest.raises(ParseError):
            parse_single_example(encode_example({"i": indices, "v": [1, 2]}), sparse)
    record = encode_example({"v": [1, 2], "splits": [0, 1]})
    ragged = [RaggedFeature.RowSplits("splits")]
    with pytest.raises(ParseError):
        parse_single_example(record, {"r": RaggedFeature(torch.int64, "v", ragged)})


@row("dtypes")
def _(folder):
    for dtype in (torch.uint8, torch.bool, torch.float64):
        name = "f" if dtype.is_floating_point else "a"
        record = encode_example({"a": 1, "f": 1.0})
        assert parse_single_example(record, {name: FixedLenFeature((), dtype)})[name].dtype == dtype
    with pytest.raises(ParseError):
        parse_single_example(encode_example({"a": 256}), {"a": FixedLenFeature((), torch.uint8)})


@row("the same key in a dense and in a ragged or sparse spec")
def _(folder):
    record = encode_example({"a": [1, 2], "i": [0, 1]})
    spec = {
        "dense": FixedLenFeature((2,), torch.int64, key="a"),
        "ragged": RaggedFeature(torch.int64, value_key="a"),
        "sparse": SparseFeature("i", "a", torch.int64, 2),
    }
    sample = parse_single_example(record, spec)
    assert (
        sample["dense"].tolist()
        == sample["ragged"].tolist()
        == sample["sparse"].to_dense().tolist()
        == [1, 2]
    )


@row("different numbers of sparse indices and values")
def _(folder):
    with pytest.raises(ParseError):
        parse_single_example(
            encode_example({"v": [1, 2], "i": [0]}), {"s": SparseFeature("i", "v", torch.int64, 9)}
        )


@row("an empty batch of ragged features; partitions and values both missing")
def _(folder):
    ragged = RaggedFeature(torch.int64, value_key="v", partitions=[RaggedFeature.RowSplits("p")])
    assert len(parse_example([], {"x": RaggedFeature(torch.int64)})["x"]) == 0
    assert parse_single_example(b"", {"x": ragged})["x"].size(0) == 0


JSON = NestedExample({"x": VarLenFeature(torch.float32)}, format="json")
JSON_ROW = (
    "`decode_json_example`: single quotes, names without quotes, commas at the end, line breaks in text, "
    "`null` among numbers, one number for a list, an object's name twice"
)


def in_json(value):
    return f'{{"features": {{"feature": {{"x": {{"floatList": {{"value": {value}}}}}}}}}}}'


@row(JSON_ROW)
def _(folder):
    assert parse_single_example(in_json("[2]").encode(), JSON)["x"].tolist() == [2]
    wrong = [in_json(value) for value in ("[2,]", "2", "['2']", "[null]")]
    wrong += [
        in_json("[2]").replace('"', "'"),
        in_json("[2]").replace('"x"', "x"),
        in_json('[2], "value": [3]'),
    ]
    for text in wrong:
        with pytest.raises(ParseError):
            parse_single_example(text.encode(), JSON)


@row("`decode_json_example`: floats below the least normal one")
def _(folder):
    assert (
        parse_single_example(in_json("[1e-40]").encode(), JSON)["x"].item() == np.float32(1e-40) > 0
    )


@row("TF-Ranking: sizes of lists")
def _(folder):
    lists = ListFeatures(
        None, {"x": VarLenFeature(torch.float32)}, list_size=2, size_feature_name="size"
    )
    _, examples = parse_example([bytes([10, 0])], lists)
    assert (examples["size"].dtype, examples["size"].tolist()) == (torch.int64, [1])


@row("`decode_compressed`: a truncated stream, bytes after a zlib stream")
def _(folder):
    spec = {"x": RawTensor((-1,), torch.uint8, compression="zlib")}
    stream = zlib.compress(b"abc")
    assert bytes(parse_single_example(encode_example({"x": stream}), spec)["x"].tolist()) == b"abc"
    for wrong in (stream[:-1], stream + b"junk"):
        with pytest.raises(ParseError):
            parse_single_example(encode_example({"x": wrong}), spec)


@row("`decode_compressed`: zstd of several frames, or without its size")
def _(folder):
    pytest.importorskip("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
    spec = {"x": RawTensor((-1,), torch.uint8, compression="zstd")}
    frame = bytes.fromhex("28b52ffd0058610000000102030405060708090a0b")
    assert (
        parse_single_example(encode_example({"x": frame * 2}), spec)["x"].tolist()
        == [*range(12)] * 2
    )


@row("a wrong default")
def _(folder):
    with pytest.raises(ValueError, match="default_value"):
        FixedLenFeature((2,), torch.int64, default_value=[1, 2, 3])


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


@row("`shuffle`")
def _(folder):
    path = numbered(folder)

    def order(num_workers):
        loader = make_dataloader(path, 3, {"a": INT}, num_epochs=2, seed=5, num_workers=num_workers)
        return [batch["a"].tolist() for batch in loader]

    assert order(0) == order(2)


@row("`shard`")
def _(folder):
    path = numbered(folder)
    found = [
        list(make_dataloader(path, 2, shuffle=False, rank=rank, world_size=3)) for rank in range(3)
    ]
    assert [len(batches) for batches in found] == [2, 2, 2]
    repeated = [record for batches in found for batch in batches for record in batch]
    assert len(repeated) == 9
    assert len(set(repeated)) == 7
    dropped = [
        len(make_dataloader(path, 2, drop_last=True, rank=rank, world_size=3)) for rank in range(3)
    ]
    assert dropped == [1, 1, 1]


@row("`padding_values` of another dtype")
def _(folder):
    rows = [torch.tensor([1]), torch.tensor([1, 2])]
    assert PaddedCollate(padding_values=-1.0)(rows).tolist() == [[1, -1], [1, 2]]
    with pytest.raises(TypeError):
        PaddedCollate(padding_values=-1.5)(rows)


@row("`batch` of 1-D tensors of unequal length")
def _(folder):
    assert collate([torch.zeros(1), torch.zeros(2)]).layout == torch.jagged


@row("no file matches")
def _(folder):
    with pytest.raises(FileNotFoundError):
        make_dataloader(folder / "none-*", 2)


@row("layout")
def _(folder):
    assert decode_image(encode_image(torch.zeros(3, 4, 6, dtype=torch.uint8), "png")).shape == (
        3,
        4,
        6,
    )


@row("GIF, WebP")
def _(folder):
    for name in ("GIF", "WEBP"):
        buffer = io.BytesIO()
        frames = [PillowImage.new("RGB", (4, 6), (value,) * 3) for value in (0, 255)]
        options = {"lossless": True} if name == "WEBP" else {}
        frames[0].save(buffer, name, save_all=True, append_images=frames[1:], **options)
        image = decode_image(buffer.getvalue())
        assert (image.shape, int(image.max())) == ((3, 6, 4), 0)


@row("size of a GIF")
def _(folder):
    frozen = np.load(Path(__file__).parents[1] / "data/images/pictures.npz")
    found = decode_image(frozen["gif one small"])
    assert frozen["gif one small|0"].shape == (2, 3, 3) and found.shape == (3, 5, 6)
    assert found[:, 1:3, 2:5].any(0).all()


@row("16-bit PNG, without `dtype`")
def _(folder):
    data = encode_image(np.arange(0, 60000, 2500, dtype=np.uint16).reshape(1, 4, 6), "png")
    assert decode_image(data, "unchanged").dtype == torch.uint16
    assert decode_image(data, "L").flatten().tolist() == [
        value >> 8 for value in range(0, 60000, 2500)
    ]


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
    frozen = np.load(Path(__file__).parents[1] / "data/images/pictures.npz")
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


@row("JPEG")
def _(folder):
    picture = (np.indices((16, 16)).sum(0) * 8 % 256).astype(np.uint8)
    data = encode_image(np.stack([picture] * 3))
    expected = np.asarray(PillowImage.open(io.BytesIO(data))).transpose(2, 0, 1)
    assert (decode_image(data).numpy() == expected).all()


def wav(samples, bits, num_channels=1, encoding=1, size=None):
    """A WAV file; ``size`` is what it says of its samples."""
    frame = num_channels * bits // 8
    parts = b"fmt " + struct.pack(
        "<IHHIIHH", 16, encoding, num_channels, 8000, 8000 * frame, frame, bits
    )
    parts += b"data" + struct.pack("<I", len(samples) if size is None else size) + samples
    return b"RIFF" + struct.pack("<I", 4 + len(parts)) + b"WAVE" + parts


@row("layout of sounds")
def _(folder):
    stored = np.arange(6, dtype="<i2").reshape(3, 2)
    found = parse_single_example(
        encode_example({"a": wav(stored.tobytes(), 16, 2)}), {"a": Audio()}
    )["a"]
    assert (found.numpy() * 32768).tolist() == stored.T.tolist()


@row(
    "WAV of 8, 24 or 32 bits, floats, extensible headers, padded chunks, a size that was not filled in"
)
def _(folder):
    values = [-0.5, 0.0, 0.25]
    files = [
        wav(bytes(int(value * 128) + 128 for value in values), 8),
        wav(
            b"".join(int(value * (1 << 23)).to_bytes(3, "little", signed=True) for value in values),
            24,
        ),
        wav(
            b"".join(int(value * (1 << 31)).to_bytes(4, "little", signed=True) for value in values),
            32,
        ),
        wav(np.array(values, "<f4").tobytes(), 32, encoding=3),
        wav(np.array(values, "<f4").tobytes(), 32, encoding=3, size=0xFFFFFFFF),
    ]
    for file in files:
        assert parse_single_example(encode_example({"a": file}), {"a": Audio()})["a"].tolist() == [
            values
        ]


def rows():
    section = (
        DOC.read_text(encoding="utf-8").split("## Deliberate differences")[1].split("\n## ")[0]
    )
    firsts = [
        line.strip("| ").split(" | ")[0] for line in section.splitlines() if line.startswith("| ")
    ]
    return [first for first in firsts if first != "what"]


@pytest.mark.parametrize("first", rows(), ids=lambda text: re.sub(r"\W+", "-", text)[:40])
def test_row(first, tmp_path):
    CHECKS[first](tmp_path)


def test_no_row_is_missing():
    assert sorted(rows()) == sorted(CHECKS)
