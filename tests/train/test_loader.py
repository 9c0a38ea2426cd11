"""Datasets behind DataLoader: start methods, errors that cross processes, few file descriptors,
samplers.
"""

import os

import pytest
import torch
from helpers import run_program
from torch.utils.data import DataLoader

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    Image,
    ImageDecodeError,
    ParseError,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    build_index,
    collate,
    encode_example,
    encode_image,
)

# DataLoader thinks more workers than processors a mistake; Python 3.12 and later warn of forks
# where threads run.
pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)

COUNT = 30
FEATURES = {
    "n": FixedLenFeature((), torch.int64),
    "image": Image("L"),
    "values": VarLenFeature(torch.float32),
    "name": Text(),
}
# Each spawned worker imports torch anew, for seconds; those of a forkserver are as empty, and quick
# (conftest.py).
METHODS = [
    pytest.param("fork", 1, id="fork-1"),
    pytest.param("fork", 2, id="fork-2"),
    pytest.param("forkserver", 1, id="forkserver-1", marks=pytest.mark.daily),
    pytest.param("forkserver", 2, id="forkserver-2"),
    pytest.param("spawn", 1, id="spawn-1", marks=pytest.mark.daily),
    pytest.param("spawn", 2, id="spawn-2", marks=pytest.mark.daily),
]


def record(n, other=()):
    image = encode_image(torch.full((1, 2, 2), n, dtype=torch.uint8), "png")
    values = torch.arange(n % 4, dtype=torch.float32)
    return encode_example({"n": n, "image": image, "values": values, "name": f"n{n}"} | dict(other))


def write(path, payloads, **options):
    with TFRecordWriter(path, **options) as writer:
        for payload in payloads:
            writer.write(payload)
    return str(path)


