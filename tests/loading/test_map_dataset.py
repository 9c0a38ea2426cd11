"""The map-style dataset: list rules, what it reads, indexes, pickling, threads, files that change.

Covers per_process, loading/record_files, loading/sample_maker, records/record_table.
"""

import inspect
import os
import pickle
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, Subset, random_split
from torchvision import tv_tensors
from torchvision.transforms import v2

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    Image,
    ImageDecodeError,
    IndexMismatchError,
    ParseError,
    Text,
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    encode_example,
    encode_image,
)

SUFFIX = ".index.safetensors"
PAYLOADS = [b"%d:" % number + b"x" * (number % 5) for number in range(23)]
SPLIT = (7, 0, 12, 4)  # records in each file; one is empty


def write(path, payloads, **options):
    with TFRecordWriter(path, **options) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


def write_split(folder, payloads=PAYLOADS, split=SPLIT, suffix=".tfrecord", **options):
    rest = iter(payloads)
    return [
        write(folder / f"part-{number}{suffix}", [next(rest) for _ in range(count)], **options)
        for number, count in enumerate(split)
    ]


def open_files(folder):
    """The files of a folder that this process has open, by their names."""
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(
        os.path.relpath(target, folder) for target in targets if target.startswith(f"{folder}/")
    )


@pytest.fixture
def folder(tmp_path):
    write_split(tmp_path)
    return tmp_path


@pytest.fixture
def ds(folder):
    return TFRecordDataset(folder / "part-*")


# List rules


def test_reads_what_was_written_in_the_order_of_the_files(ds, folder):
    assert len(ds) == 23
    assert list(ds) == [ds[i] for i in range(23)] == PAYLOADS
    assert ds.files == [str(folder / f"part-{number}.tfrecord") for number in range(4)]


def test_negative_positions_and_bools_as_in_lists(ds):
    assert [ds[-number] for number in range(1, 24)] == PAYLOADS[::-1]
    assert ds[np.int64(-23)] == PAYLOADS[0]
    assert (ds[True], ds[False]) == (PAYLOADS[True], PAYLOADS[False])
    assert ds.raw(-1) == PAYLOADS[-1]
    assert ds.locate(-1) == ds.locate(22)


@pytest.mark.parametrize("position", [23, -24, 10**6, 2**63, -(2**63), 2**100])
@pytest.mark.parametrize("method", ["__getitem__", "raw", "locate"])
def test_out_of_range(ds, method, position):
    with pytest.raises(IndexError, match=rf"^position {position} is out of range for 23 records$"):
        getattr(ds, method)(position)


@pytest.mark.parametrize(
    "position", [1.0, "1", None, (1,), ["1"], [1.0], torch.eye(2), np.float32(1)], ids=repr
)
def test_other_types_are_no_positions(ds, position):
    with pytest.raises(TypeError):
        ds[position]


SLICES = [
    slice(None),
    slice(3, 9),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(20, 2, -3),
    slice(-5, None),
    slice(None, -20),
    slice(5, 5),
    slice(9, 3),
    slice(-100, 100, 7),
    slice(np.int64(2), np.int64(8), np.int64(2)),
]


@pytest.mark.parametrize("part", SLICES, ids=repr)
def test_slices_as_in_lists(ds, part):
    got = ds[part]
    assert isinstance(got, TFRecordDataset)
    assert list(got) == PAYLOADS[part]
    assert len(got) == len(PAYLOADS[part])
    for inner in SLICES:
        nested = got[inner]
        assert list(nested) == PAYLOADS[part][inner]
        assert [nested[-1 - number] for number in range(len(nested))] == PAYLOADS[part][inner][::-1]
    assert len(ds) == 23  # the whole is as it was


def test_slices_with_impossible_parts(ds):
    with pytest.raises(ValueError, match="step cannot be zero"):
        ds[::0]
    with pytest.raises(TypeError):
        ds[:1.5]


def test_position_out_of_range_of_a_slice(ds):
    part = ds[3:9]
    for position in (6, -7):
        with pytest.raises(
            IndexError, match=f"^position {position} is out of range for 6 records$"
        ):
            part[position]
    with pytest.raises(IndexError, match=r"^position 0 is out of range for 0 records$"):
        ds[9:3][0]


def test_raw_and_locate_of_a_slice_are_of_its_positions(ds):
    part = ds[20:2:-3]
    assert part.raw(1) == PAYLOADS[17]
    assert part.locate(1) == ds.locate(17)


