"""Reading files: TensorFlow's golden ones, its damaged ones, and single records by an index.

Covers records/record_file.
"""

import base64
import hashlib
import json
import os
import random
import re
import subprocess
import sys
from operator import itemgetter

import pytest
from helpers import RECORDS, collect, compressed, for_each, framed, header, random_payloads

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    IndexMismatchError,
    LimitExceededError,
    RecordIndex,
    TFRecordError,
    TFRecordWriter,
    build_index,
    read_records,
)
from torch_tfrecord.files import LocalFile, open_file
from torch_tfrecord.records import RecordReader, open_stream

pytestmark = pytest.mark.usefixtures("random_states_untouched")

GOLDEN = [
    description
    for path in sorted(RECORDS.glob("*.json"))
    if "records" in (description := json.loads(path.read_text()))
]
DAMAGED = json.loads((RECORDS / "damaged.json").read_text())
TRUE = [base64.b64decode(record) for record in DAMAGED["undamaged_records"]]


def digests(records, like):
    """sha256 of each record, as many digits as stored."""
    return [
        hashlib.sha256(record).hexdigest()[: len(r["sha256"])]
        for record, r in zip(records, like, strict=True)
    ]


def expected(description):
    return [record["sha256"] for record in description["records"]]


golden = pytest.mark.parametrize("description", GOLDEN, ids=lambda description: description["file"])


def test_all_golden_files_are_here():
    assert len(GOLDEN) == 24
    files = {path.name for path in RECORDS.iterdir() if path.suffix not in (".json", ".idx")}
    assert files == {description["file"] for description in GOLDEN}


@golden
def test_golden_files_are_the_stored_ones(description):
    content = (RECORDS / description["file"]).read_bytes()
    assert hashlib.sha256(content).hexdigest() == description["file_sha256"]


@golden
@pytest.mark.parametrize("chunk_bytes", [1, 100, None])
def test_golden_sequential(description, chunk_bytes, monkeypatch):  # robustness 14, 22, 24
    if chunk_bytes is not None:
        if description["file_size"] > 100_000:
            pytest.skip("long in such small reads")
        monkeypatch.setattr(LocalFile, "chunk_bytes", chunk_bytes)
    path = RECORDS / description["file"]
    kind = description["compression"]
    for declared in ("auto", kind, kind.lower() or None):
        for verify_crc in (True, False):
            records = list(read_records(path, compression_type=declared, verify_crc=verify_crc))
            assert digests(records, description["records"]) == expected(description)
    assert list(read_records(path, on_error="skip")) == records


@golden
def test_golden_from_a_pipe(description):
    with subprocess.Popen(["cat", RECORDS / description["file"]], stdout=subprocess.PIPE) as other:
        records = list(read_records(other.stdout))
    assert digests(records, description["records"]) == expected(description)


@golden
def test_golden_by_index(description):  # robustness 5, 34
    path = str(RECORDS / description["file"])
    index = build_index(path)
    assert index.offsets.tolist() == [record["offset"] for record in description["records"]]
    assert index.lengths.tolist() == [record["length"] for record in description["records"]]
    assert index.file_size == description["file_size"]
    assert index.compression_type == description["compression"]
    assert build_index(path, verify_crc=False, compression_type=description["compression"]) == index
    source, _ = open_stream(open_file(path), index.compression_type)
    order = list(range(len(index)))
    random.Random(1).shuffle(order)
    reader = RecordReader()
    for number in [*range(len(index)), *order[:100]]:
        payload = reader.read(source, int(index.offsets[number]), int(index.lengths[number]))
        assert digests([payload], description["records"][number : number + 1]) == [
            expected(description)[number]
        ]


@golden
def test_golden_text_indexes(description, tmp_path):  # robustness 60
    path, text = RECORDS / description["file"], RECORDS / f"{description['file']}.idx"
    index = build_index(path)
    if description["compression"]:
        with pytest.raises(
            ValueError, match=f"uncompressed data file, got {description['compression']}"
        ):
            index.to_tfrecord2idx(tmp_path / "x.idx")
        if description["records"]:
            with pytest.raises(
                IndexMismatchError,
                match=f"{re.escape(str(text))}: expected an uncompressed data file",
            ):
                RecordIndex.from_tfrecord2idx(text, path)
        return
    assert RecordIndex.from_tfrecord2idx(text, path) == index
    index.to_tfrecord2idx(tmp_path / "x.idx")
    assert (tmp_path / "x.idx").read_bytes() == text.read_bytes()


