"""What errors tell of what to do: a record, a missing collate_fn, arguments by name; and what repr
shows.

Covers arguments, shown.
"""

import copy
import functools
import pickle
import re
import sys
import textwrap

import numpy as np
import pytest
import torch
from helpers import run_program
from rlds_episodes import LENGTHS, write_episodes
from torch.utils.data import DataLoader, Subset, default_collate

import torch_tfrecord.shown as shown
from torch_tfrecord import (
    FixedLenFeature,
    Image,
    Mixture,
    PaddedCollate,
    RecordSampler,
    SequenceFeatures,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_example,
    encode_image,
    make_dataloader,
    parse_example,
    parse_single_sequence_example,
    tfds,
)
from torch_tfrecord.loading import ReadAheadLoader
from torch_tfrecord.samples import SampleList

NOTES = pytest.mark.skipif(
    sys.version_info < (3, 11), reason="exceptions have notes from Python 3.11 on"
)
FEATURES = {"id": FixedLenFeature((), torch.int64), "ids": VarLenFeature(torch.int64)}
BAD = 6  # is record 2 of the second file


class OwnError(Exception):
    """One of the user's, which cannot be built from a text alone."""

    def __init__(self, code, text):
        super().__init__(code, text)


def fail_at_bad(sample):
    if sample["id"] == BAD:
        raise OwnError(7, "no good")
    return sample["id"]


