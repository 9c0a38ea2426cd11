"""RecordStream: tf.data's interleave, the buffer, and going on from every place, by the same or by
other consumers.

Covers streams/stream_pieces.
"""

import json
from collections import Counter
from itertools import islice

import numpy as np
import pytest
from helpers import for_each
from hypothesis import given, settings
from hypothesis import strategies as st

from torch_tfrecord.random_stream import RandomStream
from torch_tfrecord.records import Block, PackedRecords
from torch_tfrecord.streams.record_stream import RecordStream
from torch_tfrecord.streams.stream_pieces import Piece, deal_out, picked_pieces

pytestmark = pytest.mark.usefixtures("random_states_untouched")


class Files:
    """Files of so many records, each with its name as payload, read in blocks of 4."""

    def __init__(self, sizes):
        self.sizes = (
            dict(enumerate(sizes)) if isinstance(sizes, list) else dict(enumerate(sizes.values()))
        )
        self.names = [*map(str, self.sizes)] if isinstance(sizes, list) else [*sizes]
        self.opened, self.open_now, self.most = [], set(), 0

    def __call__(self, file):
        token = object()
        self.opened.append(file)
        self.open_now.add(token)
        self.most = max(self.most, len(self.open_now))
        for begin in range(0, self.sizes[file], 4):
            payloads = [
                f"{self.names[file]}.{n}".encode()
                for n in range(begin, min(begin + 4, self.sizes[file]))
            ]
            lengths = np.array([*map(len, payloads)], dtype=np.int64)
            packed = PackedRecords(b"".join(payloads), np.cumsum(lengths) - lengths, lengths)
            yield Block(begin, np.arange(begin, begin + len(payloads)) * 100, lengths, packed)
        self.open_now.discard(token)


def stream(files, pieces=None, *, cycle_length=1, block_length=1, buffer_size=0, seed=0):
    pieces = [Piece(file) for file in files.sizes] if pieces is None else pieces
    return RecordStream(
        pieces,
        files,
        cycle_length=cycle_length,
        block_length=block_length,
        buffer_size=buffer_size,
        random=RandomStream(seed),
        origin={},
    )


def text(records):
    return " ".join(payload.decode().replace(".", "") for payload, *_ in records)


FILES = {"a": 5, "b": 3, "c": 1, "e": 4}
INTERLEAVED = [  # robustness 84: TensorFlow's order
    (1, 1, "a0 a1 a2 a3 a4 b0 b1 b2 c0 e0 e1 e2 e3"),
    (2, 1, "a0 b0 a1 b1 a2 b2 a3 a4 c0 e0 e1 e2 e3"),
    (3, 1, "a0 b0 c0 a1 b1 a2 b2 e0 a3 e1 a4 e2 e3"),
    (4, 1, "a0 b0 c0 e0 a1 b1 e1 a2 b2 e2 a3 e3 a4"),
    (8, 1, "a0 b0 c0 e0 a1 b1 e1 a2 b2 e2 a3 e3 a4"),
    (2, 2, "a0 a1 b0 b1 a2 a3 b2 a4 c0 e0 e1 e2 e3"),
    (3, 3, "a0 a1 a2 b0 b1 b2 c0 a3 a4 e0 e1 e2 e3"),
]


@pytest.mark.parametrize(("cycle_length", "block_length", "order"), INTERLEAVED)
def test_interleave_as_tensorflow(cycle_length, block_length, order):
    assert (
        text(stream(Files(FILES), cycle_length=cycle_length, block_length=block_length).records())
        == order
    )


def test_a_file_is_opened_no_earlier_than_needed():
    files = Files([3] * 10)
    records = stream(files, cycle_length=2).records()
    assert [next(records)[1] for _ in range(3)] == [0, 1, 0]
    assert files.opened == [0, 1]


def taken(found, count=None):
    """Numbers of records, one by one; of a plain stream as its user takes them."""
    source = (
        plainly(found)
        if found.is_plain
        else ((file, number) for _, file, _, number in found.records())
    )
    return list(islice(source, count))


def plainly(found):
    for group in found.parts():
        for pair in zip(group.files.tolist(), group.numbers.tolist(), strict=True):
            found.num_taken += 1
            yield pair


OPTIONS = st.fixed_dictionaries(
    {
        "cycle_length": st.integers(1, 4),
        "block_length": st.integers(1, 3),
        "buffer_size": st.sampled_from([0, 1, 2, 5, 30]),
        "seed": st.integers(0, 3),
    }
)


@pytest.mark.daily
@given(st.lists(st.integers(0, 9), max_size=6), OPTIONS)
@settings(max_examples=60)
def test_going_on_from_every_place(sizes, options):
    whole = taken(stream(Files(sizes), **options))
    for count in range(len(whole) + 1):
        first = stream(Files(sizes), **options)
        assert taken(first, count) == whole[:count]
        place = json.loads(json.dumps(first.place()))
        again = stream(Files(sizes), **options)
        again.go_to(place)
        assert again.place() == place
        middle = (count + len(whole)) // 2
        assert taken(again, middle - count) == whole[count:middle]
        last = stream(Files(sizes), **options)
        last.go_to(json.loads(json.dumps(again.place())))
        assert taken(last) == whole[middle:]
        left = stream(Files(sizes), first.left(place), **options)
        assert sorted(taken(left)) == sorted(whole[count:])


