"""Resume states: loaded and gone on from with samples that exist, or ValueError when they are
loaded.

The first byte of an input chooses the object, the rest is its state as JSON.
"""

import itertools
import json

from tools import FOLDER, damage, damage_json, framed, outcome

from torch_tfrecord import RecordSampler, TFRecordDataset, TFRecordIterableDataset
from torch_tfrecord.order import RecordBatchSampler, RecordOrder

COMPILED = False
_MOST_ITEMS = 60
# Only an iteration knows its consumer, and what is in the files.
_FOR_WHOM = ("missing", "another", "this is consumer", "the file has changed")


def _paths():
    paths = [f"{FOLDER}/states-{number}.tfrecord" for number in range(3)]
    for number, path in enumerate(paths):
        with open(path, "wb") as file:
            file.write(framed([b"%d %d" % (number, at) for at in range(7)]))
    return paths


_PATHS = _paths()
_DATASET = TFRecordDataset(_PATHS, index="memory")
_RECORDS = set(_DATASET)


def _stream(**options):
    return lambda: TFRecordIterableDataset(_PATHS, rank=0, world_size=1, **options)


def _batches(num_epochs, **options):
    order = RecordOrder(_DATASET, 4, **options)
    return lambda: RecordBatchSampler(_DATASET, order, num_epochs, 0, 1)


_MAKERS = [
    lambda: RecordSampler(_DATASET, rank=0, world_size=1),
    _batches(2, shuffle="blocks"),
    _batches(None, weights=[1.0] * len(_DATASET)),
    _stream(),
    _stream(shuffle=True, shuffle_buffer_size=5, cycle_length=2, block_length=2),
]


def seeds():
    found = []
    for number, make in enumerate(_MAKERS):
        for count in (0, 2, 9):
            holder = make()
            iterator = iter(holder)
            list(itertools.islice(iterator, count))
            found.append(bytes([number]) + json.dumps(holder.state_dict()).encode())
    parts = [TFRecordIterableDataset(_PATHS, rank=rank, world_size=2) for rank in range(2)]
    states = [(list(itertools.islice(iter(part), 3)), part.state_dict())[1] for part in parts]
    return [*found, bytes([3]) + json.dumps(states).encode()]


def mutate(rng, data):
    try:
        state = damage_json(rng, json.loads(data[1:]))
    except ValueError:
        return data[:1] + damage(rng, data[1:], 2)
    return data[:1] + json.dumps(state).encode()


def check(data):
    try:
        state = json.loads(data[1:])
    except (ValueError, RecursionError):
        return
    holder = _MAKERS[(data[0] if data else 0) % len(_MAKERS)]()
    kinds = ValueError if isinstance(state, (dict, list)) else (ValueError, TypeError)
    _, error = outcome(holder.load_state_dict, state, errors=kinds)
    if error is not None:
        return
    items, error = outcome(
        lambda: list(itertools.islice(iter(holder), _MOST_ITEMS)), errors=ValueError
    )
    assert error is None or any(words in str(error) for words in _FOR_WHOM)
    for item in items or ():
        numbers = item if isinstance(item, list) else [item]
        assert all(
            number in _RECORDS if isinstance(number, bytes) else 0 <= number < len(_DATASET)
            for number in numbers
        )