# Damaged files. No error is right where nothing is damaged, or where TensorFlow was told the wrong
# compression and we find the right one.
WHOLE = {
    "": {"truncated_at_0", "truncated_at_19", "truncated_at_42", "truncated_at_58"},
    "GZIP": {"gzip_truncated_at_0", "gzip_zero_byte_file"},
    "ZLIB": {"zlib_truncated_at_0", "zlib_zero_byte_file", "zlib_two_streams"},
}
WRONG_TYPE = {
    "not_tfrecord_gzip_as_plain": "expected an uncompressed TFRecord file (compression_type=''), got a gzip stream",
    "not_tfrecord_zlib_as_plain": "expected an uncompressed TFRecord file (compression_type=''), got a zlib stream",
    "gzip_file_as_zlib": "expected a zlib stream (compression_type='ZLIB'), got a gzip stream",
    "zlib_file_as_gzip": "expected a gzip stream (compression_type='GZIP'), got a zlib stream",
    "plain_file_as_gzip": "expected a gzip stream (compression_type='GZIP'), got an uncompressed TFRecord file",
    "plain_file_as_zlib": "expected a zlib stream (compression_type='ZLIB'), got an uncompressed TFRecord file",
    "raw_deflate_as_zlib": "expected a zlib stream (compression_type='ZLIB'), got neither gzip nor zlib nor a record",
}
# Cases whose true records are others: those of TensorFlow's answer, which is right there.
OTHER_RECORDS = {"zlib_two_streams": [*TRUE, b"second stream"], "huge_length": [b"ok"]}


@pytest.fixture(scope="module")
def other_records():
    case = next(case for case in DAMAGED["cases"] if case["name"].startswith("huge_length"))
    assert case["tensorflow"]["sha256"] == [
        hashlib.sha256(OTHER_RECORDS["huge_length"][0]).hexdigest()
    ]


def _true_records(name):
    if name.startswith("huge_length"):
        return OTHER_RECORDS["huge_length"]
    return OTHER_RECORDS.get(name, TRUE)


@pytest.mark.daily
@pytest.mark.usefixtures("other_records")
@for_each("declared", [True, False])
@for_each("case", DAMAGED["cases"], ids=itemgetter("name"))
def test_damaged(case, declared, tmp_path):  # robustness 6 to 13, 26 to 31
    name, content = case["name"], base64.b64decode(case["file"])
    path = tmp_path / "damaged"
    path.write_bytes(content)
    compression = case["compression"] if declared else "auto"
    read, error = collect(read_records(path, compression_type=compression), TFRecordError)
    true = _true_records(name)
    if not declared and name in WRONG_TYPE and name != "raw_deflate_as_zlib":
        assert (read, error) == (TRUE, None)
        return
    if declared and name in WRONG_TYPE:
        assert (read, str(error)) == ([], f"{path}: at byte 0: {WRONG_TYPE[name]}")
        assert type(error) is CompressionError
        return
    assert read == true[: len(read)]
    assert len(read) >= case["tensorflow"]["records_read"]
    if name in WHOLE[case["compression"]]:
        assert error is None
        if not name.endswith(("_at_19", "_at_42", "_at_58")):
            assert read == (true if content else [])
        return
    assert error is not None, "silent where data is damaged"
    assert str(error).startswith(f"{path}: record {len(read)} at byte ")
    in_a_good_stream = name.startswith("gzip_around")
    if (case["compression"] and not in_a_good_stream and name != "raw_deflate_as_zlib") or name in (
        "not_tfrecord_gzip_as_plain",
        "not_tfrecord_zlib_as_plain",
    ):
        assert type(error) in (CompressionError, CorruptRecordError)
        if "bit_flip" not in name:
            assert type(error) is CompressionError
        assert str(error).endswith("(offset in the decompressed stream)")
    else:
        assert type(error) is CorruptRecordError
    with pytest.raises(type(error)) as caught:
        build_index(path, compression_type=compression)
    assert str(caught.value) == str(error)


