"""make_dataloader and ReadAheadLoader over datasets: slices, Subset, random_split, ConcatDataset,
Mixture, RLDS.

Covers loading/read_ahead.
"""

import itertools
import json

import numpy as np
import pytest
import torch
from rlds_episodes import write_episodes
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Subset,
    random_split,
)

from torch_tfrecord import (
    CompressionError,
    CorruptRecordError,
    FixedLenFeature,
    Image,
    IndexMismatchError,
    Mixture,
    RandomResizedCrop,
    RecordSampler,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_image,
    make_dataloader,
    tfds,
)
from torch_tfrecord.loading import ReadAheadLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)
FEATURES = {
    "id": FixedLenFeature((), torch.int64),
    "label": FixedLenFeature((), torch.int64),
    "ids": VarLenFeature(torch.int64),
}
N = 40


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    prefix = tmp_path_factory.mktemp("datasets") / "train"
    with ShardedTFRecordWriter(prefix, num_shards=3, write_index=True) as writer:
        for number in range(N):
            writer.write({"id": number, "label": number % 3, "ids": torch.arange(number % 4)})
    return f"{prefix}-*"


@pytest.fixture(scope="module")
def ds(files):
    return TFRecordDataset(files, FEATURES)


@pytest.fixture(scope="module")
def numbers(ds):
    """The id at each position: shards are written in turn."""
    return [int(sample["id"]) for sample in ds]


def double(sample):
    return sample | {"id": sample["id"] * 2}


def ids(loader):
    return [batch["id"].tolist() for batch in loader]


class Plain:
    """A dataset of somebody else's: nothing but a length and an item."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, position):
        return self.dataset[position]


class Doubled(TFRecordDataset):
    """A user's class, as people write them."""

    def __getitem__(self, position):
        return double(super().__getitem__(position))


class DoubledBoth(Doubled):
    def __getitems__(self, positions):
        return [self[position] for position in positions]


DATASETS = {
    "whole": lambda ds: ds,
    "slice": lambda ds: ds[3:31:2],
    "backwards": lambda ds: ds[::-1],
    "subset": lambda ds: Subset(ds, [7, 7, -1, 0, 39, 12]),
    "split": lambda ds: random_split(ds, [0.7, 0.3], generator=torch.Generator().manual_seed(0))[0],
    "both": lambda ds: ConcatDataset([ds[:9], ds[20:]]),
    "deep": lambda ds: Subset(
        ConcatDataset([Subset(ds, range(5, 25)), ds[30:], Subset(ds, [1, 2])]), range(1, 30)
    ),
    "mixture": lambda ds: Mixture([ds[:20], Subset(ds, range(20, 40))], weights=[1, 2], seed=3),
    "plain": lambda ds: Plain(ds),
    "both with plain": lambda ds: ConcatDataset([ds[:9], Plain(ds)]),
}
WAYS = {
    "threads": {"num_threads": 2},
    "no threads": {"num_threads": 0},
    "workers": {"num_workers": 2},
}


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DATASETS)
def test_every_dataset_in_the_order_of_the_sampler(ds, name, way):
    dataset = DATASETS[name](ds)
    order = list(make_dataloader(dataset, 4, seed=5, num_epochs=2).batch_sampler)
    expected = [[int(sample["id"]) for sample in _samples(dataset, batch)] for batch in order]
    loader = make_dataloader(dataset, 4, seed=5, num_epochs=2, **WAYS[way])
    assert len(loader) == len(order)
    assert ids(loader) == expected
    assert loader.epoch == 2


def _samples(dataset, batch):
    if isinstance(dataset, Mixture):
        return dataset.__getitems__(batch)  # which goes by the batch's epoch
    return [dataset[position] for position in batch]