def test_locate_is_what_the_index_says(ds):
    expected = [(path, int(offset)) for path in ds.files for offset in build_index(path).offsets]
    located = [ds.locate(position) for position in range(len(ds))]
    assert located == expected
    assert all(type(offset) is int for _, offset in located)


def test_getitems_is_getitem_for_each(folder):
    features = {"number": FixedLenFeature((), torch.int64), "name": Text()}
    path = write(
        folder / "examples", [encode_example({"number": n, "name": f"n{n}"}) for n in range(9)]
    )
    ds = TFRecordDataset(
        path, features, transform=lambda sample: (sample["number"] * 2, sample["name"])
    )
    for positions in ([], [3], [8, 0, -1, 3, 3], range(9), np.array([4, 2])):
        assert ds.__getitems__(positions) == [ds[position] for position in positions]
    assert ds.__getitems__([8, 0])[0] == (torch.tensor(16), "n8")
    with pytest.raises(IndexError, match=r"^position 9 is out of range for 9 records$"):
        ds.__getitems__([0, 9])


@pytest.mark.filterwarnings("ignore:no file has a record")
def test_only_empty_files(tmp_path):
    ds = TFRecordDataset([write(tmp_path / "a", []), write(tmp_path / "b", [])])
    assert len(ds) == 0
    assert list(ds) == list(ds[:]) == ds.__getitems__([]) == []


# Features and transform


def test_features_and_transform(tmp_path):
    image = torch.arange(2 * 3 * 4, dtype=torch.uint8).reshape(3, 2, 4)
    record = {
        "encoded": encode_image(image, "png"),
        "n": [7],
        "words": [b"a", b"\0b\0"],
        "few": torch.zeros(0),
    }
    path = write(tmp_path / "a", [encode_example(record)])
    features = {
        "image": Image(key="encoded"),
        "n": FixedLenFeature((), torch.int32),
        "words": VarLenFeature(bytes),
        "few": VarLenFeature(torch.float32),
        "absent": FixedLenFeature((2,), torch.float32, [0.5, 1.5]),
    }
    sample = TFRecordDataset(path, features)[0]
    assert list(sample) == list(features)
    assert isinstance(sample["image"], tv_tensors.Image)
    assert torch.equal(sample["image"], image)
    assert (sample["n"].dtype, sample["n"].shape, int(sample["n"])) == (torch.int32, (), 7)
    assert sample["words"] == [b"a", b"\0b\0"]
    assert sample["few"].shape == (0,)
    assert sample["absent"].tolist() == [0.5, 1.5]

    flipped = TFRecordDataset(path, features, transform=v2.RandomHorizontalFlip(1.0))[0]
    assert torch.equal(flipped["image"], image.flip(-1))
    assert isinstance(flipped["image"], tv_tensors.Image)
    assert torch.equal(flipped["n"], sample["n"])


def test_transform_gets_the_bytes_where_there_are_no_features(folder):
    ds = TFRecordDataset(folder / "part-*", transform=len)
    assert list(ds[4:7]) == [len(payload) for payload in PAYLOADS[4:7]]
    assert ds.raw(4) == PAYLOADS[4]  # raw is before the transform


# Errors name the file, the record and the byte


def example(number=0, image=None):
    if image is None:
        image = encode_image(torch.zeros(1, 2, 2, dtype=torch.uint8), "png")
    return encode_example({"n": number, "image": image})


FEATURES = {"n": FixedLenFeature((), torch.int64), "image": Image("L")}
BAD_RECORDS = [
    (ParseError, encode_example({"n": "text", "image": b""}), "'n'"),
    (ParseError, encode_example({"image": b""}), "'n'"),
    (ParseError, b"\x0a\xff\xff\xff", "Example"),
    (ImageDecodeError, example(image=b"no image"), "'image'"),
    (ImageDecodeError, example(image=b"\x89PNG\r\n\x1a\n"), "'image'"),
]