# robustness 12, 13
HINTS = [
    ("not_tfrecord_text", "text"),
    ("not_tfrecord_short_text", "text"),
    ("not_tfrecord_html", "an HTML page"),
    (
        "not_tfrecord_git_lfs_pointer",
        "a git-LFS pointer; fetch the file itself with `git lfs pull`",
    ),
    ("not_tfrecord_png", "a PNG image"),
    ("not_tfrecord_parquet", "a parquet file"),
    ("not_tfrecord_zeros_64", "zeros (a hole left by an interrupted download?)"),
]


@pytest.mark.parametrize("declared", ["", "auto"])
@pytest.mark.parametrize(("name", "hint"), HINTS)
def test_files_of_other_kinds_are_named(name, hint, declared, tmp_path):
    case = next(case for case in DAMAGED["cases"] if case["name"] == name)
    path = tmp_path / "other"
    path.write_bytes(base64.b64decode(case["file"]))
    with pytest.raises(CorruptRecordError) as caught:
        list(read_records(path, compression_type=declared))
    text = str(caught.value)
    assert text.startswith(f"{path}: record 0 at byte 0: ")
    assert text.endswith(f" (Is this even a TFRecord file? It looks like {hint}.)")
    content = path.read_bytes()
    assert content.decode("latin-1")[:20] not in text  # data is never printed


GUESSES = [
    (b"\xff\xd8\xff\xe0\0\x10JFIF", "a JPEG image"),
    (b"GIF89a\1\0", "a GIF image"),
    (b"PK\x03\x04\x14", "a zip archive"),
    (b"BZh91AY", "a bzip2 stream"),
    (b"\x28\xb5\x2f\xfd\x04", "a zstd stream"),
    (b"\n  <HTML lang='de'>", "an HTML page"),
    (b"<?xml version='1.0'?>", "an XML file"),
]


@pytest.mark.parametrize(("data", "name"), GUESSES, ids=[name for _, name in GUESSES])
def test_first_bytes_of_other_kinds(data, name, tmp_path):  # robustness 13
    (tmp_path / "x").write_bytes(data + b"\n" * 20)
    with pytest.raises(CorruptRecordError, match=f"It looks like {name}"):
        list(read_records(tmp_path / "x", compression_type=""))


def test_unknown_content(tmp_path):
    (tmp_path / "x").write_bytes(b"\x80\x91abcdefghijklmno")
    with pytest.raises(CorruptRecordError, match=r"\(Is this even a TFRecord file\?\)$"):
        list(read_records(tmp_path / "x"))


# The call itself.


@pytest.mark.parametrize(
    ("options", "kind", "text"),
    [
        ({"on_error": "ignore"}, ValueError, "on_error must be 'raise' or 'skip', got 'ignore'"),
        (
            {"compression_type": "BZ2"},
            ValueError,
            "compression_type must be 'auto', None, '', 'GZIP', 'ZLIB' or 'SNAPPY', got 'BZ2'",
        ),
        ({"compression_type": 3}, ValueError, "got 3"),
    ],
)
# robustness 30: before anything is opened
def test_wrong_options_raise_at_the_call(options, kind, text):
    with pytest.raises(kind, match=re.escape(text)):
        read_records("no such file", **options)


@pytest.mark.parametrize("path", [b"bytes", 3, None, [b"a"]])
def test_wrong_paths_raise_at_the_call(path):
    with pytest.raises(TypeError, match=r"paths must be a (path or a list of paths|flat list)"):
        read_records(path)


def test_several_files(tmp_path):
    for number in range(3):
        with TFRecordWriter(tmp_path / f"x-{number}.gz") as writer:
            for n in range(number):
                writer.write(b"%d of %d" % (n, number))
    wanted = [b"0 of 1", b"0 of 2", b"1 of 2"]
    for paths in (tmp_path / "x-*", tmp_path, [tmp_path / "x-2.gz", tmp_path / "x-1.gz"]):
        assert [*read_records(paths)] == wanted
    assert [*read_records(tmp_path / "x-0.gz")] == []
    with pytest.raises(FileNotFoundError, match="no file matches the pattern"):
        read_records(tmp_path / "y-*")


