"""Index files of records and of episodes, and kept statistics: what they say is true, or they are
refused.

The first byte of an input chooses the kind, the rest is the file's content. Most inputs have a
flipped bit or damaged bytes; others are what the library writes for tables that lie, with every
checksum right; kept columns too, which an index reads when they are asked for.
"""

import contextlib
import copy
import glob
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import torch
from crc32c import crc32c
from tools import FOLDER, damage, outcome, same

from torch_tfrecord import (
    IndexMismatchError,
    RecordIndex,
    build_index,
    encode_image,
    read_records,
    tfds,
)
from torch_tfrecord.files import open_file
from torch_tfrecord.records.reader import RecordReader
from torch_tfrecord.records.sidecar import sidecar_path
from torch_tfrecord.rlds.episode_index import (
    EpisodeFile,
    EpisodeKeeper,
    EpisodeReader,
    EpisodeRecord,
)
from torch_tfrecord.tables.kept_columns import KeptColumn, StoredColumns

COMPILED = True
_STEP = {
    "image": tfds.features.Image((40, 45, 3), encoding_format="png"),
    "action": tfds.features.Tensor((2,), "float32"),
}
_STEP |= {
    "ids": tfds.features.Sequence(tfds.features.Scalar("int64")),
    "text": tfds.features.Text(),
}
_STEP_LISTS = {"steps/action": 2, "steps/ids": 0, "steps/image": 1, "steps/text": 1}


def _write():
    noise = torch.from_numpy(np.random.default_rng(0).integers(0, 256, (3, 40, 45), np.uint8))
    step = {
        "image": encode_image(noise, "png"),
        "action": [1.0, 2.0],
        "ids": [3, 400, 5],
        "text": "ü",
    }
    episodes = [
        {"steps": [{**step, "action": [at, number]} for at in range(count)]}
        for number, count in enumerate((4, 1))
    ]
    tfds.write(
        f"{FOLDER}/drawn/1.0.0",
        {"train": episodes},
        {"steps": tfds.features.Dataset(_STEP)},
        name="drawn",
    )
    return tfds.info(f"{FOLDER}/drawn")


_INFO = _write()
(_DATA,) = _INFO.files("train")
_TRUE_STATISTICS = tfds.dataset_statistics(_INFO)
_PAYLOADS = list(read_records(_DATA))
_KEPT = ["len(steps/text)", "len(steps/action)"]
_SOURCE, _RECORDS = open_file(_DATA), build_index(_DATA, columns=_KEPT)
_LENGTHS = {name: column.tolist() for name, column in _RECORDS.columns.items()}
_NUM = 30
_COLUMNS = {
    "n": KeptColumn(np.arange(_NUM) * 1000),
    "x": KeptColumn(np.arange(_NUM, dtype=np.float32), np.arange(_NUM) % 2 == 0),
    "s": KeptColumn(np.arange(_NUM) % 3, np.arange(_NUM) % 5 == 0, (b"a", b"bc", b"")),
}
_FILE = EpisodeFile(_DATA, _RECORDS, _STEP_LISTS)
_EPISODES = EpisodeKeeper("memory", None).find(_FILE)
_packed = partial(EpisodeKeeper("memory", None)._packed, _FILE)
_WANTS = tfds.RLDSDataset(_INFO)._store._wants
_PLACES = {b"r": sidecar_path(_DATA), b"e": sidecar_path(_DATA + ".steps")}
(_PLACES[b"s"],) = (
    path
    for path in glob.glob(f"{_INFO.directory}/.torch_index/*")
    if b"torch_tfrecord.statistics" in Path(path).read_bytes()
)
_TRUE = {
    b"r": _RECORDS.to_bytes(),
    b"e": _packed(_EPISODES),
    b"s": Path(_PLACES[b"s"]).read_bytes(),
}


def _lists(episodes):
    """All lists of all episodes."""
    reader = EpisodeReader([episodes])
    found = [EpisodeRecord(reader, 0, number).lists(_WANTS) for number in range(len(_RECORDS))]
    return [
        {
            key: each.read(0, len(each)) if hasattr(each, "read") else each
            for key, each in sorted(lists.items())
        }
        for lists in found
    ]


_TRUE_LISTS = _lists(_EPISODES)


def seeds():
    described, content = StoredColumns.pack(_COLUMNS)
    columns = b"c" + described.encode() + b"\n" + content
    return [*(kind + content for kind, content in _TRUE.items()), columns]