@pytest.mark.parametrize(("error", "payload", "text"), BAD_RECORDS)
def test_a_record_that_does_not_fit(tmp_path, error, payload, text):
    write(tmp_path / "a", [example(0)])
    path = write(tmp_path / "b", [example(1), example(2), payload, example(3)])
    ds = TFRecordDataset(tmp_path / "*", FEATURES)
    with pytest.raises(error, match=text) as caught:
        ds[3]
    offset = int(build_index(path).offsets[2])
    assert str(caught.value).startswith(f"{path}: record 2 at byte {offset}: ")
    assert (caught.value.path, caught.value.position, caught.value.offset) == (path, 2, offset)
    assert [int(ds[position]["n"]) for position in (0, 1, 2, 4)] == [0, 1, 2, 3]
    assert ds.raw(3) == payload


def damaged(folder, number, byte, payloads=PAYLOADS):
    """A file with one flipped byte in a record, and an index that was built without looking at
    payloads.
    """
    path = write(folder / "damaged.tfrecord", payloads)
    offset = int(build_index(path).offsets[number])
    data = bytearray(Path(path).read_bytes())
    data[offset + byte] ^= 1
    Path(path).write_bytes(data)
    return path, offset


@pytest.mark.parametrize("byte", [12, 13, -1], ids=["payload", "payload's second", "footer"])
def test_a_damaged_record(tmp_path, byte):
    size = 16 + len(PAYLOADS[9])
    path, offset = damaged(tmp_path, 9, byte % size)
    build_index(path, verify_crc=False).save(path + SUFFIX)
    ds = TFRecordDataset(path, index="require")
    with pytest.raises(CorruptRecordError) as caught:
        ds[9]
    assert str(caught.value).startswith(f"{path}: record 9 at byte {offset}: ")
    assert [ds[i] for i in range(23) if i != 9] == PAYLOADS[:9] + PAYLOADS[10:]
    assert len(TFRecordDataset(path, verify_crc=False)[9]) == len(PAYLOADS[9])


def test_a_damaged_file_cannot_be_indexed(tmp_path):
    path, offset = damaged(tmp_path, 9, 12)
    with pytest.raises(CorruptRecordError) as caught:
        TFRecordDataset(path)
    assert str(caught.value).startswith(f"{path}: record 9 at byte {offset}: ")
    assert os.listdir(tmp_path) == ["damaged.tfrecord"]


# Wrong arguments


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"index": "always"},
            ValueError,
            "index must be 'auto', 'require' or 'memory', got 'always'",
        ),
        ({"index": None}, ValueError, "index must be 'auto', 'require' or 'memory', got None"),
        ({"compression_type": "LZ4"}, ValueError, "'LZ4'"),
        ({"features": {}}, ValueError, "features"),
        ({"features": ["n"]}, TypeError, "features must be a mapping of names to specs, got list"),
        ({"features": {"n": torch.int64}}, TypeError, "'n'"),
    ],
)
def test_wrong_arguments(folder, options, error, text):
    with pytest.raises(error, match=text):
        TFRecordDataset(folder / "part-*", **options)


def test_options_are_keyword_only():
    kinds = {
        name: item.kind.name for name, item in inspect.signature(TFRecordDataset).parameters.items()
    }
    options = [
        "label_key",
        "transform",
        "compression_type",
        "verify_crc",
        "index",
        "index_dir",
        "max_batch_bytes",
        "storage_options",
        "cache_dir",
        "cache_bytes",
        "on_error",
        "max_errors",
    ]
    assert [name for name, kind in kinds.items() if kind == "KEYWORD_ONLY"] == options
    assert [name for name in kinds if name not in options] == ["paths", "features"]


# The index


def sidecars(folder):
    return sorted(path for path in folder.rglob("*") if path.name.endswith(SUFFIX))


def test_memory_leaves_nothing_and_believes_nothing(folder):
    (folder / f"part-0.tfrecord{SUFFIX}").write_bytes(b"no index")
    ds = TFRecordDataset(folder / "part-*", index="memory")
    assert list(ds) == PAYLOADS
    assert sidecars(folder) == [folder / f"part-0.tfrecord{SUFFIX}"]


def test_index_dir(folder, tmp_path_factory):
    place = tmp_path_factory.mktemp("indexes") / "made" / "when needed"
    assert list(TFRecordDataset(folder / "part-*", index_dir=place)) == PAYLOADS
    assert sidecars(folder) == []
    assert len(sidecars(place)) == 4
    assert list(TFRecordDataset(folder / "part-*", index_dir=place, index="require")) == PAYLOADS
    with pytest.raises(IndexMismatchError):
        TFRecordDataset(folder / "part-*", index="require")


