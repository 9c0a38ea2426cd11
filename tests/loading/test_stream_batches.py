"""Batches of a stream's samples: whole parts are taken as they are, and nobody else ever sees their
memory.
"""

import itertools

import numpy as np
import pytest
import torch
from batches import assert_same
from torch.utils.data import DataLoader, default_collate

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
from torch_tfrecord.loading.record_groups import GroupCutter, PartSizes, RecordGroup
from torch_tfrecord.loading.sample_block import SampleBlock

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


@pytest.fixture
def taken(monkeypatch):
    """Of each batch whether its columns were taken; copied ones are not in it."""
    found, take = [], SampleBlock.take
    monkeypatch.setattr(SampleBlock, "take", lambda block: found.append(take(block)) or found[-1])
    return found


def stream(folder, **options):
    return TFRecordIterableDataset(folder / "*.tfrecord", FEATURES, **options)


def batches_of(folder, way, size):
    collate_fn = None if way == "torch" else collate
    source = TFRecordDataset(folder / "*.tfrecord", FEATURES) if way == "map" else stream(folder)
    return DataLoader(source, size, collate_fn=collate_fn)


def looked_at(samples):
    """The samples as plain dicts, whose batch is made value by value."""
    return collate([dict(sample) for sample in samples])


@pytest.mark.parametrize("options", [{}, {"cycle_length": 2}, {"shuffle_buffer_size": 40}], ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 256, ROWS + 1])
def test_batches_are_the_samples(folder, taken, size, options):
    samples = iter(stream(folder, **options))
    num_batches = 0
    batches = DataLoader(stream(folder, **options), size, collate_fn=collate)
    for num_batches, batch in enumerate(batches, 1):  # noqa: B007
        assert_same(batch, looked_at(itertools.islice(samples, size)))
    assert num_batches == -(-ROWS // size)
    assert next(samples, None) is None
    whole = sum(columns is not None for columns in taken)
    # the first is made of several parts
    assert whole >= num_batches - 2 if 16 <= size <= ROWS else whole <= 1


def test_torchs_batches_are_taken_too(folder, taken):
    samples = iter(stream(folder))
    features = {name: FEATURES[name] for name in ("row", "label", "name")}
    batches = DataLoader(TFRecordIterableDataset(folder / "*.tfrecord", features), 64)
    for batch in batches:
        expected = default_collate(
            [{name: dict(s)[name] for name in features} for s in itertools.islice(samples, 64)]
        )
        assert_same(batch, expected)
    assert len([columns for columns in taken if columns]) >= ROWS // 64 - 1


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


def a_whole_part(folder):
    """The samples of one part, as the stream gives them to whoever makes batches of 64."""
    samples = iter(stream(folder))
    for _ in range(2):
        collate([*itertools.islice(samples, 64)])
    return [*itertools.islice(samples, 64)]


def test_samples_outlive_their_batch(folder, taken):
    """Whatever is done to a batch, its samples stay what they were, and make the same batch
    again.
    """
    samples = a_whole_part(folder)
    first = collate(samples)
    assert taken[-1] is not None
    for name in ("row", "float", "label"):
        first[name].fill_(-1)
    first["name"][:] = [b"changed"] * 64
    first["var"].values().fill_(-1)
    second = collate(samples)
    assert_same(second, collate([*itertools.islice(stream(folder), 128, 192)]))
    second["row"].fill_(-2)
    assert dict(samples[3])["row"].tolist() == [131] * WIDTH
    assert samples[4]["name"] == b"132"
    assert samples[5]["float"].tolist() == [133.0] * WIDTH


def test_a_sample_that_was_looked_at_shares_nothing_with_the_batch(folder, taken):
    samples = a_whole_part(folder)
    seen = samples[7]["row"]
    batch = collate(samples)
    assert not any(columns is not None for columns in taken)
    batch["row"].fill_(-1)
    assert seen.tolist() == [135] * WIDTH
    samples = a_whole_part(folder)
    samples[7]["row"].fill_(-5)  # what is done to a sample in place counts
    samples[8]["label"] = torch.tensor(-6)
    batch = collate(samples)
    assert batch["row"][:, 0].tolist() == [*range(128, 135), -5, *range(136, 192)]
    assert batch["label"].tolist() == [*range(128, 136), -6, *range(137, 192)]


def test_some_or_reordered_samples_of_a_part_are_copied(folder, taken):
    samples = a_whole_part(folder)
    number = len(taken)
    assert collate(samples[::-1])["label"].tolist() == [*range(191, 127, -1)]
    assert collate(samples[1:])["label"].tolist() == [*range(129, 192)]
    assert collate([*samples, samples[0]])["label"].tolist() == [*range(128, 192), 128]
    assert not any(columns is not None for columns in taken[number:])


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


# How much is parsed together.


def test_sizes_follow_the_batches():
    sizes, mega = PartSizes(), 1 << 20
    usual = [sizes.after(0)[0] for _ in range(8)]
    assert usual == [16, 32, 64, 128, 256, 512, 1024, 1024]
    sizes.learn(256, 300, 44)  # 300 samples, which end 44 rows behind the 256th
    assert sizes.after(496) == (300 - 196, 64 * mega, True)
    assert sizes.after(300) == (300, 64 * mega, True)
    assert sizes.after(600) == (1024, mega, False)  # nobody made a batch of those
    assert sizes.after(299) == (1024, mega, False)  # an older batch, made late
    sizes.learn(600, 5, 10)
    assert sizes.after(612)[0] == 13  # small ones together: up to 625


def group(numbers, size=10):
    return RecordGroup.of([(bytes([n]) * size, 0, 0, n) for n in numbers])


def test_groups_are_cut_anew():
    def groups():
        yield group(range(5))
        yield group(range(5, 12))
        raise OSError("no more")

    cutter = GroupCutter(groups())

    def cut(*arguments):
        found = cutter.cut(*arguments)
        assert [payload[0] for payload in found.records.tolist()] == found.numbers.tolist()
        return found.numbers.tolist()

    assert cut(3, 1000, False) == [0, 1, 2]
    assert cut(3, 1000, False) == [3, 4]
    assert cut(3, 20, True) == [5, 6]
    assert cut(1, 1, False) == [7]  # one, however large
    assert cut(9, 1000, True) == [8, 9, 10, 11]
    for _ in range(2):  # the error comes behind what was before it, and stays
        with pytest.raises(OSError, match="no more"):
            cutter.cut(9, 1000, True)
    empty = GroupCutter(iter([]))
    assert empty.cut(9, 1000, True) is None
