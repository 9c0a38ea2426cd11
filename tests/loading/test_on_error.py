"""Bad data with ``on_error="skip"``: left out in every way in, each record counted once; else an
error that names it.

Covers error_log.
"""

import gc
import os
import pickle
import re
import tempfile
import time

import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset
from torchvision.transforms import v2

from torch_tfrecord import (
    CorruptRecordError,
    FixedLenFeature,
    Image,
    ImageDecodeError,
    TFRecordDataset,
    TFRecordError,
    TFRecordIterableDataset,
    TFRecordWriter,
    build_index,
    collate,
    encode_image,
    make_dataloader,
    read_records,
)

FEATURES = {"i": Image(), "n": FixedLenFeature((), torch.int64)}
BAD = {
    3: "ImageDecodeError",
    7: "ImageDecodeError",
    11: "ParseError",
    13: "ParseError",
    16: "CorruptRecordError",
}
GOOD = [number for number in range(20) if number not in BAD]
EVEN = [number for number in GOOD if number % 2 == 0]
COUNTS = {"ImageDecodeError": 2, "ParseError": 2, "CorruptRecordError": 1}
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:on_error='skip'"),  # in workers, too
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """20 pictures: two cut, one without its number, one record that is no Example, one with a
    flipped bit.
    """
    path = tmp_path_factory.mktemp("skip") / "a.tfrecord"
    with TFRecordWriter(path) as writer:
        for number in range(20):
            picture = encode_image(torch.full((3, 8, 8), number, dtype=torch.uint8), "png")
            picture = picture[:-9] if BAD.get(number) == "ImageDecodeError" else picture
            writer.write(
                b"no Example"
                if number == 13
                else {"i": picture}
                if number == 11
                else {"i": picture, "n": number}
            )
    data = bytearray(path.read_bytes())
    data[build_index(path).offsets[16] + 20] ^= 1
    path.write_bytes(data)
    return path


def even(sample):
    return None if sample["n"] % 2 else sample


def whole(sample):
    return dict(sample)


def numbers(batches):
    found = []
    for batch in batches:
        # features of the same record
        assert torch.equal(batch["i"].float().mean((1, 2, 3)), batch["n"].float())
        found += batch["n"].tolist()
    return sorted(found)


WAYS = {
    "plain": lambda ds: DataLoader(ds, 5, collate_fn=collate),
    "torch's collate": lambda ds: DataLoader(ds, 5),
    "workers": lambda ds: DataLoader(
        ds, 5, collate_fn=collate, num_workers=2, multiprocessing_context="fork"
    ),
    "subset": lambda ds: DataLoader(Subset(ds, range(20)), 5, collate_fn=collate),
    "make_dataloader": lambda ds: make_dataloader(ds, 5),
    "one in a batch": lambda ds: make_dataloader(ds, 1),
    "no threads": lambda ds: make_dataloader(ds, 2, num_threads=0),
    "with workers": lambda ds: make_dataloader(
        ds, 2, num_workers=2, multiprocessing_context="fork"
    ),
    "nested": lambda ds: make_dataloader(ConcatDataset([ds[:10], Subset(ds, range(10, 20))]), 4),
}


@pytest.mark.daily
@pytest.mark.parametrize(("transform", "good"), [(None, GOOD), (whole, GOOD), (even, EVEN)])
@pytest.mark.parametrize("way", WAYS)
def test_a_run_over_bad_records(path, way, transform, good):
    ds = TFRecordDataset(path, FEATURES, transform=transform, index="memory", on_error="skip")
    loader = WAYS[way](ds)
    for _ in range(2):  # the second epoch counts nothing again
        assert numbers(loader) == good
        odd = (
            {"None": 10 - len([number for number in BAD if number % 2])}
            if transform is even
            else {}
        )
        assert ds.report.counts == {**COUNTS, **odd}
    assert ds.report.num_errors == len(ds.report.errors) == 20 - len(good)
    named = [
        int(re.search(r"a\.tfrecord: record (\d+) at byte", text)[1]) for text in ds.report.errors
    ]
    assert sorted(named) == [number for number in range(20) if number not in good]


@pytest.mark.daily
@pytest.mark.parametrize("start", ["spawn", "forkserver"])
def test_other_ways_to_start_workers(path, start):
    ds = TFRecordDataset(path, FEATURES, index="memory", on_error="skip")
    assert (
        numbers(DataLoader(ds, 5, collate_fn=collate, num_workers=2, multiprocessing_context=start))
        == GOOD
    )
    assert ds.report.counts == COUNTS