# Compressed files


def test_locate_in_compressed_files_is_in_the_decompressed_stream(tmp_path):
    plain, packed = write(tmp_path / "a", PAYLOADS), write(tmp_path / "b.gz", PAYLOADS)
    one, other = TFRecordDataset(plain), TFRecordDataset(packed)
    assert [one.locate(i)[1] for i in range(23)] == [other.locate(i)[1] for i in range(23)]


# Pickling, forks, threads


def test_pickles_without_open_files_and_without_the_reader(folder):
    ds = TFRecordDataset(folder / "part-*")
    part = ds[4:20:3]
    assert list(ds) == PAYLOADS
    opened = open_files(folder)
    assert len(opened) == 3
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        copies = [pickle.loads(pickle.dumps(whole, protocol)) for whole in (ds, part)]
        assert open_files(folder) == opened  # nothing is opened before it is read
        assert [list(copy) for copy in copies] == [PAYLOADS, PAYLOADS[4:20:3]]
        assert len(open_files(folder)) == 9
        assert copies[0].files == ds.files
        del copies
        assert open_files(folder) == opened


def test_pickles_features_and_transform(tmp_path):
    path = write(tmp_path / "a", [example(5)])
    ds = pickle.loads(
        pickle.dumps(
            TFRecordDataset(path, FEATURES, transform=v2.ToDtype(torch.float32, scale=True))
        )
    )
    assert int(ds[0]["n"]) == 5
    assert ds[0]["image"].dtype == torch.float32


def test_pickled_size_is_16_bytes_a_record(tmp_path):
    count = 20_000
    path = write(tmp_path / "a", [b""] * count, write_index=True)
    ds = TFRecordDataset(path)
    ds.raw(0)
    size = len(pickle.dumps(ds))
    assert size < 16 * count + 2_000
    assert len(pickle.dumps(ds[::2][5:])) < size + 200


@pytest.mark.parametrize("suffix", ["", ".gz"])
def test_from_16_threads(tmp_path, monkeypatch, suffix):
    # files are closed and opened all the time
    monkeypatch.setattr("torch_tfrecord.files.local_file._most_open", lambda: 4)
    payloads = [b"%d:" % number + os.urandom(number % 300) for number in range(400)]
    write_split(tmp_path, payloads, split=(40,) * 10, suffix=suffix)
    ds = TFRecordDataset(tmp_path / "part-*")
    together = threading.Barrier(16)

    def read_all(seed):
        order = list(range(400))
        random.Random(seed).shuffle(order)
        together.wait(60)
        return all(ds[position] == payloads[position] for position in order)

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(read_all, range(16)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_after_a_fork_with_open_files(tmp_path):
    payloads = [b"%d:" % number + bytes(number % 50) for number in range(2000)]
    path = write(tmp_path / "a", payloads)
    ds = TFRecordDataset(path)
    assert ds.raw(1000) == payloads[1000]
    children = []
    for seed in range(4):
        child = os.fork()
        if child == 0:
            order = list(range(2000))
            random.Random(seed).shuffle(order)
            right = False
            try:
                right = all(ds[position] == payloads[position] for position in order)
            finally:
                os._exit(0 if right else 1)
        children.append(child)
    assert list(ds) == payloads  # at the same time
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [
        0,
        0,
        0,
        0,
    ]


# Torch's own tools


def test_random_split_subset_and_concat(ds, folder):
    parts = random_split(ds, [15, 8], generator=torch.Generator().manual_seed(0))
    assert [len(part) for part in parts] == [15, 8]
    assert sorted(payload for part in parts for payload in part) == sorted(PAYLOADS)
    fractions = random_split(ds, [0.5, 0.5], generator=torch.Generator().manual_seed(0))
    assert sorted(payload for part in fractions for payload in part) == sorted(PAYLOADS)
    subset = Subset(ds, [22, 0, 7])
    assert (
        list(subset) == subset.__getitems__([0, 1, 2]) == [PAYLOADS[22], PAYLOADS[0], PAYLOADS[7]]
    )
    both = ConcatDataset([ds, TFRecordDataset(folder / "part-2.tfrecord"), ds[:2]])
    assert [both[position] for position in range(len(both))] == PAYLOADS + PAYLOADS[
        7:19
    ] + PAYLOADS[:2]
    assert both[-1] == PAYLOADS[1]


# Files that change while the dataset is in use: an error or the old data


def replaced(path, payloads):
    """Another file under the same name, as a writer or `mv` leaves it."""
    other = write(Path(path).parent / "other", payloads)
    os.replace(other, path)


def outcomes(ds):
    """For each position the payload, or the class of error."""
    found = []
    for position in range(len(ds)):
        try:
            found.append(ds[position])
        except TFRecordError as error:
            assert ds.files[0] in str(error)
            found.append(type(error))
    return found


@pytest.mark.parametrize(
    "others",
    [
        PAYLOADS[::-1],
        PAYLOADS[:5],
        [],
        [payload.upper().replace(b":", b";") for payload in PAYLOADS],
    ],
    ids=["other order", "fewer", "none", "same lengths"],
)
def test_file_replaced(tmp_path, others):
    path = write(tmp_path / "a", PAYLOADS)
    opened, not_opened = TFRecordDataset(path), TFRecordDataset(path)
    assert opened[3] == PAYLOADS[3]
    status = os.stat(path)
    replaced(path, others)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))  # even if the time does not tell
    assert outcomes(opened) == PAYLOADS  # it still reads the file that it opened
    assert outcomes(not_opened) == [IndexMismatchError] * 23
    with pytest.raises(IndexMismatchError, match="the index is not of this file as it is now"):
        not_opened[0]
    # so would a worker
    assert outcomes(pickle.loads(pickle.dumps(opened))) == [IndexMismatchError] * 23