class DamagedFiles(Files):
    """Files of which one ends with an error."""

    def __init__(self, sizes, damaged):
        super().__init__(sizes)
        self.damaged = damaged

    def __call__(self, file):
        yield from super().__call__(file)
        if file == self.damaged:
            raise OSError(f"no more of {file}")


def taken_in_parts(found, count):
    """So many records, read ahead in parts, and the error where they end."""
    records = []
    try:
        for part in found.parts():
            for row in range(len(part.numbers)):
                if len(records) == count:
                    return records, None
                found.num_taken += 1
                records.append(part.place(row)[::2])
    except OSError as error:
        return records, str(error)
    return records, None


MIXED = OPTIONS.filter(lambda options: options["cycle_length"] > 1 or options["buffer_size"])


@pytest.mark.slow
@given(
    st.lists(st.integers(0, 40), max_size=5),
    MIXED,
    st.integers(0, 60),
    st.none() | st.integers(0, 4),
)
@settings(max_examples=60)
def test_records_read_ahead_are_not_taken(sizes, options, before, damaged):
    """At every record, from wherever it went on, the place leaves what is not taken yet."""
    files = DamagedFiles(sizes, damaged)
    whole, failure = [], None
    try:
        whole.extend(record[1::2] for record in stream(files, **options).records())
    except OSError as error:
        failure = str(error)
    first = stream(files, **options)
    before = min(before, len(whole))
    assert taken_in_parts(first, before)[0] == whole[:before]
    for count in {0, 1, 7, 16, 17, len(whole) - before}:
        third = stream(files, **options)
        third.go_to(json.loads(json.dumps(first.place())))
        rest = whole[before:]
        assert taken_in_parts(third, count)[0] == rest[:count]
        last = stream(files, **options)
        last.go_to(json.loads(json.dumps(third.place())))
        assert taken_in_parts(last, len(whole) + 1) == (rest[count:], failure)


@given(
    st.lists(st.integers(0, 12), max_size=6),
    OPTIONS,
    st.lists(st.integers(1, 5), min_size=1, max_size=4),
    st.data(),
)
@settings(max_examples=60)
def test_any_sequence_of_consumers(sizes, options, counts, data):
    """Each takes some of its part; what they left is dealt out to the next ones; the last ones take
    all.
    """
    pieces, seen = [Piece(file) for file in range(len(sizes))], []
    for generation, count in enumerate(counts):
        left = []
        for consumer in range(count):
            found = stream(Files(sizes), deal_out(pieces, consumer, count), **options)
            is_last = generation == len(counts) - 1
            seen += taken(found, None if is_last else data.draw(st.integers(0, 9)))
            place = json.loads(json.dumps(found.place()))
            left += found.left(place)
        pieces = [Piece(*piece) for piece in json.loads(json.dumps(left))]
    assert Counter(seen) == Counter(
        (file, number) for file, size in enumerate(sizes) for number in range(size)
    )


def test_pieces():
    assert [piece.picked for piece in picked_pieces([(2, 5), (0, 1), (2, 3)])] == [[1], [3, 5]]
    assert Piece(3, picked=(1, 4, 9)).split(1, 2) == Piece(3, picked=(4,))
    assert Piece(3, 1, 2, 7).split(1, 3) == Piece(3, 3, 6, 7)


def test_a_record_that_is_there_no_more():
    found = stream(Files([9]), buffer_size=4)
    taken(found, 2)
    with pytest.raises(ValueError, match="file 0 no longer has record"):
        stream(Files([2]), buffer_size=4).go_to(found.place())


@for_each("num_consumers", range(1, 13))
@for_each("num_files", range(13))
def test_every_record_is_dealt_out_once(num_files, num_consumers):
    lengths = [7 * file % 12 for file in range(num_files)]
    seen = Counter(
        (share.file, record)
        for consumer in range(num_consumers)
        for share in deal_out([*map(Piece, range(num_files))], consumer, num_consumers)
        for record in range(share.part, lengths[share.file], share.parts)
    )
    assert seen == Counter(
        (file, record) for file in range(num_files) for record in range(lengths[file])
    )
    whole = [
        sum(
            share.parts == 1
            for share in deal_out([*map(Piece, range(num_files))], c, num_consumers)
        )
        for c in range(num_consumers)
    ]
    assert max(whole) - min(whole) <= 1


def test_dealing_out_frozen():
    assert [
        tuple(piece[:3] for piece in deal_out([*map(Piece, range(5))], consumer, 4))
        for consumer in range(4)
    ] == [
        ((0, 0, 1), (4, 0, 4)),
        ((1, 0, 1), (4, 1, 4)),
        ((2, 0, 1), (4, 2, 4)),
        ((3, 0, 1), (4, 3, 4)),
    ]
    assert [
        tuple(piece[:3] for piece in deal_out([*map(Piece, range(2))], consumer, 5))
        for consumer in range(5)
    ] == [
        ((0, 0, 3),),
        ((1, 0, 2),),
        ((0, 1, 3),),
        ((1, 1, 2),),
        ((0, 2, 3),),
    ]