@pytest.mark.daily
@pytest.mark.parametrize(("transform", "good"), [(None, GOOD), (whole, GOOD), (even, EVEN)])
@pytest.mark.parametrize("buffer", [0, 4])
@pytest.mark.parametrize("num_workers", [0, 2])
def test_streams(path, num_workers, buffer, transform, good):
    for size in (None, 4):
        ds = TFRecordIterableDataset(
            path,
            FEATURES,
            transform=transform,
            batch_size=size,
            shuffle_buffer_size=buffer,
            on_error="skip",
        )
        options = {"batch_size": None} if size else {"batch_size": 4, "collate_fn": collate}
        assert numbers(DataLoader(ds, num_workers=num_workers, **options)) == good
        assert ds.report.counts["ImageDecodeError"] == 2
        assert ds.report.counts["CorruptRecordError"] == 1
        assert ds.report.num_errors == 20 - len(good)


@pytest.mark.slow
def test_a_stream_resumes_behind_what_it_left_out(path):
    def make():
        return TFRecordIterableDataset(path, FEATURES, on_error="skip")

    expected = [int(sample["n"]) for sample in make()]
    assert expected == GOOD
    for taken in range(len(GOOD)):
        first = make()
        iterator = iter(first)
        found = [int(next(iterator)["n"]) for _ in range(taken)]
        second = make()
        second.load_state_dict(first.state_dict())
        assert found + [int(sample["n"]) for sample in second] == GOOD


@pytest.mark.slow
def test_a_loader_resumes_behind_what_it_left_out(path):
    def make():
        return make_dataloader(path, 3, FEATURES, transform=even, index="memory", on_error="skip")

    expected = [batch["n"].tolist() for batch in make()]
    for taken in range(1, len(expected)):
        first = make()
        iterator = iter(first)
        found = [next(iterator)["n"].tolist() for _ in range(taken)]
        second = make()
        second.load_state_dict(first.state_dict())
        assert found + [batch["n"].tolist() for batch in second] == expected


def test_pictures_that_are_cropped_before_they_are_decoded(path):
    transform = v2.Compose([v2.RandomCrop(4), v2.RandomHorizontalFlip()])
    ds = TFRecordDataset(path, FEATURES, transform=transform, index="memory", on_error="skip")
    assert numbers(DataLoader(ds, 5, collate_fn=collate)) == GOOD
    assert numbers(make_dataloader(ds, 4)) == GOOD
    assert (
        numbers(
            TFRecordIterableDataset(
                path, FEATURES, transform=transform, batch_size=3, on_error="skip"
            )
        )
        == GOOD
    )


def test_one_warning_names_the_first_ten(path):
    with pytest.warns(UserWarning) as told:
        for _ in make_dataloader(
            path, 4, FEATURES, index="memory", transform=even, on_error="skip", shuffle=False
        ):
            pass
    (text,) = [str(one.message) for one in told if "on_error" in str(one.message)]
    assert text.startswith("on_error='skip': skipped 11 (")
    assert text.count("a.tfrecord: record") == 10
    assert "and 1 more" in text
    assert "record 1 at byte" in text
    ds = TFRecordDataset(path, FEATURES, index="memory", on_error="skip")
    with pytest.warns(UserWarning) as told:
        for _ in range(2):
            assert numbers(DataLoader(ds, 5, collate_fn=collate)) == GOOD
    assert len(told) == 1
    assert told[0].filename == __file__


def test_max_errors(path):
    options = {"index": "memory", "on_error": "skip"}
    for number, fits in ((5, True), (4, False)):
        ds = TFRecordDataset(path, FEATURES, max_errors=number, **options)
        for loader in (DataLoader(ds, 5, collate_fn=collate), make_dataloader(ds, 4)):
            if fits:
                assert numbers(loader) == GOOD
                continue
            with pytest.raises(
                TFRecordError, match=r"more than max_errors=4 records failed: 5, the last: .*record"
            ):
                numbers(loader)
    with pytest.raises(TFRecordError, match="more than max_errors=1 records failed: 2"):
        numbers(
            TFRecordIterableDataset(path, FEATURES, batch_size=4, on_error="skip", max_errors=1)
        )
    with pytest.raises(ValueError, match="max_errors needs on_error='skip', got 3"):
        TFRecordDataset(path, FEATURES, max_errors=3)
    with pytest.raises(ValueError, match="on_error must be 'raise' or 'skip', got 'ignore'"):
        TFRecordDataset(path, FEATURES, on_error="ignore")