def test_missing_file():
    with pytest.raises(FileNotFoundError, match="no such file"):
        list(read_records("no such file"))


def test_the_payload_checksum_is_optional_the_bounds_are_not(tmp_path):  # robustness 17
    path = tmp_path / "x"
    content = bytearray(framed(b"abc", b"defg"))
    content[13] ^= 1
    path.write_bytes(content)
    assert list(read_records(path, verify_crc=False)) == [b"acc", b"defg"]
    assert len(build_index(path, verify_crc=False)) == 2
    path.write_bytes(content[:-1])
    with pytest.raises(CorruptRecordError, match="truncated record: expected 20 bytes"):
        list(read_records(path, verify_crc=False))


def test_reading_while_a_writer_appends(tmp_path):  # robustness 20
    path = tmp_path / "x"
    content = framed(b"abc", b"defg")
    path.write_bytes(content[:30])
    read, error = collect(read_records(path), TFRecordError)
    assert read == [b"abc"]
    assert "record 1 at byte 19: truncated header: 11 of 12 bytes" in str(error)
    with path.open("ab") as file:
        file.write(content[30:])
    assert list(read_records(path)) == [b"abc", b"defg"]


def test_records_arrive_before_the_rest_of_a_pipe(tmp_path):
    """A reader of a FIFO sees what was written, and an error where the writer died in a record."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    content = framed(*[b"abc"] * 5) + header(9) + b"half"
    with (
        subprocess.Popen([sys.executable, "-c", f"open({str(fifo)!r}, 'wb').write({content!r})"]),
        fifo.open("rb") as f,
    ):
        read, error = collect(read_records(f), TFRecordError)
    assert read == [b"abc"] * 5
    assert str(error) == (
        f"{fifo}: record 5 at byte 95: truncated record: expected 25 bytes (payload 9), got 16 up to the end"
    )


def test_a_pipe_without_data_is_not_at_its_end():
    read_end, write_end = os.pipe()
    os.set_blocking(read_end, False)
    with (
        open(read_end, "rb", buffering=0) as file,
        open(write_end, "wb", buffering=0),
        pytest.raises(BlockingIOError, match="expected a blocking file object"),
    ):
        list(read_records(file))


# Single records.


@pytest.fixture(params=["", "GZIP", "ZLIB"])
def stream(request, tmp_path):
    """A stream of 60 records of all sizes, their index, and their payloads."""
    payloads = [*random_payloads(58, 7), b"y" * 40_000, b"z" * 100_000]
    path = tmp_path / "x"
    path.write_bytes(compressed(framed(*payloads), request.param))
    return open_stream(open_file(str(path)), "auto")[0], build_index(path), payloads


@pytest.mark.parametrize("separate", [1, 1 << 30], ids=["three reads", "one read"])
def test_random_access_in_any_order(stream, separate, monkeypatch):  # robustness 34
    monkeypatch.setattr("torch_tfrecord.records.reader._LONG_BYTES", separate)
    source, index, payloads = stream
    forward = list(range(len(payloads)))
    shuffled = random.Random(3).sample(forward, len(forward))
    reader = RecordReader()
    for number in [*forward, *reversed(forward), *shuffled]:
        assert (
            reader.read(source, int(index.offsets[number]), int(index.lengths[number]))
            == payloads[number]
        )


@pytest.mark.parametrize("separate", [1, 1 << 30], ids=["three reads", "one read"])
@pytest.mark.parametrize("number", [0, 30, 58])
@pytest.mark.parametrize("off", [-1, 1, 7])
def test_a_wrong_offset_or_length_never_gives_bytes(stream, number, off, separate, monkeypatch):
    monkeypatch.setattr("torch_tfrecord.records.reader._LONG_BYTES", separate)
    source, index, payloads = stream
    offset, length = int(index.offsets[number]), len(payloads[number])
    note = " (offset in the decompressed stream)" if index.compression_type else ""
    if length + off >= 0:
        with pytest.raises(IndexMismatchError) as caught:
            RecordReader().read(source, offset, length + off)
        assert str(caught.value) == (
            f"{source.path}: at byte {offset}: expected a record of {length + off} bytes (by the index), "
            f"got one of {length}{note}"
        )
    if offset + off >= 0:
        with pytest.raises(
            CorruptRecordError, match=f"at byte {offset + off}: corrupted record: expected length"
        ):
            RecordReader().read(source, offset + off, length)


def test_past_the_end(stream):  # robustness 18
    source, index, _ = stream
    end = int(index.offsets[-1] + index.lengths[-1]) + 16
    for offset in (end, end + 1, end + 10**6):
        with pytest.raises(
            CorruptRecordError,
            match=f"at byte {offset}: truncated record: expected 19 bytes, got 0",
        ):
            RecordReader().read(source, offset, 3)


@pytest.mark.parametrize("length", [2**20, 2**29 + 1, 2**61])
def test_an_index_that_lies_takes_no_memory_in_a_stream(tmp_path, length):
    path = tmp_path / "x"
    path.write_bytes(compressed(framed(b"abc") + header(length) + bytes(10**6), "GZIP"))
    source, _ = open_stream(open_file(str(path)), "GZIP")
    with pytest.raises(IndexMismatchError, match=f"expected a record of {length} bytes"):
        RecordReader().read(source, 0, length)
    kind, text = (
        (CorruptRecordError, "truncated record")
        if length < 2**29
        else (LimitExceededError, "expected a record of at")
    )
    with pytest.raises(kind, match=text):
        RecordReader().read(source, 19, length)


def test_reader_says_which_checksum(tmp_path):
    path = tmp_path / "x"
    content = bytearray(framed(b"abc", b"defg"))
    content[32] ^= 1
    path.write_bytes(content)
    source = open_file(str(path))
    with pytest.raises(CorruptRecordError) as caught:
        RecordReader().read(source, 19, 4)
    assert re.fullmatch(
        re.escape(str(path))
        + r": at byte 19: corrupted record: expected payload checksum 0x[0-9a-f]{8}, "
        r"got 0x[0-9a-f]{8} \(4 bytes\)",
        str(caught.value),
    )
    assert RecordReader(verify_crc=False).read(source, 19, 4) != b"defg"


# A length cut to 32 bits, with a sign or without, is wrong for the second size, too.
SIZES = [2**31 + 5, 2**32 + 5]


def large_record(path, size):
    """A sparse file: the payload is zeros, its checksum is not right, so only the lengths are
    checked.
    """
    with path.open("wb") as file:
        file.write(framed(b"abc") + header(size))
        file.seek(size, os.SEEK_CUR)
        file.write(b"\0\0\0\0" + framed(b"after"))
    return path


@pytest.mark.slow
def test_an_index_of_records_above_4_gib(tmp_path):  # robustness 19
    path, size = large_record(tmp_path / "x", SIZES[1]), SIZES[1]
    index = build_index(path, verify_crc=False)
    assert index.lengths.tolist() == [3, size, 5]
    assert index.offsets.tolist() == [0, 19, 19 + size + 16]
    source = open_file(str(path))
    assert RecordReader().read(source, int(index.offsets[2]), 5) == b"after"


@pytest.mark.daily  # minutes, where memory comes slowly
@pytest.mark.parametrize("size", SIZES)
def test_records_above_2_and_4_gib(tmp_path, size):  # robustness 19, 82
    path = large_record(tmp_path / "x", size)
    source = open_file(str(path))
    payload = RecordReader(verify_crc=False).read(source, 19, size)
    assert len(payload) == size
    del payload
    with pytest.raises(CorruptRecordError, match=f"payload checksum .* \\({size} bytes\\)"):
        RecordReader().read(source, 19, size)
    lengths = [len(record) for record in read_records(path, verify_crc=False)]
    assert lengths == [3, size, 5]
    with pytest.raises(
        CorruptRecordError, match="record 1 at byte 19: corrupted record: expected payload checksum"
    ):
        list(read_records(path))