def write(path, examples):
    with TFRecordWriter(path) as writer:
        for example in examples:
            writer.write(example)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files a, b and c of four records; record i has id i and as many ids as i modulo 3."""
    folder = tmp_path_factory.mktemp("records")
    for letter, first in (("a", 0), ("b", 4), ("c", 8)):
        write(
            folder / letter,
            [{"id": n, "ids": torch.arange(n % 3)} for n in range(first, first + 4)],
        )
    return folder


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """One file of five pictures, of which number 3 is larger."""
    path = tmp_path_factory.mktemp("pictures") / "p"
    sizes = [(4, 5)] * 3 + [(6, 5), (4, 5)]
    write(
        path,
        [
            {"image": encode_image(torch.zeros(3, *size, dtype=torch.uint8), "png")}
            for size in sizes
        ],
    )
    return path


def place(folder, number):
    path = folder / "abc"[number // 4]
    found, offset = TFRecordDataset(folder / "?").locate(number)
    assert found == str(path)
    return f"{path}: record {number % 4} at byte {offset}"


def exhaust(loader):
    """Its error comes without traceback: torch's is a cycle, and an iterator in a cycle waits 5 s
    for its workers.
    """
    try:
        for _ in loader:
            pass
    except Exception as error:
        raise error.with_traceback(None)  # noqa: B904  the same error


# Transforms


def one(ds):
    return ds[BAD]


def many(ds):
    return ds.__getitems__([9, 1, BAD, 3])


def part(ds):
    return ds[5:8][1]


WAYS = {
    "one": one,
    "many": many,
    "part": part,
    "torch": lambda ds: exhaust(DataLoader(ds, 5)),
    "collate": lambda ds: exhaust(DataLoader(ds, 5, collate_fn=collate)),
    "shuffled": lambda ds: exhaust(DataLoader(ds, 5, shuffle=True)),
    "subset": lambda ds: exhaust(DataLoader(Subset(ds, [3, BAD, 1]), 3, collate_fn=collate)),
    "threads": lambda ds: exhaust(ReadAheadLoader(ds, batch_size=5, num_threads=2)),
    "mixture": lambda ds: exhaust(
        DataLoader(Mixture([ds, [torch.tensor(1)] * 2], stop="all_exhausted"), 3)
    ),
}


@NOTES
@pytest.mark.parametrize("way", WAYS)
def test_transform_of_a_dataset(folder, way):
    raised = []

    def transform(sample):
        try:
            return fail_at_bad(sample)
        except OwnError as error:
            raised.append(error)
            raise

    with pytest.raises(OwnError) as caught:
        WAYS[way](TFRecordDataset(folder / "?", FEATURES, transform=transform))
    assert caught.value is raised[0]
    assert caught.value.args == (7, "no good")
    assert caught.value.__notes__ == [f"in the transform of {place(folder, BAD)}"]


@NOTES
@pytest.mark.parametrize("num_threads", [0, 2])
@pytest.mark.parametrize("label_key", [None, "id"])
def test_transform_in_make_dataloader(folder, num_threads, label_key):
    loader = make_dataloader(
        folder / "?",
        5,
        FEATURES,
        label_key=label_key,
        transform=fail_at_bad,
        num_threads=num_threads,
        shuffle=False,
    )
    if label_key is None:
        with pytest.raises(OwnError) as caught:
            exhaust(loader)
        assert caught.value.__notes__ == [f"in the transform of {place(folder, BAD)}"]
    else:  # what the transform returned has no label
        with pytest.raises(ValueError, match="label_key='id'") as refused:
            exhaust(loader)
        assert refused.value.__notes__ == [f"in the transform of {place(folder, 0)}"]


@NOTES
@pytest.mark.parametrize(
    ("options", "loader_batch"),
    [
        ({}, None),
        ({}, 3),
        ({"batch_size": 3}, None),
        ({"cycle_length": 2, "shuffle_buffer_size": 5}, None),
        ({"cycle_length": 2, "batch_size": 5}, None),
    ],
)
def test_transform_of_a_stream(folder, options, loader_batch):
    ds = TFRecordIterableDataset(folder / "?", FEATURES, transform=fail_at_bad, **options)
    with pytest.raises(OwnError) as caught:
        exhaust(DataLoader(ds, loader_batch))
    assert caught.value.args == (7, "no good")
    assert caught.value.__notes__ == [f"in the transform of {place(folder, BAD)}"]


def refuse_bad(sample):
    if sample["id"] == BAD:
        raise KeyError("no good")
    return sample["id"]


@pytest.mark.slow
@NOTES
@pytest.mark.parametrize("kind", ["dataset", "loader", "stream"])
def test_transform_in_a_worker(folder, kind):
    if kind == "loader":
        loader = make_dataloader(folder / "?", 5, FEATURES, transform=refuse_bad, num_workers=1)
    elif kind == "dataset":
        loader = DataLoader(
            TFRecordDataset(folder / "?", FEATURES, transform=refuse_bad), 5, num_workers=1
        )
    else:
        stream = TFRecordIterableDataset(folder / "?", FEATURES, transform=refuse_bad)
        loader = DataLoader(stream, 5, num_workers=1)
    with pytest.raises(KeyError) as caught:
        exhaust(loader)
    assert f"in the transform of {place(folder, BAD)}" in str(caught.value)


def test_an_exception_that_takes_no_note(folder, monkeypatch):
    """As on Python 3.10: it stays as it is."""

    class Plain(Exception):
        def __getattribute__(self, name):
            if name == "add_note":
                raise AttributeError(name)
            return super().__getattribute__(name)

    def transform(sample):
        raise Plain("no good")

    with pytest.raises(Plain, match=r"^no good$") as caught:
        TFRecordDataset(folder / "a", FEATURES, transform=transform)[0]
    assert not hasattr(caught.value, "__notes__")


@pytest.fixture(scope="module")
def episodes(tmp_path_factory):
    return write_episodes(tmp_path_factory.mktemp("rlds") / "drawn" / "1.0.0")


@NOTES
@pytest.mark.parametrize("way", ["one", "many", "threads", "torch"])
def test_step_transform(episodes, way):
    position = LENGTHS[0] + LENGTHS[1] + 4  # step 4 of episode 2

    def transform(sample):
        if (sample["_traj_index"], sample["_frame_index"]) == (2, 4):
            raise OwnError(7, "no good")
        return sample["_frame_index"]

    ds = tfds.RLDSDataset(episodes, step_transform=transform)
    ways = {
        "one": lambda: ds[position],
        "many": lambda: ds.__getitems__([1, position]),
        "threads": lambda: exhaust(ReadAheadLoader(ds, batch_size=7, num_threads=2)),
        "torch": lambda: exhaust(DataLoader(ds, 7)),
    }
    with pytest.raises(OwnError) as caught:
        ways[way]()
    (note,) = caught.value.__notes__
    assert re.fullmatch(
        r"in the transform of .*drawn-train.*: record \d+ at byte \d+, episode 2, step 4", note
    )


@NOTES
def test_transforms_of_episodes(episodes):
    def transform(episode):
        raise OwnError(7, "no good")

    for get in (
        lambda: tfds.RLDSDataset(episodes, episode_transform=transform)[0],
        lambda: tfds.RLDSDataset(episodes, episode_transform=transform).__getitems__([0, 1]),
        lambda: tfds.RLDSEpisodes(episodes, transform=transform)[0],
    ):
        with pytest.raises(OwnError) as caught:
            get()
        (note,) = caught.value.__notes__
        assert re.fullmatch(r"in the transform of .*drawn-train.*: record 0 at byte 0", note)


# Samples that do not go together


def unequal(pictures, first, larger):
    ds = TFRecordDataset(pictures)
    shapes = r"\[3, 4, 5\] in sample 0, \[3, 6, 5\] in sample " + str(larger[0])
    advice = (
        r"\(crop, resize or pad them in a transform; Image takes crop=\), or let "
        r"collate_fn=PaddedCollate\(\) pad them"
    )
    records = [
        f"{re.escape(str(pictures))}: record {n} at byte {ds.locate(n)[1]}"
        for n in (first, larger[1])
    ]
    return f"{shapes} {advice}; sample 0 is {records[0]}, sample {larger[0]} is {records[1]}$"


def same(sample):
    return sample


@pytest.mark.slow
@pytest.mark.parametrize("transform", [None, same])
def test_unequal_images(pictures, transform):
    features = {"image": Image()}
    ds = TFRecordDataset(pictures, features, transform=transform)
    for loader in (
        DataLoader(ds, 5, collate_fn=collate),
        ReadAheadLoader(ds, batch_size=5),
        make_dataloader(pictures, 5, features, transform=transform, shuffle=False, num_threads=2),
        make_dataloader(pictures, 5, features, transform=transform, shuffle=False, num_workers=1),
        TFRecordIterableDataset(pictures, features, transform=transform, batch_size=5),
        TFRecordIterableDataset(
            pictures, features, transform=transform, batch_size=5, cycle_length=2
        ),
    ):
        with pytest.raises(ValueError, match=r"\['image'\]: cannot batch") as caught:
            exhaust(loader)
        # From a worker the text comes in a traceback.
        assert re.search(unequal(pictures, 0, (3, 3)), str(caught.value).strip())
    for batches in ([[4, 2, 3]], [[0, 1], [4, 2, 3]]):  # one after another, and both read at once
        with pytest.raises(ValueError, match=unequal(pictures, 4, (2, 3))):
            exhaust(collate(batch) for batch in map(ds.__getitems__, batches))
        with pytest.raises(ValueError, match=unequal(pictures, 4, (2, 3))):
            exhaust(collate(ds._transform_samples(batch)) for batch in ds._load_batches(batches))
    padded = next(iter(DataLoader(ds, 5, collate_fn=PaddedCollate())))  # as the error says
    assert padded["image"].shape == (5, 3, 6, 5)


def test_unequal_images_of_a_mixture_and_a_subset(pictures):
    ds = TFRecordDataset(pictures, {"image": Image()})
    with pytest.raises(ValueError, match=unequal(pictures, 4, (1, 3))):
        exhaust(DataLoader(Subset(ds, [4, 3]), 2, collate_fn=collate))
    mixture = Mixture([ds, ds], shuffle=False, num_samples=8)
    with pytest.raises(ValueError, match=unequal(pictures, 0, (6, 3))):
        exhaust(DataLoader(mixture, 8, collate_fn=collate))


@pytest.mark.filterwarnings("ignore:none of 2 records")
def test_labels_are_split_and_records_still_known(pictures, tmp_path):
    write(
        tmp_path / "p",
        [{"image": encode_image(torch.zeros(3, n, 5, dtype=torch.uint8), "png")} for n in (4, 6)],
    )
    loader = make_dataloader(
        tmp_path / "p",
        2,
        {"image": Image(), "y": FixedLenFeature((), torch.int64, 0)},
        label_key="y",
    )
    with pytest.raises(
        ValueError,
        match=rf"^\[0\]\['image'\]: .*; sample 0 is {tmp_path}/p: record \d at byte \d+, samp",
    ):
        exhaust(loader)


def test_samples_that_a_collate_fn_has_moved(pictures):
    """No record is better than a wrong one."""
    ds = TFRecordDataset(pictures, {"image": Image()})

    def sort_first(samples):
        samples.sort(key=lambda sample: -sample["image"].shape[1])
        return collate(samples)

    for transform in (None, same):
        ds = TFRecordDataset(pictures, {"image": Image()}, transform=transform)
        with pytest.raises(
            ValueError, match=r"\[3, 6, 5\] in sample 0, \[3, 4, 5\] in sample 1 .* pad them$"
        ):
            exhaust(DataLoader(ds, 5, collate_fn=sort_first))


def test_a_list_that_knows_its_records_is_a_list(folder):
    ds = TFRecordDataset(folder / "?", FEATURES, transform=refuse_bad)
    samples = ds.__getitems__([1, 2])
    assert samples == [1, 2]
    for other in (pickle.loads(pickle.dumps(samples)), copy.copy(samples), copy.deepcopy(samples)):
        assert type(other) is list and other == [1, 2]
    assert SampleList([1, 2], None)[0] == 1
    batch = TFRecordDataset(folder / "?", FEATURES).__getitems__([1, 2])
    assert [sample["id"] for sample in pickle.loads(pickle.dumps(batch))] == [1, 2]
    assert [sample["id"] for sample in batch] == [1, 2]
    assert [sample["id"] for sample in pickle.loads(pickle.dumps(batch))] == [1, 2]
    assert pickle.loads(pickle.dumps(batch)).places is None


# torch's own collate_fn

NO_COLLATE = (
    r"\['ids'\]: torch's default collate_fn stacks equal sizes only, got \[{}\] in sample 0, \[{}\] in sample {}{}: "
    r"give the DataLoader collate_fn=torch_tfrecord.collate, for jagged tensors and lists, or "
    r"collate_fn=torch_tfrecord.PaddedCollate\(\), for padded ones"
)


def change(sample):
    sample["more"] = 1
    return sample


@pytest.mark.daily
@pytest.mark.parametrize("num_workers", [0, 1])
def test_no_collate_fn_for_changed_samples(folder, num_workers):
    """Those are the user's dicts, of which torch stacks what is of one size."""
    ds = TFRecordDataset(folder / "?", FEATURES, transform=change)
    where = rf" \({place(folder, 1)}\)"
    for dataset in (ds, Subset(ds, range(12))):
        with pytest.raises(ValueError, match=NO_COLLATE.format(0, 1, 1, where)):
            exhaust(DataLoader(dataset, 5, num_workers=num_workers))
    with pytest.raises(ValueError, match=NO_COLLATE.format(0, 1, 1, "")):
        exhaust(
            DataLoader(
                TFRecordIterableDataset(folder / "?", FEATURES, transform=change),
                5,
                num_workers=num_workers,
            )
        )
    with pytest.raises(ValueError, match=NO_COLLATE.format(0, 1, 1, where)):
        exhaust(ReadAheadLoader(ds, batch_size=5, collate_fn=default_collate))
    for collate_fn in (collate, PaddedCollate()):  # as the error says
        batch = next(iter(DataLoader(ds, 5, num_workers=num_workers, collate_fn=collate_fn)))
        assert [row.tolist()[: n % 3] for n, row in enumerate(batch["ids"].unbind())] == [
            [],
            [0],
            [0, 1],
            [],
            [0],
        ]
    batch = next(iter(DataLoader(Subset(ds, [1, 4, 7]), 3)))
    assert (batch["ids"].tolist(), batch["more"].tolist()) == ([[0]] * 3, [1] * 3)


