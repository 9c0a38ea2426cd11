"""Plain loops that set no epoch: new random crops in each, in any loader; the same ones where an
epoch is known.
"""

import pickle
from itertools import combinations

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

from torch_tfrecord import (
    FixedLenFeature,
    Image,
    Mixture,
    ParseError,
    RandomResizedCrop,
    RecordSampler,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    collate,
    encode_image,
    make_dataloader,
)
from torch_tfrecord.loading import ReadAheadLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)
N, SIZE = 12, 32
FEATURES = {
    "image": Image(crop=RandomResizedCrop(2, interpolation="nearest", horizontal_flip=0.5)),
    "id": FixedLenFeature((), torch.int64),
}


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """Images whose red, green and blue are row, column and number: a crop's pixels say where it was
    cut.
    """
    path = tmp_path_factory.mktemp("images") / "a"
    rows, columns = torch.meshgrid(torch.arange(SIZE), torch.arange(SIZE), indexing="ij")
    with TFRecordWriter(path, write_index=True) as writer:
        for number in range(N):
            pixels = torch.stack([rows, columns, torch.full_like(rows, number)]).to(torch.uint8)
            writer.write({"image": encode_image(pixels, "png"), "id": number})
    return str(path)


@pytest.fixture
def ds(path):
    return TFRecordDataset(path, FEATURES)


def crops(batches):
    """For each record its crop; of batches or samples."""
    found = {}
    for batch in batches:
        for number, image in zip(
            batch["id"].reshape(-1).tolist(), batch["image"].reshape(-1, 3, 2, 2), strict=True
        ):
            assert (image[2] == number).all()
            rows, columns = image[0].int(), image[1].int()
            assert (rows[0] < rows[1]).all()
            assert (columns[:, 0] != columns[:, 1]).all()
            found[number] = tuple(image.reshape(-1).tolist())
    assert sorted(found) == list(range(N))
    return found


def check_different(epochs):
    """Two crops can be the same by chance, but not those of many records."""
    for first, second in combinations(epochs, 2):
        assert sum(first[number] == second[number] for number in range(N)) < N // 3


def make(ds, num_workers=0, **options):
    options.setdefault("collate_fn", collate)
    return DataLoader(ds, 5, shuffle=True, num_workers=num_workers, **options)


LOADERS = {
    "plain": make,
    "torch's collate": lambda ds: make(ds, collate_fn=None),
    "one by one": lambda ds: ds,
    "batch_size=None": lambda ds: DataLoader(ds, batch_size=None),
    "transform": lambda ds: make(TFRecordDataset(ds.files, FEATURES, transform=dict)),
    "Subset": lambda ds: make(Subset(ds, range(N))),
    "slice": lambda ds: make(ds[::-1]),
    "ConcatDataset": lambda ds: make(ConcatDataset([ds[:5], ds[5:]])),
    "Mixture": lambda ds: make(Mixture([ds[:5], ds[5:]], stop="all_exhausted_without_replacement")),
    "Mixture of mixtures": lambda ds: make(Mixture([Mixture([ds])])),
    "Mixture of Subset": lambda ds: make(Mixture([Subset(ds, range(N))])),
    "threads": lambda ds: ReadAheadLoader(ds, num_threads=2, batch_size=5, shuffle=True),
    "threads, Subset": lambda ds: ReadAheadLoader(
        Subset(ds, range(N)), num_threads=2, batch_size=5, shuffle=True
    ),
    "threads, Mixture": lambda ds: ReadAheadLoader(Mixture([ds]), num_threads=2, batch_size=5),
    "make_dataloader of a Subset": lambda ds: make_dataloader(Subset(ds, range(N)), 5),
    "make_dataloader of datasets": lambda ds: make_dataloader(
        ConcatDataset([ds[:5], Subset(ds, range(5, N))]), 5
    ),
    "stream": lambda ds: TFRecordIterableDataset(ds.files, FEATURES),
    "stream's batches": lambda ds: TFRecordIterableDataset(ds.files, FEATURES, batch_size=5),
}


@pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)
def test_every_epoch_has_its_own_crops(ds, loader):
    loader = loader(ds)
    check_different([crops(loader) for _ in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("persistent_workers", [False, True])
@pytest.mark.parametrize(
    "method",
    [
        "fork",
        pytest.param("forkserver", marks=pytest.mark.slow),
        pytest.param("spawn", marks=pytest.mark.daily),
    ],
)
@pytest.mark.parametrize("kind", ["records", "stream"])
def test_with_workers(path, kind, method, persistent_workers):
    options = {
        "num_workers": 2,
        "multiprocessing_context": method,
        "persistent_workers": persistent_workers,
    }
    if kind == "records":
        loader = make(TFRecordDataset(path, FEATURES), **options)
    else:
        loader = DataLoader(
            TFRecordIterableDataset(path, FEATURES, batch_size=2), batch_size=None, **options
        )
    check_different([crops(loader) for _ in range(3)])


@pytest.mark.parametrize(
    "loader", ["plain", "one by one", "Mixture", "threads", "threads, Subset", "threads, Mixture"]
)
def test_torch_s_seed_decides_a_plain_loop(ds, loader):
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append([crops(LOADERS[loader](ds)) for _ in range(2)])
    assert runs[0] == runs[1]
    check_different(runs[0] + runs[2])


@pytest.mark.slow
def test_torch_s_seed_decides_in_workers(ds):
    runs = []
    for _ in range(2):
        torch.manual_seed(1)
        loader = make(ds, 2, persistent_workers=True)
        runs.append([crops(loader) for _ in range(2)])
    assert runs[0] == runs[1]


@pytest.mark.daily
@pytest.mark.usefixtures("random_states_untouched")
def test_a_chosen_epoch_decides(ds, path):
    generator, epochs = torch.Generator(), {}
    for epoch in (0, 1):
        ds.set_epoch(epoch)
        epochs[epoch] = crops(ds)
        for loader in (
            make(ds, generator=generator),
            make(ds, 2, generator=generator),
            make(Subset(ds, range(N)), generator=generator),
            ReadAheadLoader(ds, num_threads=2, batch_size=4, generator=generator),
            pickle.loads(pickle.dumps(ds)),
        ):
            assert crops(loader) == epochs[epoch]
    check_different(list(epochs.values()))
    lasting = make(ds, 2, generator=generator, persistent_workers=True)
    for epoch in (1, 0):
        ds.set_epoch(epoch)
        assert crops(lasting) == epochs[epoch]
    for num_workers in (0, 2):
        loader = make_dataloader(path, 5, FEATURES, num_workers=num_workers)
        assert [crops(loader), crops(loader)] == [epochs[0], epochs[1]]


@pytest.mark.daily
@pytest.mark.usefixtures("random_states_untouched")
@pytest.mark.parametrize("num_workers", [0, 2])
def test_our_samplers_know_the_epoch(path, num_workers):
    ds, options = (
        TFRecordDataset(path, FEATURES),
        {"num_workers": num_workers, "generator": torch.Generator()},
    )
    expected = TFRecordDataset(path, FEATURES)
    sampler = RecordSampler(ds)
    loader = DataLoader(ds, 5, sampler=sampler, collate_fn=collate, **options)
    batches = DataLoader(
        ds, batch_sampler=make_dataloader(ds, 5).batch_sampler, collate_fn=collate, **options
    )
    for epoch in (0, 1):
        expected.set_epoch(epoch)
        sampler.set_epoch(epoch)
        assert crops(loader) == crops(batches) == crops(expected)
    assert crops(DataLoader(ds, batch_size=None, sampler=sampler, **options)) == crops(expected)


def test_datasets_inside_others_know_the_epoch_of_make_dataloader(ds):
    whole, part = (
        make_dataloader(ds, 5, seed=3),
        make_dataloader(Subset(ds, range(N)), 4, seed=3, num_threads=0),
    )
    assert [crops(whole) for _ in range(2)] == [crops(part) for _ in range(2)]


def test_crops_change_nothing_about_which_records_a_mixture_gives(ds):
    plain = TFRecordDataset(ds.files, {"id": FEATURES["id"]})
    runs = []
    for dataset in (plain, ds):
        mixture = Mixture([dataset[:5], dataset[5:]], weights=[2, 1], seed=1, num_samples=7)
        sampler = RecordSampler(mixture, shuffle=False)
        runs.append([])
        for epoch in range(3):
            sampler.set_epoch(epoch)
            runs[-1].append([int(sample["id"]) for sample in mixture.__getitems__(list(sampler))])
    assert runs[0] == runs[1]


def test_positions_know_their_epoch_where_it_matters(ds):
    position = next(iter(RecordSampler(ds, seed=1)))
    again = pickle.loads(pickle.dumps(position))
    assert (again, again.epoch) == (position, 0) == (next(iter(RecordSampler(range(N), seed=1))), 0)
    assert type(next(iter(RecordSampler(range(N), seed=1)))) is int


@pytest.mark.usefixtures("random_states_untouched")
def test_no_random_state_is_read_without_crops(path):
    ds = TFRecordDataset(path, {"id": FixedLenFeature((), torch.int64)})
    ds[0]
    ds.__getitems__([1, 2])
    Mixture([ds])[0]
    generator = torch.Generator()
    for loader in (
        make(ds, generator=generator),
        ReadAheadLoader(ds, num_threads=1, generator=generator),
    ):
        assert len(list(loader)) > 1
    stream = TFRecordIterableDataset(path, FEATURES, shuffle=True, shuffle_buffer_size=5)
    check_different([crops(stream) for _ in range(3)])  # by seed and epoch alone


def test_a_record_twice_in_a_batch_is_drawn_twice(ds):
    samples = ds.__getitems__([3] * 4)
    assert len({tuple(sample["image"].flatten().tolist()) for sample in samples}) > 1


def test_a_batch_that_is_read_again_one_by_one_has_the_same_draws(ds, monkeypatch):
    """As where a record is damaged: one salt for a batch."""
    runs = []
    for fails in (False, True):
        torch.manual_seed(3)
        if fails:
            monkeypatch.setattr(type(ds), "_load_batches", _fail)
        runs.append(
            (
                [
                    tuple(sample["image"].flatten().tolist())
                    for sample in ds.__getitems__([4, 1, 4])
                ],
                torch.rand(()),
            )
        )
    assert runs[0] == runs[1]


def _fail(ds, batches):
    raise ParseError("some record does not fit")
