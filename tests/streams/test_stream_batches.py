"""Batches of a stream's samples: joined from the columns of the parts that were parsed together, and
nobody else ever sees their memory.
"""

import itertools

import numpy as np
import pytest
import torch
from batches import assert_same
from torch.utils.data import DataLoader

from torch_tfrecord import (
    FixedLenFeature,
    ParseError,
    Text,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
)

ROWS = 700
WIDTH = 200  # 64 rows come from the memory that is used again
FEATURES = {
    "row": FixedLenFeature((WIDTH,), torch.int64),
    "float": FixedLenFeature((WIDTH,), torch.float32),
    "label": FixedLenFeature((), torch.int64),
    "var": VarLenFeature(torch.int64),
    "name": FixedLenFeature((), bytes),
    "text": Text(),
}


def sample_of(number):
    return {
        "row": np.full(WIDTH, number),
        "float": np.full(WIDTH, number, np.float32),
        "label": number,
        "var": np.arange(number % 5),
        "name": b"%d" % number,
        "text": f"é{number}",
    }


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three files, so that batches cross their ends."""
    folder = tmp_path_factory.mktemp("files")
    for letter, begin, end in (("a", 0, 301), ("b", 301, 302), ("c", 302, ROWS)):
        with TFRecordWriter(folder / f"{letter}.tfrecord") as writer:
            for number in range(begin, end):
                writer.write(encode_example(sample_of(number)))
    return folder


def stream(folder, **options):
    return TFRecordIterableDataset(folder / "*.tfrecord", FEATURES, **options)


def batches_of(folder, way, size):
    collate_fn = None if way == "torch" else collate
    source = TFRecordDataset(folder / "*.tfrecord", FEATURES) if way == "map" else stream(folder)
    return DataLoader(source, size, collate_fn=collate_fn)


def looked_at(samples):
    """The samples as plain dicts, whose batch is made value by value."""
    return collate([dict(sample) for sample in samples])


@pytest.mark.daily
@pytest.mark.parametrize("options", [{}, {"cycle_length": 2}, {"shuffle_buffer_size": 40}], ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 256, ROWS + 1])
def test_batches_are_the_samples(folder, size, options):
    samples = iter(stream(folder, **options))
    num_batches = 0
    batches = DataLoader(stream(folder, **options), size, collate_fn=collate)
    for num_batches, batch in enumerate(batches, 1):  # noqa: B007
        assert_same(batch, looked_at(itertools.islice(samples, size)))
    assert num_batches == -(-ROWS // size)
    assert next(samples, None) is None


@pytest.mark.parametrize("way", ["map", "stream", "torch"])
def test_what_is_kept_never_changes(folder, way):
    """A batch, and a view of one that is gone, while a hundred others pass and are written to."""
    loader = batches_of(folder, way, 64)
    batches = [batch for batch, _ in zip(loader, range(4), strict=False)]
    kept, view = batches[2], batches[3]["row"][5, 10:]
    expected = {name: kept[name].clone() for name in ("row", "float", "label")}
    del batches
    passed = 0
    while passed < 100:
        for batch in loader:
            for name in expected:
                batch[name].fill_(-1)
            passed += 1
    for name, values in expected.items():
        assert torch.equal(kept[name], values)
    assert kept["label"].tolist() == [*range(128, 192)]
    assert view.tolist() == [192 + 5] * (WIDTH - 10)


@pytest.mark.parametrize("way", ["map", "stream", "torch"])
def test_each_tensor_has_a_version_of_its_own(folder, way):
    first, second = itertools.islice(batches_of(folder, way, 64), 2, 4)
    first["row"].add_(1)
    tensors = [
        first["float"],
        first["label"],
        *(second[name] for name in ("row", "float", "label")),
    ]
    assert first["row"]._version == 1
    assert [tensor._version for tensor in tensors] == [0] * 5
    assert second["label"].tolist() == [*range(192, 256)]


def test_samples_before_a_bad_record_come_before_its_error(tmp_path):
    with TFRecordWriter(tmp_path / "bad") as writer:
        for number in range(300):
            writer.write(encode_example({"label": b"x" if number == 250 else number}))
    features = {"label": FixedLenFeature((), torch.int64)}
    samples, labels = iter(TFRecordIterableDataset(tmp_path / "bad", features)), []
    with pytest.raises(ParseError, match=r"bad: record 250 at byte \d+: "):
        while True:
            labels += [int(label) for label in collate([*itertools.islice(samples, 60)])["label"]]
    assert labels == [*range(240)]
    samples = iter(TFRecordIterableDataset(tmp_path / "bad", features))
    collate([*itertools.islice(samples, 60)])
    assert [int(next(samples)["label"]) for _ in range(190)] == [*range(60, 250)]