def test_no_collate_fn_for_pictures_of_several_sizes(pictures):
    """Whether torch has our samples or the user's, the error names key and records, and what to
    do.
    """
    for transform, advice in (
        (
            None,
            r"\(crop, resize or pad them in a transform; Image takes crop=\), or let collate_fn=PaddedCollate\(\) pad",
        ),
        (
            change,
            r"give the DataLoader collate_fn=.*; pictures get one size by Image\(crop=...\) or in a transform",
        ),
    ):
        ds = TFRecordDataset(pictures, {"image": Image()}, transform=transform)
        with pytest.raises(ValueError, match=rf"^\['image'\]: .*{advice}") as caught:
            exhaust(DataLoader(ds, 5))
        assert f"{pictures}: record 3 at byte " in str(caught.value)


def test_no_collate_fn_with_strings(tmp_path):
    write(tmp_path / "a", [{"words": ["x"] * n, "n": n} for n in (2, 2, 3)])
    features = {"words": VarLenFeature(bytes), "n": FixedLenFeature((), torch.int64)}
    (batch,) = DataLoader(TFRecordDataset(tmp_path / "a", features), 3)
    assert batch["words"] == [[b"x"] * 2, [b"x"] * 2, [b"x"] * 3]
    ds = TFRecordDataset(tmp_path / "a", features, transform=change)
    with pytest.raises(
        ValueError, match=r"^\['words'\]: .* got \[2\] in sample 0, \[3\] in sample 2 \("
    ):
        exhaust(DataLoader(ds, 3))