@pytest.mark.parametrize("kept", [0, 1, 11, 12, 100, 250])
def test_file_cut_while_open(tmp_path, kept):
    path = write(tmp_path / "a", PAYLOADS)
    index = build_index(path)
    opened, not_opened = TFRecordDataset(path), TFRecordDataset(path)
    assert opened[22] == PAYLOADS[22]
    os.truncate(path, kept)
    ends = index.offsets + index.lengths + 16
    expected = [
        payload if end <= kept else CorruptRecordError
        for payload, end in zip(PAYLOADS, ends.tolist(), strict=True)
    ]
    assert outcomes(opened) == expected
    assert outcomes(not_opened) == [IndexMismatchError] * 23
    with pytest.raises(
        CorruptRecordError,
        match=rf"^{path}: record 22 at byte {index.offsets[22]}: truncated record",
    ):
        opened[22]


def test_file_overwritten_in_place_while_open(tmp_path):
    path = write(tmp_path / "a", PAYLOADS)
    ds = TFRecordDataset(path)
    assert ds[3] == PAYLOADS[3]
    data = Path(write(tmp_path / "b", [b"!" + payload for payload in PAYLOADS])).read_bytes()
    with open(path, "r+b") as file:
        file.write(data)
    found = outcomes(ds)
    # Wherever the old index points now, there is no record of the expected length and checksum.
    assert set(found) <= {CorruptRecordError, IndexMismatchError}


def test_file_gone(tmp_path):
    path = write(tmp_path / "a", PAYLOADS)
    opened, not_opened = TFRecordDataset(path), TFRecordDataset(path)
    assert opened[0] == PAYLOADS[0]
    os.unlink(path)
    assert list(opened) == PAYLOADS
    with pytest.raises(FileNotFoundError) as caught:
        not_opened[0]
    assert caught.value.filename == path


def test_features_and_public_names(folder):
    features = {"n": FixedLenFeature((), torch.int64)}
    for ds in (
        TFRecordDataset(folder / "part-*", features),
        TFRecordDataset(folder / "part-*", features)[:2],
        TFRecordIterableDataset(folder / "part-*", features),
    ):
        assert ds.features == features
        assert "features={'n': FixedLenFeature((), torch.int64)}" in repr(ds)
    assert TFRecordDataset(folder / "part-*").features is None
    public = {name for name in dir(TFRecordDataset(folder / "part-*")) if not name.startswith("_")}
    assert public == {
        *("features", "files", "locate", "raw", "report", "set_epoch"),
        *("column", "find", "scan_tasks", "select", "select_columns", "where"),
        *("iter_arrow", "to_arrow", "to_pandas"),
    }
    public = {
        name for name in dir(TFRecordIterableDataset(folder / "part-*")) if not name.startswith("_")
    }
    assert public == {
        "features",
        "files",
        "load_state_dict",
        "report",
        "set_epoch",
        "state_dict",
    }