@pytest.fixture(scope="module")
def pattern(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loader")
    for number, (first, last) in enumerate([(0, 11), (11, 11), (11, 12), (12, COUNT)]):
        write(folder / f"part-{number}", [record(n) for n in range(first, last)], write_index=True)
    return str(folder / "part-*")


def check(batches, order=None):
    """Every record once, each with what belongs to it."""
    seen = []
    for batch in batches:
        numbers = batch["n"].tolist()
        assert batch["values"].layout == torch.jagged
        assert [row.tolist() for row in batch["values"].unbind()] == [
            list(range(n % 4)) for n in numbers
        ]
        assert batch["image"].shape == (len(numbers), 1, 2, 2)
        assert batch["image"].flatten(1).tolist() == [[n] * 4 for n in numbers]
        assert batch["name"] == [f"n{n}" for n in numbers]
        seen += numbers
    assert (sorted(seen) if order is None else seen) == list(
        range(COUNT) if order is None else order
    )
    return seen


@pytest.mark.daily
@pytest.mark.parametrize(("method", "num_workers"), METHODS)
def test_shuffled_by_position(pattern, method, num_workers):
    ds = TFRecordDataset(pattern, FEATURES)
    assert int(ds[5]["n"]) == 5  # the workers must not use the file that is open here
    loader = DataLoader(
        ds,
        batch_size=4,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        num_workers=num_workers,
        multiprocessing_context=method,
        collate_fn=collate,
        persistent_workers=True,
    )
    first, second = check(loader), check(loader)
    assert first != second
    assert int(ds[6]["n"]) == 6


@pytest.mark.daily
@pytest.mark.parametrize(("method", "num_workers"), METHODS)
def test_stream_with_persistent_workers_that_follow_set_epoch(pattern, method, num_workers):
    ds = TFRecordIterableDataset(
        pattern, FEATURES, batch_size=4, shuffle=True, shuffle_buffer_size=8
    )
    loader = DataLoader(
        ds,
        batch_size=None,
        num_workers=num_workers,
        multiprocessing_context=method,
        persistent_workers=True,
    )
    orders = []
    for epoch in (0, 1, 0):
        ds.set_epoch(epoch)
        orders.append(check(loader))
    assert orders[0] == orders[2] != orders[1]


@pytest.fixture(scope="module")
def bad(tmp_path_factory):
    """Good and bad records, and for each position the error."""
    path = tmp_path_factory.mktemp("bad") / "bad.tfrecord"
    write(
        path,
        [record(0), record(1), record(2, {"n": 2.5}), record(3, {"image": b"no image"}), record(4)],
    )
    data = bytearray(path.read_bytes())
    data[int(build_index(path).offsets[1]) + 20] ^= 1
    path.write_bytes(data)
    build_index(path, verify_crc=False).save(f"{path}.index.safetensors")
    return str(path), {1: CorruptRecordError, 2: ParseError, 3: ImageDecodeError}


@pytest.mark.daily
@pytest.mark.parametrize(("method", "num_workers"), METHODS)
def test_errors_arrive_from_workers_with_class_path_record_and_byte(bad, method, num_workers):
    path, errors = bad
    ds = TFRecordDataset(path, FEATURES)
    positions = [0, 1, 4, 2, 3, 0]
    running = iter(
        DataLoader(
            ds,
            sampler=positions,
            num_workers=num_workers,
            multiprocessing_context=method,
            collate_fn=collate,
        )
    )
    for position in positions:  # a worker continues after an error
        if position not in errors:
            assert next(running)["n"].tolist() == [position]
            continue
        with pytest.raises(errors[position]) as here:
            ds[position]
        with pytest.raises(errors[position]) as there:
            next(running)
        assert type(there.value) is errors[position]
        place = f"{path}: record {position} at byte {ds.locate(position)[1]}: "
        assert str(here.value).startswith(place)
        assert str(here.value) in str(there.value)
        assert "Traceback" in str(there.value)  # of the worker
    with pytest.raises(StopIteration):
        next(running)


def test_errors_of_a_stream_arrive_from_workers(bad):
    path, _ = bad
    ds = TFRecordIterableDataset(path, FEATURES, batch_size=1)
    running = iter(DataLoader(ds, batch_size=None, num_workers=1, multiprocessing_context="fork"))
    assert next(running)["n"].tolist() == [0]
    offset = build_index(path, verify_crc=False).offsets[1]
    with pytest.raises(CorruptRecordError, match=rf"{path}: record 1 at byte {offset}: "):
        next(running)
    # also lets the worker end: torch waits five seconds for one of a broken-off loop
    assert list(running) == []


def test_errors_of_collating_arrive_with_the_name_of_the_feature(tmp_path):
    sizes = [(2, 2), (2, 3)]
    images = [encode_image(torch.zeros(1, *size, dtype=torch.uint8), "png") for size in sizes]
    path = write(tmp_path / "a", [encode_example({"image": image}) for image in images])
    ds = TFRecordDataset(path, {"image": Image("L")})
    loader = DataLoader(
        ds, batch_size=2, num_workers=1, multiprocessing_context="fork", collate_fn=collate
    )
    running = iter(loader)
    with pytest.raises(
        ValueError, match=r"\['image'\]: cannot batch tensors with different shapes: \[1, 2, 2\]"
    ):
        next(running)
    assert list(running) == []


@pytest.mark.slow
@pytest.mark.parametrize("num_workers", [0, 2])
def test_records_without_features(tmp_path, num_workers):
    payloads = [b"%d\0" % n for n in range(20)]
    path = write(tmp_path / "a", payloads)
    options = {
        "num_workers": num_workers,
        "multiprocessing_context": "fork" if num_workers else None,
    }
    for collate_fn in (None, collate):
        batches = list(
            DataLoader(TFRecordDataset(path), batch_size=8, collate_fn=collate_fn, **options)
        )
        assert batches == [payloads[:8], payloads[8:16], payloads[16:]]
    assert list(DataLoader(TFRecordDataset(path)[::3], batch_size=None, **options)) == payloads[::3]
    stream = TFRecordIterableDataset(path)
    samples = [
        sample
        for batch in DataLoader(stream, batch_size=8, collate_fn=collate, **options)
        for sample in batch
    ]
    assert sorted(samples) == sorted(payloads)


def open_files(folder):
    links = [os.path.join("/proc/self/fd", name) for name in os.listdir("/proc/self/fd")]
    targets = [os.readlink(link) for link in links if os.path.lexists(link)]
    return sorted(target for target in targets if target.startswith(str(folder)))


@pytest.mark.slow
def test_reading_in_workers_opens_nothing_here(tmp_path):
    path = write(tmp_path / "a", [record(n) for n in range(COUNT)])
    ds = TFRecordDataset(path, FEATURES)
    check(
        DataLoader(
            ds, batch_size=4, num_workers=2, multiprocessing_context="fork", collate_fn=collate
        ),
        order=list(range(COUNT)),
    )
    assert open_files(tmp_path) == []
    assert int(ds[0]["n"]) == 0
    assert open_files(tmp_path) == [path]


# Many files, few descriptors

NUM_SHARDS = 1000
FEW_DESCRIPTORS = """
import random, resource, sys, warnings
warnings.simplefilter("error")
warnings.filterwarnings("ignore", "This DataLoader will create")
warnings.filterwarnings("ignore", "This process .* is multi-threaded")
from torch.utils.data import DataLoader
from torch_tfrecord import TFRecordDataset, TFRecordIterableDataset, collate

pattern, limit, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
expected = [b"%d" % number for number in range(count)]

ds = TFRecordDataset(pattern)
order = list(range(count))
random.Random(0).shuffle(order)
assert [ds[position] for position in order] == [expected[position] for position in order]
for num_workers in (0, 2):
    options = {"num_workers": num_workers, "multiprocessing_context": "fork" if num_workers else None}
    batches = DataLoader(ds, batch_size=100, sampler=order, collate_fn=collate, **options)
    assert [record for batch in batches for record in batch] == [expected[position] for position in order]
    # A stream keeps cycle_length files open in each worker, and torch's own pipes take a dozen
    # descriptors there.
    cycle_length = 16 if limit >= 64 or not num_workers else 4
    stream = TFRecordIterableDataset(pattern, shuffle=True, cycle_length=cycle_length, batch_size=100)
    batches = DataLoader(stream, batch_size=None, **options)
    assert sorted(record for batch in batches for record in batch) == sorted(expected)
print("all read")
"""


@pytest.fixture(scope="module")
def thousand_shards(tmp_path_factory):
    folder = tmp_path_factory.mktemp("thousand")
    for number in range(NUM_SHARDS):
        write(folder / f"part-{number:04d}", [b"%d" % (2 * number), b"%d" % (2 * number + 1)])
    return str(folder / "part-*")


@pytest.mark.daily
def test_a_thousand_shards_with_few_file_descriptors(thousand_shards, tmp_path):
    done = run_program(FEW_DESCRIPTORS, tmp_path, thousand_shards, 32, 2 * NUM_SHARDS)
    assert (done.returncode, done.stdout, done.stderr) == (0, "all read\n", "")