# What is taken for something else.


def test_streams_have_no_positions(folder):
    stream = TFRecordIterableDataset(folder / "?", FEATURES)
    with pytest.raises(
        TypeError,
        match=r"a stream has no positions, .*: TFRecordDataset reads records by position$",
    ):
        stream[0]


@pytest.mark.parametrize("open_it", [tfds.load, tfds.info, tfds.RLDSDataset])
def test_the_name_of_a_dataset_in_place_of_its_directory(open_it, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        FileNotFoundError,
        match=r"expected one that TFDS prepared, .* load takes its name with data_dir=: 'mnist'$",
    ):
        open_it("mnist")


# Arguments


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("batch_size", 64.0),
        ("batch_size", "64"),
        ("batch_size", True),
        ("seed", "a"),
        ("seed", 1.0),
        ("num_epochs", "1"),
        ("num_workers", "2"),
        ("num_workers", 2.0),
        ("num_threads", "2"),
        ("drop_last", "no"),
        ("drop_last", 0),
    ],
)
def test_wrong_kinds_of_arguments_of_make_dataloader(folder, name, value):
    kinds = {"drop_last": "True or False", "num_threads": "an integer of at least 0"}
    kind = kinds.get(name, "an integer")
    with pytest.raises(TypeError, match=f"^{name} must be {kind}, got {value!r}"):
        make_dataloader(folder / "?", **({"batch_size": 2} | {name: value}))