def mutate(rng, data):
    how = rng.random()
    if how < 0.5:
        bit = rng.randrange(8, 8 * len(data)) if len(data) > 1 else 0
        return bytes(byte ^ (1 << bit % 8 if at == bit // 8 else 0) for at, byte in enumerate(data))
    if how < 0.7:
        return data[:1] + damage(rng, data[1:], 3)
    if data[:1] == b"c":
        return data[:1] + _lying_columns(rng)
    lie = {b"r": _lying_index, b"e": _lying_episodes}.get(data[:1])
    return data if lie is None else data[:1] + lie(rng)


def _lying(rng, array):
    array = array.copy()
    array.flat[rng.randrange(array.size)] += rng.choice([-(2**40), -17, -1, 1, 16, 2**40])
    return array


def _lying_index(rng):
    other = copy.copy(_RECORDS)
    for name in rng.choice([("offsets",), ("lengths",), ("offsets", "lengths")]):
        object.__setattr__(other, name, _lying(rng, getattr(other, name)))
    return other.to_bytes()


def _lying_columns(rng):
    """Places of others, with checksums of what is there."""
    described, content = StoredColumns.pack(_COLUMNS)
    places = json.loads(described)
    content = damage(rng, content, 1) if rng.random() < 0.7 else content
    place = rng.choice(places)
    field = rng.choice([1, 2, 3, 4])
    place[field] = rng.choice(["<i1", "<f4", "<i8", -1, 0, 1, 2, 5, 40, 2**31, 2**62, True, None])
    at = 0
    for one in places:
        size = one[4] if isinstance(one[4], int) else 0
        one[5] = crc32c(content[at : at + max(size, 0)])
        at += max(size, 0)
    return json.dumps(places).encode() + b"\n" + content


def _check_columns(data):
    """Any columns are read as some, of so many records, or refused; nothing else."""
    described, _, content = data.partition(b"\n")
    text, num_bytes = described.decode("latin-1"), 0
    with contextlib.suppress(ValueError, TypeError, LookupError):
        num_bytes = sum(place[4] for place in json.loads(text))
    try:
        read = lambda at, size: content[at : at + size]  # noqa: E731
        stored = StoredColumns(text, _NUM, num_bytes, read)
    except (ValueError, TypeError, IndexMismatchError):
        return
    for name in stored:
        column, _ = outcome(stored.__getitem__, name, errors=IndexMismatchError)
        if column is not None:
            assert len(column.array()) == _NUM
            assert len(column.matches([], name)) == _NUM


def _lying_episodes(rng):
    """Ends that do not ascend, keys and lengths of others; the values' own checksums are not
    mended.
    """
    if rng.randrange(3) == 0:
        return _packed(replace(_EPISODES, ends=_lying(rng, _EPISODES.ends)))
    words = _EPISODES.pieces.copy()
    words.flat[rng.randrange(words.size)] = rng.choice([1, 2, 3, 4, 5, 7, 2**31, 2**32 - 1])
    return _packed(replace(_EPISODES, pieces=words))


def check(data):
    kind, content = data[:1], data[1:]
    if kind == b"c":
        return _check_columns(content)
    if kind not in _PLACES:
        return None
    _put(kind, content)
    try:
        _check(kind)
    finally:
        _put(kind, _TRUE[kind])
    return None


def _put(kind, content):
    with open(_PLACES[kind], "wb") as file:
        file.write(content)


def _check(kind):
    if kind == b"r":
        index, _ = outcome(RecordIndex.load, _PLACES[kind], errors=IndexMismatchError)
        if (
            index is None
            or outcome(index.check_fresh, _SOURCE, errors=IndexMismatchError)[1] is not None
        ):
            return
        for name in index._kept:
            column, _ = outcome(index._kept.__getitem__, name, errors=IndexMismatchError)
            assert column is None or column.array().tolist() == _LENGTHS[name]
        for number, place in enumerate(
            zip(index.offsets.tolist(), index.lengths.tolist(), strict=True)
        ):
            payload, error = outcome(RecordReader().read, _SOURCE, *place)
            assert error is not None or payload == _PAYLOADS[number]
        assert (
            len(index) == len(_PAYLOADS)
            or index.offsets.tolist() != _RECORDS.offsets.tolist()[: len(index)]
        )
    elif kind == b"e":
        keeper = EpisodeKeeper("require", None)
        episodes, _ = outcome(keeper.find, _FILE, errors=IndexMismatchError)
        lists, _ = (None, None) if episodes is None else outcome(_lists, episodes)
        assert episodes is None or episodes.num_steps.tolist() == _EPISODES.num_steps.tolist()
        assert lists is None or same(lists, _TRUE_LISTS)
    else:
        assert tfds.dataset_statistics(_INFO) == _TRUE_STATISTICS