@pytest.mark.daily
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *itertools.product(DATASETS, ["threads", "no threads"]),
        ("deep", "workers"),
        ("both with plain", "workers"),
    ],
)
def test_the_state_resumes(ds, name, way):
    dataset = DATASETS[name](ds)
    loader = make_dataloader(dataset, 3, num_epochs=2, **WAYS[way])
    found, states = [], [loader.state_dict()]
    for batch in loader:
        found.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    for place in (0, 1, len(found) // 2 + 1, len(found)):
        again = make_dataloader(dataset, 3, num_epochs=2, **WAYS[way])
        again.load_state_dict(states[place])
        assert len(again) == len(found) - place
        assert ids(again) == found[place:]


@pytest.mark.parametrize("way", WAYS)
def test_threads_are_used_where_all_is_ours(ds, way):
    for name, dataset in DATASETS.items():
        loader = make_dataloader(dataset(ds), 4, **WAYS[way])
        assert loader.num_threads == (
            0 if "plain" in name else WAYS[way].get("num_threads", loader.num_threads)
        )
    assert make_dataloader(ds, 4).dataset is ds


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_label_and_transform_come_after_the_datasets_own(files, way):
    own = Subset(TFRecordDataset(files, FEATURES, transform=double), [3, 1])
    plain = TFRecordDataset(files, FEATURES)
    expected = [4 * int(plain[position]["id"]) for position in (3, 1)]
    loader = make_dataloader(own, 2, label_key="id", transform=double, shuffle=False, **WAYS[way])
    (features, label), *_ = list(loader)
    assert (list(features), label.tolist()) == (["label", "ids"], expected)
    (features, label), *_ = list(
        make_dataloader(plain[:2], 2, label_key="label", shuffle=False, **WAYS[way])
    )
    assert (list(features), features["ids"].layout) == (["id", "ids"], torch.jagged)


def test_label_that_is_not_there(ds):
    text = "^the dataset or the transform must return a mapping with the key label_key='q'$"
    with pytest.raises(ValueError, match=text):
        next(iter(make_dataloader(ds, 2, label_key="q")))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("features", FEATURES),
        ("compression_type", None),
        ("verify_crc", False),
        ("index", "memory"),
        ("index_dir", "/tmp"),
    ],
)
def test_what_belongs_to_the_dataset(ds, name, value):
    text = f"^{name} cannot be given with a dataset: pass it to the dataset itself, got a Subset$"
    with pytest.raises(ValueError, match=text):
        make_dataloader(Subset(ds, [0]), 2, **{name: value})


def test_no_dataset(files, ds):
    text = r"expected paths, or a dataset with a length and ds\[i\], got TFRecordIterableDataset: pass streams to"
    with pytest.raises(TypeError, match=text):
        make_dataloader(TFRecordIterableDataset(files), 2)
    with pytest.raises(TypeError, match='a Mixture with stop="never" has no length'):
        make_dataloader(Mixture([ds], stop="never"), 2)


# Keywords of TFRecordDataset.


def test_verify_crc(tmp_path):
    with TFRecordWriter(tmp_path / "a") as writer:
        writer.write(b"payload")
    content = bytearray((tmp_path / "a").read_bytes())
    content[13] ^= 1
    (tmp_path / "a").write_bytes(content)
    with pytest.raises(CorruptRecordError, match="expected payload checksum"):
        make_dataloader(tmp_path / "a", 1, index="memory")
    assert next(iter(make_dataloader(tmp_path / "a", 1, verify_crc=False))) == [b"p`yload"]


def test_compression_type_index_and_index_dir(tmp_path):
    (tmp_path / "indexes").mkdir()
    with TFRecordWriter(tmp_path / "a") as writer:
        writer.write(b"payload")
    with pytest.raises(CompressionError, match="expected a gzip stream"):
        make_dataloader(tmp_path / "a", 1, compression_type="GZIP")
    with pytest.raises(IndexMismatchError):
        make_dataloader(tmp_path / "a", 1, index="require")
    make_dataloader(tmp_path / "a", 1, index="memory")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "indexes"}
    make_dataloader(tmp_path / "a", 1, index_dir=tmp_path / "indexes")
    assert {path.name for path in tmp_path.iterdir()} == {"a", "indexes"}
    assert len(list((tmp_path / "indexes").rglob("*"))) >= 1


# ReadAheadLoader.


def test_read_ahead_loader_says_what_it_cannot_read(ds):
    text = "and Subset, ConcatDataset and Mixture of them, got Plain: use DataLoader, or num_threads=0$"
    with pytest.raises(TypeError, match=text):
        ReadAheadLoader(ConcatDataset([ds, Plain(ds)]), num_threads=1)
    assert len(list(ReadAheadLoader(Plain(ds), num_threads=0, batch_size=10))) == 4


# Classes of users.


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Doubled, DoubledBoth])
def test_an_overridden_item_counts_everywhere(files, numbers, kind):
    mine = kind(files, FEATURES)
    expected = [2 * number for number in numbers]
    for loader in (
        make_dataloader(mine, 8, shuffle=False),
        make_dataloader(Subset(mine, range(N)), 8, shuffle=False, num_workers=1),
        DataLoader(mine, 8, collate_fn=collate),
        DataLoader(Subset(mine, range(N)), 8, collate_fn=collate),
    ):
        assert [number for batch in ids(loader) for number in batch] == expected


# Blocks.