def test_wrong_kinds_of_arguments(folder):
    ds = TFRecordDataset(folder / "?")
    number = "must be an integer"
    for build, text in [
        (lambda: RecordSampler(ds, seed="a"), rf"seed {number}, got 'a' \(str\)"),
        (lambda: RecordSampler(ds, drop_last="no"), "drop_last must be True or False, got 'no'"),
        (lambda: RecordSampler(ds, rank=0.0, world_size=2), f"rank {number}, got 0.0"),
        (lambda: RecordSampler(ds, rank=0, world_size="2"), f"world_size {number}, got '2'"),
        (lambda: make_dataloader(ds, 64.0), f"batch_size {number}, got 64.0"),
        (lambda: make_dataloader(ds, 4, seed="a"), f"seed {number}, got 'a'"),
        (lambda: make_dataloader(ds, 4, drop_last=1), "drop_last must be True or False, got 1"),
        (lambda: TFRecordIterableDataset(folder / "?", seed="a"), f"seed {number}, got 'a'"),
        (
            lambda: TFRecordIterableDataset(folder / "?", drop_last="x"),
            "drop_last must be True or False, got 'x'",
        ),
        (
            lambda: TFRecordIterableDataset(folder / "?", rank="0", world_size=2),
            f"rank {number}, got '0'",
        ),
        (lambda: ReadAheadLoader(ds, num_workers="2"), f"num_workers {number}, got '2'"),
        (
            lambda: ReadAheadLoader(ds, num_threads=1.5),
            f"num_threads {number} of at least 0, got 1.5",
        ),
        (lambda: Mixture([ds], seed="a"), f"seed {number}, got 'a'"),
        (lambda: Mixture([ds], shuffle="yes"), "shuffle must be True or False, got 'yes'"),
        (lambda: Mixture([ds], seed=None), f"seed {number}, got None"),
        (
            lambda: TFRecordIterableDataset(folder / "?", batch_size="3"),
            f"batch_size {number} of at least 1, got '3'",
        ),
        (lambda: Mixture([ds], num_samples=1.5), f"num_samples {number} of at least 0, got 1.5"),
    ]:
        with pytest.raises(TypeError, match=f"^{text}"):
            build()
    with pytest.raises(TypeError, match=f"^episode_bytes {number}, got '1'"):
        tfds.RLDSDataset(folder, episode_bytes="1")
    for build, name in [
        (lambda: ReadAheadLoader(ds, batch_size=64.0), "batch_size"),
        (lambda: ReadAheadLoader(ds, drop_last="no"), "drop_last"),
        (lambda: ReadAheadLoader(ds, num_threads=-1), "num_threads"),
    ]:
        with pytest.raises(ValueError, match=f"^{name}"):
            build()