def test_alone_a_record_always_raises(path):
    ds = TFRecordDataset(path, FEATURES, transform=even, index="memory", on_error="skip")
    with pytest.raises(ImageDecodeError, match="record 3 at byte"):
        ds[3]
    with pytest.raises(CorruptRecordError, match="at byte"):
        ds[16]
    with pytest.raises(
        TypeError, match=r"record 1 at byte .*: the transform even returned None: expected a sample"
    ):
        ds[1]
    assert ds.report.num_errors == 0


def test_a_batch_of_which_nothing_is_left(path, monkeypatch):
    ds = TFRecordDataset(path, FEATURES, transform=even, index="memory", on_error="skip")
    with pytest.raises(
        TFRecordError,
        match="all 1 records of a batch were left out, and a DataLoader has no empty batch",
    ):
        numbers(DataLoader(ds, 1, collate_fn=collate))
    loader = make_dataloader(ds, 1, rank=0, world_size=2, shuffle=False)
    with pytest.raises(
        TFRecordError,
        match="all ranks need the same number of batches: expected a larger batch_size",
    ):
        numbers(loader)
    both = [
        [batch["n"].tolist() for batch in make_dataloader(ds, 7, rank=rank, world_size=2)]
        for rank in range(2)
    ]
    assert len(both[0]) == len(both[1]) == 2
    assert sorted(number for rank in both for batch in rank for number in batch) == EVEN


@pytest.mark.daily
@pytest.mark.parametrize("way", WAYS)
def test_a_transform_that_returns_none_is_an_error(tmp_path, way):
    with TFRecordWriter(tmp_path / "a") as writer:
        for number in range(20):
            writer.write({"n": number})
    ds = TFRecordDataset(tmp_path / "a", {"n": FEATURES["n"]}, transform=even)
    with pytest.raises(
        TypeError,
        match=r"a: record \d+ at byte \d+: the transform even returned None: expected a sample",
    ):
        list(WAYS[way](ds))
    with pytest.raises(TypeError, match="record 1 at byte 30: the transform even returned None"):
        list(TFRecordIterableDataset(tmp_path / "a", {"n": FEATURES["n"]}, transform=even))
    with pytest.raises(TypeError, match="the transform even returned None"):
        list(
            make_dataloader(
                TFRecordDataset(tmp_path / "a", {"n": FEATURES["n"]}), 4, transform=even
            )
        )


def test_errors_of_the_users_code_are_not_left_out(path):
    def broken(sample):
        raise KeyError("mine")

    ds = TFRecordDataset(path, FEATURES, transform=broken, index="memory", on_error="skip")
    with pytest.raises(KeyError, match="mine"):
        numbers(DataLoader(ds, 5, collate_fn=collate))


def test_a_batch_too_large_is_no_bad_record(path):
    ds = TFRecordDataset(path, FEATURES, index="memory", on_error="skip", max_batch_bytes=600)
    with pytest.raises(TFRecordError, match="bytes"):
        ds.__getitems__([0, 1, 2, 4, 5])


@pytest.mark.slow
def test_the_log_is_removed_by_the_process_that_made_it(path, tmp_path, monkeypatch):
    # A folder of its own: other tests, run beside it, have logs, too.
    folder = tmp_path / "logs"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    ds = TFRecordDataset(path, FEATURES, index="memory", on_error="skip")
    numbers(DataLoader(ds, 5, collate_fn=collate))
    (log,) = folder.glob("torch_tfrecord-errors-*")
    assert log.stat().st_mode & 0o777 == 0o600
    child = os.fork()
    if not child:
        del ds
        os._exit(0)
    os.waitpid(child, 0)
    copy = pickle.loads(pickle.dumps(ds))
    assert copy.report == ds.report
    del copy
    assert log.exists()
    del ds
    # a thread of an earlier test may be collecting, and wait there for workers that torch left in a
    # cycle (it raises their error again): then this returns at once
    end = time.monotonic() + 30
    while log.exists() and time.monotonic() < end:
        gc.collect()
        time.sleep(0.05)
    assert not log.exists()


def test_read_records_skips_and_raises(path):
    with pytest.warns(UserWarning, match=r"skipped \d+ damaged bytes"):
        assert len([*read_records(path, on_error="skip")]) == 19
    with pytest.raises(CorruptRecordError):
        list(read_records(path))
