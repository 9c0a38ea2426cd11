"""Keys that records may lack and that none has, and files without records: told in one warning."""

import subprocess
import sys

import pytest
import torch
from torch.utils.data import DataLoader, Subset

from torch_tfrecord import (
    FixedLenFeature,
    FixedLenSequenceFeature,
    ParseError,
    RaggedFeature,
    SequenceFeatures,
    ShardedTFRecordWriter,
    TFRecordDataset,
    TFRecordIterableDataset,
    TFRecordWriter,
    VarLenFeature,
    collate,
    encode_sequence_example,
    make_dataloader,
)

LABEL = {"id": FixedLenFeature((), torch.int64)}
OPTIONAL = {
    "variable": VarLenFeature(torch.int64, key="lable"),
    "ragged": RaggedFeature(torch.int64, value_key="lable"),
    "default": FixedLenFeature((), torch.int64, 0, key="lable"),
}
# The last record of the last file has one more key.
NONE = (
    r"^none of 40 records looked at, of 4 files, has the key of feature '{}' \(int64, key 'lable'\): the first has "
    r"'id', 'label'\. Correct the key, leave the feature out, or ignore this warning; did you mean 'label'\?$"
)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("absent")
    with ShardedTFRecordWriter(folder / "train", num_shards=4, write_index=True) as writer:
        for number in range(40):
            writer.write({"id": number, "label": [1], **({"rare": [2]} if number == 39 else {})})
    return f"{folder}/train-*"


WAYS = {
    "threads": lambda files, features: make_dataloader(files, 8, features),
    "DataLoader": lambda files, features: DataLoader(
        TFRecordDataset(files, features),
        8,
        shuffle=True,
        generator=torch.Generator().manual_seed(0),
        collate_fn=collate,
    ),
    "Subset": lambda files, features: DataLoader(
        Subset(TFRecordDataset(files, features), [3]), 8, collate_fn=collate
    ),
    "stream": lambda files, features: TFRecordIterableDataset(files, features),
    "stream of batches": lambda files, features: TFRecordIterableDataset(
        files, features, batch_size=8
    ),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", OPTIONAL)
def test_a_key_that_no_record_has(files, name, way):
    loader = WAYS[way](files, LABEL | {name: OPTIONAL[name]})
    with pytest.warns(UserWarning, match=NONE.format(name)) as told:
        for _ in range(2):
            list(loader)
    assert len(told) == 1


@pytest.mark.parametrize("way", WAYS)
def test_a_key_that_one_record_has(files, way):
    for _ in range(2):
        for _ in WAYS[way](files, {"rare": VarLenFeature(torch.int64)}):
            break  # an epoch that is left, without that record


@pytest.mark.parametrize("place", ["context", "lists"])
def test_sequences(tmp_path, place):
    with TFRecordWriter(tmp_path / "a") as writer:
        writer.write(encode_sequence_example({"x": 1}, {"y": [[1], [2]]}))
    spec = FixedLenSequenceFeature((), torch.int64, allow_missing=True)
    there = {"x": FixedLenFeature((), torch.int64)}, {"y": spec}
    list(make_dataloader(tmp_path / "a", 2, SequenceFeatures(*there)))
    # What is in the context is not in the lists, and the other way round.
    swapped = (
        (there[0] | {"y": VarLenFeature(torch.int64)}, there[1])
        if place == "context"
        else (there[0], there[1] | {"x": VarLenFeature(torch.int64)})
    )
    with pytest.warns(
        UserWarning, match=f"the key of feature '{'y' if place == 'context' else 'x'}' "
    ):
        list(make_dataloader(tmp_path / "a", 2, SequenceFeatures(*swapped)))


@pytest.mark.slow
def test_workers_tell_once(files, tmp_path):
    """Over all epochs and workers, on stderr."""
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import torch
from torch.utils.data import DataLoader
from torch_tfrecord import TFRecordDataset, VarLenFeature, collate
dataset = TFRecordDataset({files!r}, {{"lable": VarLenFeature(torch.int64)}})
loader = DataLoader(dataset, 8, num_workers=2, collate_fn=collate)
for _ in range(2):
    for _ in loader:
        pass
"""
    )
    done = subprocess.run([sys.executable, program], capture_output=True, text=True, check=True)
    assert done.stderr.count("none of 40 records looked at, of 4 files, has the key") == 1
    assert done.stderr.count("UserWarning") == 1


def test_files_without_records(tmp_path):
    for name in "ab":
        TFRecordWriter(tmp_path / name).close()
    what = rf"^no file has a record: 2 files, '{tmp_path}/a', \.\.\.$"
    with pytest.warns(UserWarning, match=what):
        TFRecordDataset(tmp_path / "?")
    stream = TFRecordIterableDataset(tmp_path / "?")
    with pytest.warns(UserWarning, match=what) as told:
        assert [*stream, *stream] == []
    assert len(told) == 1


@pytest.mark.parametrize("rank", range(4))
def test_a_rank_without_the_only_record_that_has_it(files, rank):
    ranks = {"rank": rank, "world_size": 4, "seed": 0}
    loader = make_dataloader(files, 2, {"rare": VarLenFeature(torch.int64)}, **ranks)
    assert sum(len(row) for batch in loader for row in batch["rare"].unbind()) == (rank == 1)


def test_other_records_have_their_own_error(tmp_path):
    with TFRecordWriter(tmp_path / "text") as writer:
        writer.write(b"no Example")
    with pytest.raises(ParseError, match="record 0"):
        list(make_dataloader(tmp_path / "text", 2, {"x": VarLenFeature(torch.int64)}))