def test_numbers_of_numpy_are_numbers(folder):
    loader = make_dataloader(
        folder / "?",
        np.int64(5),
        seed=np.uint8(3),
        drop_last=np.bool_(True),
        num_threads=np.int32(1),
    )
    assert [len(batch) for batch in loader] == [5, 5]


def test_a_transform_that_is_none(folder, episodes):
    text = (
        r"must be a function \(anything that can be called with a sample\) or None, got 'resize'$"
    )
    for build in (
        lambda: TFRecordDataset(folder / "missing", transform="resize"),
        lambda: TFRecordIterableDataset(folder / "missing", transform="resize"),
        lambda: make_dataloader(folder / "missing", 5, transform="resize"),
        lambda: make_dataloader(
            folder / "missing", 5, FEATURES, label_key="id", transform="resize"
        ),
        lambda: tfds.load(episodes, transform="resize"),
        lambda: tfds.RLDSEpisodes(episodes, transform="resize"),
    ):
        with pytest.raises(TypeError, match=f"^transform {text}"):
            build()
    for name in ("step_transform", "episode_transform"):
        with pytest.raises(TypeError, match=f"^{name} {text}"):
            tfds.RLDSDataset(episodes, **{name: "resize"})


class OfTensorFlow:
    """As tf.io.FixedLenFeature: named alike, and from elsewhere."""


OfTensorFlow.__module__ = "tensorflow.python.ops.parsing_config"