def test_blocks_of_parts(ds):
    part = random_split(ds, [30, 10], generator=torch.Generator().manual_seed(0))[0]
    for dataset in (part, ConcatDataset([part, ds[5:9]]), ds[::-1]):
        sampler = RecordSampler(dataset, shuffle="blocks", seed=1, block_bytes=200, window_blocks=2)
        first = list(sampler)
        assert sorted(first) == list(range(len(dataset)))
        sampler.set_epoch(1)
        assert list(sampler) != first
        loader = make_dataloader(dataset, 4, shuffle="blocks")
        assert sorted(number for batch in ids(loader) for number in batch) == sorted(
            int(s["id"]) for s in _all(dataset)
        )
    sampler = RecordSampler(part, shuffle="blocks", seed=1, block_bytes=200, window_blocks=1)
    # One block a window: what is read together lies together, whatever the part's own order is.
    places = [ds.locate(part.indices[position]) for position in sampler]
    blocks = [(path, offset // 200) for path, offset in places]
    assert sum(one != other for one, other in itertools.pairwise(blocks)) == len(set(blocks)) - 1


def _all(dataset):
    return [dataset[position] for position in range(len(dataset))]


@pytest.mark.parametrize("name", ["mixture", "plain", "both with plain"])
def test_blocks_of_what_has_none(ds, name):
    dataset = DATASETS[name](ds)
    with pytest.raises(
        ValueError, match=f"expected a TFRecordDataset, got {type(dataset).__name__}"
    ):
        make_dataloader(dataset, 4, shuffle="blocks")


# Random draws.


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_crops_are_those_of_epoch_and_record(tmp_path, way):
    picture = torch.arange(3 * 40 * 50).remainder(251).to(torch.uint8).reshape(3, 40, 50)
    with TFRecordWriter(tmp_path / "a") as writer:
        for _ in range(6):
            writer.write({"image": encode_image(picture, "jpeg")})
    ds = TFRecordDataset(tmp_path / "a", {"image": Image(crop=RandomResizedCrop(16))})
    part = Subset(ConcatDataset([Subset(ds, [4, 2]), ds[3:]]), [3, 0, 1])
    loader = make_dataloader(part, 2, shuffle=False, **WAYS[way])
    crops = [[image for batch in loader for image in batch["image"]] for _ in range(3)]
    for epoch, found in enumerate(crops):
        ds.set_epoch(epoch)
        expected = [ds[position]["image"] for position in (4, 4, 2)]
        assert all(torch.equal(one, other) for one, other in zip(found, expected, strict=True))
    assert not torch.equal(crops[0][0], crops[1][0])


# TensorFlow Datasets.


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0")


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_rlds_and_tfds(episodes, way):
    steps = tfds.RLDSDataset(episodes, "train", index="memory")
    part = Subset(steps, [7, 0, 3, 3])
    batches = list(make_dataloader(part, 3, shuffle=False, **WAYS[way]))
    assert [batch["_frame_index"].tolist() for batch in batches] == [
        [steps[position]["_frame_index"] for position in positions]
        for positions in ((7, 0, 3), (3,))
    ]
    found = steps[[7, 0]]
    assert found["action"].shape[0] == 2
    assert found["action"].equal(torch.stack([steps[7]["action"], steps[0]["action"]]))
    records = tfds.load(episodes, "train", index="memory")
    loader = make_dataloader(
        Subset(records, [2, 0]), 2, shuffle=False, collate_fn=list, **WAYS[way]
    )
    found = [[len(sample["steps"]["action"]) for sample in batch] for batch in loader]
    assert found == [[len(records[position]["steps"]["action"]) for position in (2, 0)]]


# Batches of positions.


@pytest.mark.parametrize("kind", [list, np.array, torch.tensor, lambda p: np.array(p, np.int32)])
def test_a_list_of_positions_is_a_batch(ds, numbers, kind):
    batch = ds[kind([3, -1, 3])]
    assert batch["id"].tolist() == [numbers[3], numbers[-1], numbers[3]]
    assert batch["ids"].layout == torch.jagged
    assert ds[2:][kind([0])]["id"].tolist() == [numbers[2]]
    assert Subset(ds, [5, 6])[[1, 0]]["id"].tolist() == [numbers[6], numbers[5]]


def test_wrong_batches_of_positions(ds):
    with pytest.raises(
        TypeError, match=r"positions must be integers, got booleans: mask\.nonzero\(\)"
    ):
        ds[np.ones(N, bool)]
    with pytest.raises(TypeError, match="positions must be integers, got booleans"):
        ds[[True, False]]
    with pytest.raises(IndexError, match=f"position {N} is out of range for {N} records"):
        ds[[0, N]]
    with pytest.raises(ValueError, match="a batch needs at least one sample"):
        ds[[]]
