"""Compressed files by position: shuffled in blocks, entered at seek points, and what is said of
it.
"""

import json
import warnings
from pkgutil import resolve_name

import pytest
import torch
from torch.utils.data import DataLoader, random_split

from torch_tfrecord import (
    FixedLenFeature,
    Mixture,
    RecordSampler,
    TFRecordDataset,
    TFRecordWriter,
    collate,
    make_dataloader,
)
from torch_tfrecord.compression import CODECS, InflatedFiles
from torch_tfrecord.loading import ReadAheadLoader

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:This process .* is multi-threaded"
)

FEATURES = {"id": FixedLenFeature((), torch.int64)}
SIZES = [150, 40, 200, 90, 120]
N = sum(SIZES)
SAID = "compressed files are shuffled in blocks of 4 MiB, mixed within windows of 64 MiB"
SLOW = "random access in a compressed file decompresses from the last seek point"
MEMBER_BYTES = 300  # about 7 records


@pytest.fixture(scope="module", params=[".gz", ".zlib"])
def files(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("compressed")
    numbers = iter(range(N))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch_tfrecord.compression.seek_points._MEMBER_SPACING", 1)
        for file, size in enumerate(SIZES):
            path = folder / f"part-{file}{request.param}"
            with TFRecordWriter(path, write_index=True, member_bytes=MEMBER_BYTES) as writer:
                for _ in range(size):
                    writer.write({"id": next(numbers)})
    return f"{folder}/part-*"


@pytest.fixture
def small_windows(monkeypatch):
    """All of the 23 KB are kept, but that is more than a sampler counts on."""

    def inflated_files():
        files = InflatedFiles()
        files.most_bytes = 4000
        return files

    monkeypatch.setattr(CODECS, "inflated_files", inflated_files)


@pytest.fixture
def inflations(monkeypatch):
    """The path and the first byte of each stretch that was decompressed. Two threads may open the
    same one at once, of which only one is read.
    """
    begun = []
    more_of = "torch_tfrecord.compression.inflated.InflatedSource._more"
    decompress = resolve_name(more_of)

    def more(self):
        if self._produced == self._start.offset:
            begun.append((self.path, self._start.offset))
        return decompress(self)

    monkeypatch.setattr(more_of, more)
    return begun


def ids(loader):
    return [batch["id"].tolist() for batch in loader]


def joined(lists):
    return [number for numbers in lists for number in numbers]


WAYS = {
    "threads": {"num_threads": 2},
    "no threads": {"num_threads": 0},
    "workers": {"num_workers": 2},
}


@pytest.mark.slow
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("way", WAYS)
def test_one_warning_at_the_users_line_and_each_record_once(files, way):
    with pytest.warns(UserWarning, match=SAID) as caught:
        loader = make_dataloader(files, 4, FEATURES, **WAYS[way])
        epochs = [joined(ids(loader)) for _ in range(2)]
    # Since Python 3.12 forks of a process with threads warn, too.
    ours = [warning for warning in caught if not issubclass(warning.category, DeprecationWarning)]
    assert [(warning.filename, SAID in str(warning.message)) for warning in ours] == [
        (__file__, True)
    ]
    assert [sorted(epoch) for epoch in epochs] == [list(range(N))] * 2
    assert epochs[0] != epochs[1]
    # without a warning
    plain = make_dataloader(files, 4, FEATURES, shuffle="blocks", num_threads=0)
    assert [joined(ids(plain)) for _ in range(2)] == epochs
    assert joined(ids(make_dataloader(files, 4, FEATURES, shuffle="blocks", seed=1))) != epochs[0]


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_files_that_are_kept_whole_are_shuffled_exactly_without_a_warning(files, inflations, way):
    ds = TFRecordDataset(files, FEATURES)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        for source in (files, ds):
            loader = make_dataloader(
                source, 4, FEATURES if source is files else None, seed=3, **WAYS[way]
            )
            assert joined(ids(loader)) == list(RecordSampler(ds, seed=3))
        assert sorted(joined(ids(DataLoader(ds, 50, shuffle=True, collate_fn=collate)))) == list(
            range(N)
        )
        assert [ds[number]["id"].item() for number in (N - 1, 0, 300)] == [N - 1, 0, 300]
        mixed = make_dataloader(
            Mixture([ds, ds[:9]], stop="all_exhausted_without_replacement"), 100, **WAYS[way]
        )
        assert len(joined(ids(mixed))) == N + 9
    assert max(map(inflations.count, inflations)) <= 2  # of two datasets


@pytest.mark.daily
@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("way", WAYS)
def test_resumes_and_names_its_order(files, way):
    def make(**options):
        return make_dataloader(
            files, 8, FEATURES, num_epochs=2, **({"shuffle": "blocks"} | WAYS[way] | options)
        )

    loader = make()
    found, states = [], [loader.state_dict()]
    for batch in loader:
        found.append(batch["id"].tolist())
        states.append(json.loads(json.dumps(loader.state_dict())))
    assert states[0]["shuffle"] == "blocks"
    assert states[0]["window_blocks"] == 16
    for place in (1, 40, 76, 150):
        again = make()
        again.load_state_dict(states[place])
        assert ids(again) == found[place:]
    with pytest.raises(ValueError, match="expected a state with the keys"):
        make(shuffle=False).load_state_dict(states[3])


@pytest.mark.parametrize("way", ["threads", "no threads"])
@pytest.mark.parametrize(
    "make", [lambda ds: ds, lambda ds: random_split(ds, [500, 100])[0], lambda ds: ds[::-1]]
)
def test_an_epoch_in_blocks_decompresses_about_once(files, inflations, monkeypatch, make, way):
    whole = TFRecordDataset(files, FEATURES)
    # three of the blocks, of which two are kept: a window of one and half of the next
    monkeypatch.setattr(whole._record_files, "_inflated", InflatedFiles(3000))
    dataset = make(whole)
    monkeypatch.setattr("torch_tfrecord.order.steps._MOST_INFLATED_WINDOW", 1000)
    sampler = RecordSampler(dataset, shuffle="blocks", block_bytes=1000)
    batches = DataLoader(dataset, 4, sampler=sampler, collate_fn=collate)
    if way == "threads":
        batches = ReadAheadLoader(
            dataset, num_threads=2, batch_size=4, sampler=sampler, collate_fn=collate
        )
    assert len(set(joined(ids(batches)))) == len(dataset)
    # A block of 1,000 bytes has four or five stretches of 300: at both ends it shares one.
    assert len(inflations) <= 2 * len(set(inflations))


@pytest.mark.parametrize("num_threads", [1, 2])
def test_in_order_each_stretch_is_decompressed_once(files, inflations, num_threads):
    loader = make_dataloader(files, 7, FEATURES, shuffle=False, num_threads=num_threads)
    assert joined(ids(loader)) == list(range(N))
    assert len(inflations) == len(set(inflations)) > 10 * len(SIZES)


# Random access all the same.


@pytest.mark.usefixtures("small_windows")
def test_a_shuffled_dataloader_says_at_the_users_line_that_it_is_slow(files):
    ds = TFRecordDataset(files, FEATURES)
    with pytest.warns(UserWarning, match=SLOW) as caught:
        assert sorted(joined(ids(DataLoader(ds, 50, shuffle=True, collate_fn=collate)))) == list(
            range(N)
        )
    assert [warning.filename for warning in caught] == [__file__]
    for name in (
        "make_dataloader",
        'RecordSampler(shuffle="blocks")',
        "TFRecordIterableDataset",
        "uncompressed",
    ):
        assert name in str(caught[0].message)


@pytest.mark.usefixtures("small_windows")
def test_a_mixture_says_so(files):
    ds = TFRecordDataset(files, FEATURES)
    with pytest.warns(UserWarning, match=SLOW) as caught:
        loader = make_dataloader(
            Mixture([ds, ds[:9]], stop="all_exhausted_without_replacement"), 100
        )
        assert len(joined(ids(loader))) == N + 9
    assert [warning.filename for warning in caught] == [__file__]


def test_some_files_compressed(tmp_path, monkeypatch):
    monkeypatch.setattr(InflatedFiles, "most_bytes", 1000)
    for name, numbers in (("a", range(50)), ("b.gz", range(50, 90))):
        with TFRecordWriter(tmp_path / f"part-{name}") as writer:
            for number in numbers:
                writer.write({"id": number})
    with pytest.warns(UserWarning, match=SAID) as caught:
        loader = make_dataloader(tmp_path / "part-*", 7, FEATURES)
    assert str(caught[0].message).startswith(f"{tmp_path}/part-b.gz: ")
    assert sorted(joined(ids(loader))) == list(range(90))