@pytest.mark.parametrize(
    ("spec", "hint"),
    [
        (torch.int64, r"for one torch.int64 in each record: FixedLenFeature\(\(\), torch.int64\)"),
        (
            "float32",
            r"for one torch.float32 in each record: FixedLenFeature\(\(\), torch.float32\)",
        ),
        (np.int64, r"for one torch.int64 in each record: FixedLenFeature\(\(\), torch.int64\)"),
        (
            np.dtype("f4"),
            r"for one torch.float32 in each record: FixedLenFeature\(\(\), torch.float32\)",
        ),
        (int, r"for one torch.int64 in each record: FixedLenFeature\(\(\), torch.int64\)"),
        (bytes, r"for one bytes in each record: FixedLenFeature\(\(\), bytes\)"),
        (str, r"for one str in each record: FixedLenFeature\(\(\), str\)"),
        ("label", r"for one integer in each record: FixedLenFeature\(\(\), torch.int64\)"),
        (FixedLenFeature, r"this one is the class: FixedLenFeature\(\.\.\.\) makes a spec of it"),
        (None, r"for one integer in each record: FixedLenFeature\(\(\), torch.int64\)"),
        (OfTensorFlow(), "this one is TensorFlow's: use torch_tfrecord's, with a torch dtype"),
    ],
)
def test_a_feature_that_is_no_spec(folder, spec, hint):
    features = {"x": spec}
    of_sequence = f"'x' of a feature list: expected one of .*; {hint}$"
    of_example = f"'x' of an Example: expected one of .*FixedLenFeature, .*; {hint}$"
    for build, text in [
        (lambda: TFRecordDataset(folder / "?", features), of_example),
        (lambda: TFRecordIterableDataset(folder / "?", features), of_example),
        (lambda: make_dataloader(folder / "?", 4, features), of_example),
        (lambda: parse_example([], features), of_example),
        (lambda: parse_single_sequence_example(b"", None, features), of_sequence),
        (lambda: TFRecordDataset(folder / "?", SequenceFeatures(None, features)), of_sequence),
    ]:
        with pytest.raises(TypeError, match=f"for key {text}"):
            build()


def test_an_empty_list_has_no_dtype(tmp_path):
    text = (
        "^feature 'v': an empty list has no type: use an empty typed array, such as numpy.zeros(0, numpy.int64); its "
        "dtype, numpy.int64, numpy.float32 or numpy.bytes_, selects the kind of list"
    )
    with pytest.raises(ValueError, match=re.escape(text[1:])):
        encode_example({"v": []})
    with (
        pytest.raises(ValueError, match=re.escape(text[1:])),
        TFRecordWriter(tmp_path / "a") as writer,
    ):
        writer.write({"v": []})
    for dtype, read in (
        (np.int64, torch.int64),
        (np.float32, torch.float32),
        (np.bytes_, bytes),
    ):  # as the error says
        record = encode_example({"v": np.zeros(0, dtype)})
        assert len(parse_example([record], {"v": VarLenFeature(read)})["v"][0]) == 0


# Missing shards


def test_missing_shards_are_told_shortly(tmp_path):
    name = "n" * 200
    for number in range(0, 2000, 100):
        (tmp_path / f"{name}-{number:05d}-of-02000").touch()
    with pytest.raises(FileNotFoundError, match="more than 10 of 2000 shards missing") as caught:
        TFRecordDataset(tmp_path / f"{name}@2000")
    assert len(caught.value.strerror) < 2048 - len(str(tmp_path))
    assert "there are 20: ..." in caught.value.strerror


# What torch logs


@pytest.mark.daily
def test_jagged_batches_without_a_word_on_stderr(folder, tmp_path):
    program = f"""
        import torch
        from torch.utils.data import DataLoader
        from torch_tfrecord import TFRecordDataset, VarLenFeature, collate, make_dataloader, parse_example
        from torch_tfrecord import FixedLenSequenceFeature, RaggedFeature, encode_example

        ragged = RaggedFeature(torch.int64, "ids")
        steps = FixedLenSequenceFeature((1,), torch.int64, allow_missing=True, key="ids")
        features = {{"ids": VarLenFeature(torch.int64), "r": ragged, "s": steps}}
        for num_workers in (0, 1):
            for transform in (None, dict):
                ds = TFRecordDataset({str(folder / "?")!r}, features, transform=transform)
                for batch in DataLoader(ds, 5, collate_fn=collate, num_workers=num_workers):
                    assert batch["ids"].is_nested
        for batch in make_dataloader({str(folder / "?")!r}, 5, features):
            rows, padded = batch["ids"].unbind(), batch["ids"].to_padded_tensor(0)
        parse_example([encode_example({{"ids": [1]}})], {{"ids": VarLenFeature(torch.int64)}})
    """
    inside = textwrap.indent(textwrap.dedent(program), "        ")
    both = f"from helpers import pure_python\nfor pure in (False, True):\n    with pure_python(pure):\n{inside}"
    done = run_program(both, tmp_path)
    assert (done.stderr, done.returncode) == ("", 0)


