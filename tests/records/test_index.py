"""`RecordIndex`: what is no index, what is stale, and the two forms on disk."""

import dataclasses
import json
import os
import pickle
import random
import re
import struct
import time
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from helpers import compressed, framed, random_payloads
from hypothesis import given, settings
from hypothesis import strategies as st
from sidecars import changed, flipped_in_place, taken_apart

import torch_tfrecord
from torch_tfrecord import (
    CorruptRecordError,
    IndexMismatchError,
    RecordIndex,
    build_index,
    read_records,
)
from torch_tfrecord.files import open_file
from torch_tfrecord.records import RecordReader

pytestmark = pytest.mark.usefixtures("random_states_untouched")

PAYLOADS = [b"abc", b"", b"x" * 30, b"last"]


@pytest.fixture
def data(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(framed(*PAYLOADS))
    return path


def records_of(index, path):
    source = open_file(str(path))
    reader = RecordReader()
    return [
        reader.read(source, int(a), int(b))
        for a, b in zip(index.offsets, index.lengths, strict=True)
    ]


# The object.


def test_what_an_index_is(data):
    index = build_index(data)
    assert index.offsets.tolist() == [0, 19, 35, 81]
    assert index.lengths.tolist() == [3, 0, 30, 4]
    assert index.offsets.dtype == index.lengths.dtype == np.int64
    assert (len(index), index.file_size, index.compression_type) == (4, 101, "")
    assert index.offsets.nbytes + index.lengths.nbytes == 16 * len(index)
    assert records_of(index, data) == PAYLOADS
    assert index == build_index(str(data), verify_crc=False)
    assert hash(index) == hash(build_index(data))
    assert index != dataclasses.replace(index, mtime_ns=1)
    assert index != 3
    again = pickle.loads(pickle.dumps(index))
    assert again == index


def test_an_index_is_frozen(data):
    index = build_index(data)
    with pytest.raises(dataclasses.FrozenInstanceError):
        index.file_size = 3
    with pytest.raises(ValueError, match="read-only"):
        index.offsets[0] = 3
    with pytest.raises(ValueError, match="read-only"):
        index.lengths[0] = 3


def test_memory_is_16_bytes_a_record(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(framed(b"ab") * 50_000)
    index = build_index(path)
    assert len(pickle.dumps(index)) < 16 * 50_000 + 1000
    assert len(index.to_bytes()) < 16 * 50_000 + 1000


@pytest.mark.parametrize(
    ("offsets", "lengths", "size", "text"),
    [  # robustness 57, 58
        (
            [0, 19],
            [3, 4],
            38,
            "expected records up to the end of the file (38 bytes), got an end of 39",
        ),
        (
            [0, 19],
            [3, 4],
            40,
            "expected records up to the end of the file (40 bytes), got an end of 39",
        ),
        ([], [], 1, "expected records up to the end of the file (1 bytes), got an end of 0"),
        (
            [5],
            [3],
            24,
            "record 0: expected each record right behind the one before: offset 0, got 5",
        ),
        (
            [0, 18],
            [3, 4],
            38,
            "record 1: expected each record right behind the one before: offset 19, got 18",
        ),
        (
            [0, 20],
            [3, 4],
            40,
            "record 1: expected each record right behind the one before: offset 19, got 20",
        ),
        (
            [0, 0],
            [3, 3],
            19,
            "record 1: expected each record right behind the one before: offset 19, got 0",
        ),
        (
            [19, 0],
            [4, 3],
            39,
            "record 0: expected each record right behind the one before: offset 0, got 19",
        ),
        (
            [0, -1],
            [3, 4],
            39,
            "record 1: expected an offset and a length within a file, got offset -1 and length 4",
        ),
        (
            [0, 19],
            [3, -4],
            31,
            "record 1: expected an offset and a length within a file, got offset 19 and length -4",
        ),
        ([0, 19], [3, 2**62], 39, "record 1: expected an offset and a length within a file"),
        (
            [0, 2**63 - 1],
            [3, 2**63 - 1],
            39,
            "record 1: expected an offset and a length within a file",
        ),
        ([0], [3, 4], 39, "expected offsets and lengths of one size, got (1,) and (2,)"),
        (
            [[0, 19]],
            [[3, 4]],
            39,
            "expected offsets and lengths of one size, got (1, 2) and (1, 2)",
        ),
    ],
)
def test_records_that_do_not_lie_one_behind_the_other(offsets, lengths, size, text):
    with pytest.raises(IndexMismatchError, match=re.escape(text)):
        RecordIndex(np.array(offsets, dtype=np.int64), np.array(lengths, dtype=np.int64), size)


def test_sums_that_overflow_are_no_way_around():
    lengths = np.full(8, 2**61, dtype=np.int64)
    offsets = np.cumsum(lengths + 16) - lengths - 16
    with pytest.raises(IndexMismatchError, match="within a file"):
        RecordIndex(offsets, lengths, int(offsets[-1] + lengths[-1] + 16))


def test_unknown_compression():
    with pytest.raises(
        ValueError, match="compression_type must be '', 'GZIP', 'ZLIB' or 'SNAPPY', got 'gzip'"
    ):
        RecordIndex(np.zeros(0, np.int64), np.zeros(0, np.int64), 0, "gzip")


# Building.


def test_building_checks_every_checksum(data):  # robustness 64
    content = bytearray(data.read_bytes())
    content[-1] ^= 1
    data.write_bytes(content)
    with pytest.raises(
        CorruptRecordError,
        match=r"record 3 at byte 81: corrupted record: expected payload checksum",
    ):
        build_index(data)
    assert len(build_index(data, verify_crc=False)) == 4


def test_building_over_a_file_that_is_cut_meanwhile(data, monkeypatch):
    source = open_file(str(data))
    os.truncate(data, 35)
    with pytest.raises(CorruptRecordError, match="truncated file: expected 101 bytes, got 35"):
        RecordIndex._build(source)
    with pytest.raises(CorruptRecordError, match="truncated file: expected 101 bytes, got 35"):
        RecordIndex._build(source, verify_crc=False)


# Fresh or stale. robustness 55, 59, 83


def _same_size_rewrite(path):
    path.write_bytes(framed(b"cab", b"", b"y" * 30, b"tsal"))


def _other_borders(path):
    path.write_bytes(framed(b"abcd", b"", b"x" * 29, b"last"))


def _grow(path):
    path.write_bytes(path.read_bytes() + framed(b"more"))


def _shrink(path):
    path.write_bytes(framed(*PAYLOADS[:-1]))


def _empty(path):
    path.write_bytes(b"")


def _compress(path):
    path.write_bytes(compressed(path.read_bytes(), "GZIP"))


CHANGES = [_same_size_rewrite, _other_borders, _grow, _shrink, _empty, _compress]


@pytest.mark.parametrize("restore_time", [False, True])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_file_makes_an_index_stale(data, change, restore_time):
    index = build_index(data)
    index.check_fresh(open_file(str(data)))
    before = data.stat()
    change(data)
    if restore_time:
        os.utime(data, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(
        IndexMismatchError, match="the index is not of this file as it is now: expected a file "
    ) as caught:
        index.check_fresh(open_file(str(data)))
    assert str(caught.value).startswith(f"{data}: ")
    if restore_time and data.stat().st_size == before.st_size:
        assert "with fingerprint 0x" in str(caught.value)


def test_a_touched_file_makes_an_index_stale(data):
    index = build_index(data)
    os.utime(data, ns=(1, index.mtime_ns + 1))
    with pytest.raises(
        IndexMismatchError,
        match=f"last changed at {index.mtime_ns} ns, got {index.mtime_ns + 1} ns",
    ):
        index.check_fresh(open_file(str(data)))


def test_a_copy_with_its_time_is_fresh(data, tmp_path):
    index = build_index(data)
    copy = tmp_path / "copy"
    copy.write_bytes(data.read_bytes())
    os.utime(copy, ns=(index.mtime_ns, index.mtime_ns))
    index.check_fresh(open_file(str(copy)))


def test_a_stale_index_that_passes_for_fresh_gives_no_wrong_record(tmp_path):
    """Both ends, size and time as before, other records in between: each record's own header still
    speaks.
    """
    ends = [b"a" * 5000], [b"z" * 5000]
    path = tmp_path / "x"
    path.write_bytes(framed(*ends[0], b"one", b"three", *ends[1]))
    index = build_index(path)
    path.write_bytes(framed(*ends[0], b"three", b"one", *ends[1]))
    os.utime(path, ns=(index.mtime_ns, index.mtime_ns))
    index.check_fresh(open_file(str(path)))
    source, reader = open_file(str(path)), RecordReader()
    with pytest.raises(
        IndexMismatchError, match=r"expected a record of 3 bytes \(by the index\), got one of 5"
    ):
        reader.read(source, int(index.offsets[1]), 3)
    with pytest.raises(CorruptRecordError, match="length checksum"):
        reader.read(source, int(index.offsets[2]), 5)


def test_the_index_of_a_file_with_an_unknown_time(data):
    index = dataclasses.replace(build_index(data), mtime_ns=0, fingerprint=None)
    index.check_fresh(open_file(str(data)))
    _same_size_rewrite(data)
    index.check_fresh(open_file(str(data)))  # all that is known is the size
    assert len(records_of(index, data)) == 4  # with its own checksums


# The safetensors form.


def saved(index, tmp_path, **changes):
    """A saved index with some of it changed, and a right checksum."""
    path = tmp_path / "changed.index.safetensors"
    path.write_bytes(changed(index.to_bytes(), lazy="extra", **changes))
    return path


@pytest.mark.parametrize("kind", ["", "GZIP"])
def test_saving_and_loading(data, tmp_path, kind):
    data.write_bytes(compressed(data.read_bytes(), kind))
    index = build_index(data)
    path = tmp_path / "i"
    index.save(path)
    assert RecordIndex.load(path) == index
    assert RecordIndex.load(saved(index, tmp_path)) == index
    assert sorted(os.listdir(tmp_path)) == ["changed.index.safetensors", "i", "x"]


def test_an_index_of_no_records(tmp_path):
    (tmp_path / "x").write_bytes(b"")
    index = build_index(tmp_path / "x")
    index.save(tmp_path / "i")
    assert RecordIndex.load(tmp_path / "i") == index
    assert len(index) == 0


def test_others_can_open_it(data):
    index = build_index(data)
    arrays = safetensors.numpy.load(index.to_bytes())
    assert {name: array.tolist() for name, array in arrays.items()} == {
        "offsets": index.offsets.tolist(),
        "lengths": index.lengths.tolist(),
        "extra": [],
    }


ZEROS = np.zeros(4, np.int64)
VERSION = "expected an index written by torch_tfrecord, of format 'torch_tfrecord.index' version '7', got another "
FIELDS = "expected an index with the fields file_size, mtime_ns, compression_type, fingerprint"
ARRAYS = "expected an index with the arrays offsets, lengths, extra, got others"
FORM = "expected arrays of one dimension, of int64, got others"
CHANGED = [  # robustness 63
    ({"version": "4"}, VERSION + "version"),
    ({"version": None}, VERSION + "version"),
    ({"format": "pt"}, VERSION + "file"),
    ({"format": None}, VERSION + "file"),
    ({"file_size": None}, FIELDS),
    (
        {"file_size": "102"},
        "expected records up to the end of the file (102 bytes), got an end of 101",
    ),
    ({"file_size": "many"}, "expected a whole number as file_size, got 4 other characters"),
    ({"file_size": "101 "}, "expected a whole number as file_size, got 4 other characters"),
    ({"file_size": "0101"}, "expected a whole number as file_size, got 4 other characters"),
    ({"file_size": "9" * 19}, "expected a whole number as file_size, got 19 other characters"),
    ({"file_size": "9" * 5000}, "expected a whole number as file_size, got 5000 other characters"),
    (
        {"file_size": "-1"},
        "expected an index with at most -16 bytes of arrays, by the size of the data file, got 64",
    ),
    (
        {"file_size": "50"},
        "expected an index with at most 48 bytes of arrays, by the size of the data file, got 64",
    ),
    ({"mtime_ns": "1.5"}, "expected a whole number as mtime_ns"),
    ({"fingerprint": "x"}, "expected a whole number as fingerprint"),
    (
        {"compression_type": "LZ4"},
        "expected the compression '', 'GZIP', 'ZLIB' or 'SNAPPY', got another",
    ),
    ({"more": "1"}, FIELDS),
    ({"arrays": {"more": ZEROS}}, ARRAYS),
    (
        {"arrays": {"offsets": ZEROS}},
        "record 1: expected each record right behind the one before: offset 19, got 0",
    ),
    ({"arrays": {"offsets": ZEROS.astype(np.int32)}}, FORM),
    ({"arrays": {"lengths": ZEROS.astype(np.float64)}}, FORM),
    (
        {"arrays": {"lengths": ZEROS[:3]}},
        "expected offsets and lengths of one size, got (4,) and (3,)",
    ),
    ({"arrays": {"lengths": ZEROS.reshape(2, 2)}}, FORM),
    ({"arrays": {"lengths": None}}, ARRAYS),
]


@pytest.mark.parametrize(
    ("changes", "text"), CHANGED, ids=[f"{text[:40]}-{n}" for n, (_, text) in enumerate(CHANGED)]
)
def test_changed_indexes(data, tmp_path, changes, text):
    path = saved(build_index(data), tmp_path, **changes)
    with pytest.raises(IndexMismatchError, match=re.escape(text)) as caught:
        RecordIndex.load(path)
    assert str(caught.value).startswith(f"{path}: ")


HEADERS = [
    ('"shape":[4]', '"shape":[true]'),
    ('"shape":[4]', '"shape":[4.0]'),
    ('"shape":[4]', '"shape":[-4]'),
    ('"shape":[4]', '"shape":' + "[" * 5000),
    ('"shape":[4]', '"shape":[' + "9" * 5000 + "]"),
    ('"shape":[4]', '"shape":[' + "9" * 30 + "]"),
    ('"shape":[4]', '"shape":4'),
    ('"shape":[4]', '"shape":[\xc3\xa4]'),
    ('"shape":[4]', '"shape":[4] '),
    ('"shape":[4]', '"shape":[4],"shape":[4]'),
    ('"data_offsets":[0,32]', '"data_offsets":[32,64]'),
    ('"data_offsets":[0,32]', '"data_offsets":[-32,0]'),
    ('"dtype":"I64"', '"dtype":"U64"'),
    ('"dtype":"I64"', '"dtype":"F64"'),
    ('"dtype":"I64"', '"dtype":["I64"]'),
    ('"mtime_ns":', '"mtime_ns":"1","mtime_ns":'),
    ('"fingerprint":"', '"fingerprint":1,"other":"'),
    ("}}", '},"__metadata__":[]}'),
    ("}}", '},"__metadata__":null}'),
]


@pytest.mark.parametrize(
    ("old", "new"), HEADERS, ids=[str(number) for number in range(len(HEADERS))]
)
def test_headers_that_are_not_as_we_write_them(data, tmp_path, old, new):
    """Refused, or, where they say the same in another way, taken for what they say."""
    index = build_index(data)
    content = index.to_bytes()
    header = content[8 : content.index(b"}}") + 2].decode()
    assert old in header
    text = header[::-1].replace(old[::-1], new[::-1], 1)[::-1].encode("latin-1")
    (tmp_path / "i").write_bytes(struct.pack("<Q", len(text)) + text + content[-64:])
    if '"shape":[4]' in new or '"mtime_ns":"1"' in new:
        assert RecordIndex.load(tmp_path / "i") == index
        return
    with pytest.raises(IndexMismatchError, match="expected ") as caught:
        RecordIndex.load(tmp_path / "i")
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("size", [1 << 40, 0])
def test_an_index_of_terabytes_is_not_read(data, tmp_path, size):
    """A sparse file costs nothing on the disk, and all its size in memory."""
    index = build_index(data)
    many = 6 << 30
    header, _ = taken_apart(index.to_bytes())
    header["__metadata__"]["file_size"] = str(size or index.file_size)
    for number, name in enumerate(("offsets", "lengths")):
        header[name] |= {
            "shape": [many // 16],
            "data_offsets": [number * many // 2, (number + 1) * many // 2],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(tmp_path / "i", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + many)
    tracemalloc.start()
    try:
        with pytest.raises(
            IndexMismatchError,
            match=r"expected a file of 1099511627776 bytes|expected an index with at",
        ):
            RecordIndex._load_fresh(str(tmp_path / "i"), open_file(str(data)))
        if not size:
            with pytest.raises(
                IndexMismatchError, match="expected an index with at most 96 bytes of arrays"
            ):
                RecordIndex.load(tmp_path / "i")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_a_compression_that_the_data_do_not_have(data, tmp_path):
    (tmp_path / "i").write_bytes(changed(build_index(data).to_bytes(), compression_type="GZIP"))
    with pytest.raises(
        IndexMismatchError, match=r"^.*/x: .*expected compression 'GZIP', got a file of another"
    ):
        RecordIndex._load_fresh(str(tmp_path / "i"), open_file(str(data)))


def test_an_index_of_a_nested_record_is_none(tmp_path):
    """With a right checksum: whoever writes it can compute that. The records must still fill the
    file.
    """
    path = tmp_path / "x"
    path.write_bytes(framed(b"outer " + framed(b"inner")))
    index = build_index(path)
    with pytest.raises(IndexMismatchError, match="right behind the one before: offset 0, got 18"):
        RecordIndex(np.array([18]), np.array([5]), index.file_size)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"x",
        bytes(8),
        b"\xff" * 8,
        b"\xff" * 100,
        struct.pack("<Q", 2) + b"{}",
        struct.pack("<Q", 2) + b"[]",
        b"\x80\x04N.",
        b"0 19\n19 16\n",
    ],
    ids=repr,
)
def test_files_that_are_no_index(content, tmp_path):
    path = tmp_path / "i"
    path.write_bytes(content)
    with pytest.raises(IndexMismatchError, match=re.escape(f"{path}: expected ")):
        RecordIndex.load(path)


@pytest.mark.slow
def test_a_cut_index_is_none(data, tmp_path):
    content = build_index(data).to_bytes()
    path = tmp_path / "i"
    for cut in range(len(content)):
        path.write_bytes(content[:cut])
        with pytest.raises(IndexMismatchError):
            RecordIndex.load(path)
    path.write_bytes(content + b"\0")
    with pytest.raises(IndexMismatchError):
        RecordIndex.load(path)


@pytest.mark.slow
def test_every_flipped_bit_of_an_index(data, tmp_path):
    content = build_index(data).to_bytes()
    path = tmp_path / "i"
    path.write_bytes(content)
    for _ in flipped_in_place(path, range(8 * len(content))):
        with pytest.raises(IndexMismatchError, match=f"^{path}: expected "):
            RecordIndex.load(path)


@pytest.mark.daily
@settings(max_examples=300, deadline=None)
@given(st.data())
def test_fuzzed_indexes_give_no_wrong_record(tmp_path_factory, data):  # fuzz target "index file"
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    payloads = random_payloads(rng.randrange(6), rng.randrange(100), 40)
    folder = tmp_path_factory.mktemp("fuzz")
    path, index_path = folder / "x", folder / "i"
    path.write_bytes(framed(*payloads))
    content = bytearray(build_index(path).to_bytes())
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(content))
        match rng.randrange(3):
            case 0:
                content[at] = rng.randrange(256)
            case 1:
                content[at : at + rng.randrange(9)] = rng.randbytes(rng.randrange(9))
            case 2:
                content[at:at] = rng.choice([b"0", b"9", b'"', b"{", b"}", b",", b"\0" * 8])
    index_path.write_bytes(content)
    try:
        index = RecordIndex.load(index_path)
        index.check_fresh(open_file(str(path)))
    except IndexMismatchError as error:
        assert str(path.parent) in str(error)
    else:
        assert records_of(index, path) == payloads == list(read_records(path))


@given(st.binary(max_size=300))
def test_any_bytes_are_refused(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("fuzz") / "i"
    path.write_bytes(content)
    with pytest.raises(IndexMismatchError):
        RecordIndex.load(path)


def test_a_deeply_nested_header_is_refused(tmp_path):
    header = b"[" * 100_000
    (tmp_path / "i").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(IndexMismatchError):
        RecordIndex.load(tmp_path / "i")


def test_never_pickle():
    source = Path(torch_tfrecord.__file__).with_name("records").joinpath("index.py").read_text()
    assert "pickle" not in source.replace("Never pickle", "").replace("never pickle", "")
    assert "allow_pickle" not in source


# The text form. robustness 56 to 58, 60

GOOD = "0 19\n19 16\n35 46\n81 20\n"


@pytest.mark.parametrize(
    "text", [GOOD, GOOD.rstrip(), GOOD.replace("\n", " "), GOOD.replace(" ", "\t\t"), "\n" + GOOD]
)
def test_text_indexes_with_any_white_space(data, tmp_path, text):
    (tmp_path / "i").write_text(text)
    index = RecordIndex.from_tfrecord2idx(tmp_path / "i", data)
    assert index == build_index(data)
    assert records_of(index, data) == PAYLOADS


BAD_TEXTS = [
    ("", "expected records up to the end of the file (101 bytes), got an end of 0"),
    ("0 19\n", "got an end of 19"),
    (GOOD[:-1] + "0\n", "got an end of 281"),
    # a partial last line
    ("0 19\n19 16\n35 46\n81 2", "within a file, got offset 81 and length -14"),
    ("0 19\n19 16\n35 46\n81", "expected pairs of offset and size, got 7 numbers"),
    (GOOD.replace("\n", "\r\n"), "got carriage returns"),
    ("\ufeff" + GOOD, "expected decimal numbers of at most 19 digits"),
    (GOOD.replace("35", "3\0"), "expected decimal numbers of at most 19 digits"),
    (GOOD.replace("35", "-35"), "record 2: expected decimal numbers of at most 19 digits"),
    (GOOD.replace("35", "+35"), "expected decimal numbers"),
    (GOOD.replace("35", "0x23"), "expected decimal numbers"),
    (GOOD.replace("35", "3_5"), "expected decimal numbers"),
    (GOOD.replace("35", "35.0"), "expected decimal numbers"),
    (GOOD.replace("35", "\u0663\u0665"), "expected decimal numbers"),  # digits, but not ASCII
    (GOOD.replace("35", "9" * 19), "expected numbers below 2^63"),
    (
        GOOD.replace("35", "9" * 10**6),
        "expected decimal numbers of at most 19 digits, got 1000000 other characters",
    ),
    (
        GOOD.replace("35 46", "36 46"),
        "record 2: expected each record right behind the one before: offset 35, got 36",
    ),
    (
        GOOD.replace("35 46\n", ""),
        "record 2: expected each record right behind the one before: offset 35, got 81",
    ),
    (GOOD.replace("35 46\n", "35 46\n35 46\n"), "record 3: expected each record right behind"),
    ("19 16\n0 19\n35 46\n81 20\n", "record 0: expected each record right behind"),
    (GOOD.replace("19 16", "19 15"), "record 1: expected an offset and a length within a file"),
    (GOOD + "101 16\n", "got an end of 117"),
    ("offset size\n" + GOOD, "record 0: expected decimal numbers"),
]


@pytest.mark.parametrize(
    ("text", "message"), BAD_TEXTS, ids=[message[:45] for _, message in BAD_TEXTS]
)
def test_bad_text_indexes(data, tmp_path, text, message):
    path = tmp_path / "i"
    path.write_bytes(text.encode())
    began = time.monotonic()
    with pytest.raises(IndexMismatchError, match=re.escape(message)) as caught:
        RecordIndex.from_tfrecord2idx(path, data)
    assert time.monotonic() - began < 1
    assert str(caught.value).startswith(f"{path}: ")


def test_a_text_index_with_wrong_lengths_that_fit_is_noticed_on_reading(data, tmp_path):
    """Contiguous, but no record begins at 20: "size other than 16 + length field" of robustness
    57.
    """
    (tmp_path / "i").write_text("0 20\n20 16\n36 45\n81 20\n")
    index = RecordIndex.from_tfrecord2idx(tmp_path / "i", data)
    source, reader = open_file(str(data)), RecordReader()
    with pytest.raises(
        IndexMismatchError, match=r"expected a record of 4 bytes \(by the index\), got one of 3"
    ):
        reader.read(source, 0, 4)
    for number in (1, 2):
        with pytest.raises(CorruptRecordError, match="length checksum"):
            reader.read(source, int(index.offsets[number]), int(index.lengths[number]))
    assert reader.read(source, 81, 4) == b"last"


def test_the_text_index_that_the_tools_make_of_a_cut_file(data, tmp_path):  # robustness 60
    os.truncate(data, 95)
    (tmp_path / "i").write_text(GOOD)  # they do not notice the short read
    with pytest.raises(
        IndexMismatchError, match=r"up to the end of the file \(95 bytes\), got an end of 101"
    ):
        RecordIndex.from_tfrecord2idx(tmp_path / "i", data)


@pytest.mark.daily
@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(max_size=60),
        st.lists(st.tuples(st.integers(-5, 120), st.integers(-5, 120)), max_size=5),
    )
)
def test_fuzzed_text_indexes(tmp_path_factory, text):
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "x").write_bytes(framed(*PAYLOADS))
    if isinstance(text, list):
        text = "".join(f"{a} {b}\n" for a, b in text)
    (folder / "i").write_bytes(text.encode(errors="replace"))
    try:
        index = RecordIndex.from_tfrecord2idx(folder / "i", folder / "x")
        assert records_of(index, folder / "x") == PAYLOADS
    except (IndexMismatchError, CorruptRecordError):
        pass


def test_text_indexes_of_missing_and_odd_files(data, tmp_path):
    with pytest.raises(FileNotFoundError, match="missing"):
        RecordIndex.from_tfrecord2idx(tmp_path / "missing", data)
    with pytest.raises(FileNotFoundError, match="missing"):
        RecordIndex.from_tfrecord2idx(data, tmp_path / "missing")
    with pytest.raises(IsADirectoryError):
        RecordIndex.from_tfrecord2idx(tmp_path, data)