# repr


def resize(sample, key=None):
    return sample


def test_repr(folder, episodes):
    files = f"3 files, '{folder}/a', ..."
    features = (
        "features={'id': FixedLenFeature((), torch.int64), 'ids': VarLenFeature(torch.int64)}"
    )
    ds = TFRecordDataset(folder / "?", FEATURES, transform=resize)
    text = f"TFRecordDataset(12 records in {files}, {features}, transform=resize)"
    assert repr(ds) == text
    assert repr(ds[:3]) == text.replace("12 records", "3 records")
    stream = TFRecordIterableDataset(folder / "?", FEATURES, transform=resize, batch_size=7)
    assert (
        repr(stream)
        == f"TFRecordIterableDataset({files}, {features}, transform=resize, batch_size=7)"
    )
    assert (
        repr(Mixture([ds, [1]]))
        == f"Mixture(3 samples of 2 datasets of [12, 1] samples: {text}, list)"
    )
    loader = make_dataloader(folder / "?", 7, FEATURES, transform=resize, num_threads=2)
    assert repr(loader) == f"RecordLoader({text}, batch_size=7, num_workers=0, num_threads=2)"
    loader = ReadAheadLoader(ds, batch_size=3, num_workers=2)
    assert repr(loader) == f"ReadAheadLoader({text}, batch_size=3, num_workers=2, num_threads=0)"
    rlds = repr(tfds.RLDSDataset(episodes, step_transform=resize, features=["steps/action"]))
    assert re.fullmatch(
        r"RLDSDataset\(49 positions in 4 episodes of drawn/1.0.0, .*, \d files, '.*drawn-train.*', ..., "
        r"features=\[steps/action\], step_transform=resize\)",
        rlds.replace("'steps/action'", "steps/action"),
    )
    whole = repr(tfds.RLDSEpisodes(episodes, transform=resize))
    assert re.fullmatch(
        r"RLDSEpisodes\(4 episodes of drawn/1.0.0, \d files, .* and \d more\], transform=resize\)",
        whole,
    )


def test_repr_is_short_and_tells_no_secrets(tmp_path):
    write(tmp_path / "a", [{"x": 1}])
    features = {
        f"{'f' * 500}{n}": FixedLenFeature((500,), torch.int64, [7] * 500) for n in range(20)
    }
    keyed = functools.partial(resize, key="secret-key")
    ds = TFRecordDataset(tmp_path / "a", features, transform=keyed)
    assert "secret-key" not in repr(ds)
    assert repr(ds).endswith("and 12 more}, transform=resize)")
    assert len(repr(ds)) < 4096
    assert len(repr(Mixture([ds] * 20))) < 8192
    assert len(repr(make_dataloader(tmp_path / "a", 2, features))) < 4096
    assert shown.shown_transform("transform", OwnError(1, "secret-key")) == ", transform=OwnError"
    shown_files = shown.shown_files(["https://me:secret@host/a@b?token=secret", "memory://b"])
    assert shown_files == "2 files, 'https://...@host/a@b?...', ..."
    assert shown.shown_files(["memory://a@b/c"]) == "1 files, 'memory://...@b/c', ..."
    assert shown.shown_files(["/data/a?b@c"]) == "1 files, '/data/a?b@c', ..."
