"""The search for the next record: by its definition, and in a number of bytes that grows with the
stream alone.
"""

import random

import pytest
from helpers import compressed, framed, header

from torch_tfrecord import read_records
from torch_tfrecord.files.inflated import InflatedSource, PipeSource
from torch_tfrecord.files.storage import LocalFile
from torch_tfrecord.records import resync
from torch_tfrecord.records.resync import RecordSearch


class Memory:
    path, max_record_bytes, chunk_bytes = "m", None, 1 << 19

    def __init__(self, content):
        self.content, self.size = content, len(content)

    def read(self, num_bytes, offset):
        return self.content[offset : offset + num_bytes]


class Forward:
    name = "pipe"

    def __init__(self, content):
        self.content, self.at = content, 0

    def read(self, num_bytes):
        piece = self.content[self.at : self.at + min(num_bytes, 100)]
        self.at += len(piece)
        return piece


def record_end(data, place):
    """Where the good record at a place ends, or None."""
    head = data[place : place + 12]
    length = int.from_bytes(head[:8], "little")
    if len(head) < 12 or header(length) != head or length > len(data):
        return None
    end = place + length + 16
    return (
        end if end <= len(data) and framed(data[place + 12 : end - 4]) == data[place:end] else None
    )


def is_header(data, place):
    head = data[place : place + 12]
    return (
        len(head) == 12
        and header(int.from_bytes(head[:8], "little")) == head
        and head[6:8] == b"\0\0"
    )


def is_border(data, place):
    return place == len(data) or (place < len(data) and is_header(data, place))


def chain_end(data, place, end):
    """Where good records from a place on end, or lead past an offset, also over damaged payloads
    that end at a border.
    """
    behind = record_end(data, place)
    while behind is not None and behind < end:
        place, behind = behind, record_end(data, behind)
        if behind is None and is_header(data, place):
            claimed = place + 16 + int.from_bytes(data[place : place + 8], "little")
            behind = claimed if is_border(data, claimed) else None
    return place if behind is None else behind


def is_in_payload(data, place):
    """Whether a checksum and a record are behind the good records from a place on."""
    at = place
    while (behind := record_end(data, at)) is not None:
        at = behind
    return record_end(data, at + 4) is not None


def leads_past(data, place, end, is_inner):
    """Whether good records from a place on lead to an offset or past it, or to the end."""
    at = chain_end(data, place, end)
    is_last = not is_inner and at == len(data)
    return at > place and (at >= end or is_last)


def next_record(data, begin, window):
    """What `RecordSearch.find` promises, one place and one checksum after the other."""
    head = data[begin : begin + 12]
    length = int.from_bytes(head[:8], "little")
    is_good = header(length) == head
    end = begin + 16 + length if len(head) == 12 else begin
    if not is_good:
        places = [
            at
            for at in range(begin + 16, min(begin + window - 11, len(data)))
            if is_header(data, at)
        ]
        places += [len(data)] if begin + 16 <= len(data) < begin + window else []
        closed = [
            at for at in places if framed(data[begin + 12 : at - 4])[-4:] == data[at - 4 : at]
        ]
        if closed:
            return closed[-1]
    limit = end if end > begin and is_border(data, end) else len(data)
    if not is_good and limit == end:
        return end
    at = begin + 12 if is_good else begin + 1
    while at < limit:
        if leads_past(data, at, end if is_good else begin, is_good and at == begin + 12) and not (
            limit == len(data) and is_in_payload(data, at)
        ):
            return at
        at = max(chain_end(data, at, end if is_good else begin), at + 1)
    return limit


def hostile(rng):
    """Records, nested ones, damage, junk, headers that claim what follows or more."""
    parts, size = [], rng.randrange(200, 3000)
    while sum(map(len, parts)) < size:
        how = rng.randrange(7)
        good = framed(
            *[rng.randbytes(rng.choice([0, 1, 8, 30, 200])) for _ in range(rng.randrange(1, 4))]
        )
        if how == 0:
            parts.append(framed(rng.choice([good, b"junk" + good, good + b"junk", framed(good)])))
        elif how == 1:
            parts.append(header(rng.choice([0, 1, 5, 100, 700, 2**40, 2**48, 2**63])))
        elif how == 2:
            parts.append(bytes(rng.randrange(40)))
        else:
            parts.append(good)
        if rng.random() < 0.5:
            damaged = bytearray(parts[-1] or b"x")
            damaged[
                rng.choice([0, 8, len(damaged) - 1, rng.randrange(len(damaged))]) % len(damaged)
            ] ^= 1
            parts[-1] = bytes(damaged)
    data = b"".join(parts)
    for _ in range(rng.randrange(4)):  # a long one that closes, around others
        begin, end = sorted(rng.sample(range(len(data)), 2))
        data = data[:begin] + framed(data[begin:end]) + data[end:]
    return data


@pytest.fixture
def small(monkeypatch):
    """Windows and pieces of a few bytes, so that records lie across them."""

    def change(window, piece):
        monkeypatch.setattr(resync, "_RESYNC_BYTES", window)
        monkeypatch.setattr(resync, "_PIECE_BYTES", piece)
        return window

    return change


@pytest.mark.daily
@pytest.mark.parametrize("way", ["plain", "pipe", "GZIP"])
@pytest.mark.parametrize("seed", range(6))
def test_every_search_finds_what_a_search_alone_finds(small, way, seed):
    rng = random.Random(seed)
    for _ in range(6):
        window = small(rng.choice([64, 200, 1000, 5000]), rng.choice([64, 100, 1000]))
        data = hostile(rng)
        if way == "plain":
            source = Memory(data)
        else:
            source = (
                PipeSource(Forward(data))
                if way == "pipe"
                else InflatedSource(Memory(compressed(data, way)), way)
            )
        search, at = RecordSearch(source), 0
        while at < len(data):
            if record_end(data, at) is None:
                found, kind = search.find(at)
                if kind == "doubled":
                    break  # see test_salvage
                assert found == next_record(data, at, window), (seed, at)
                at = found
            end = record_end(data, at)
            at = rng.choice(
                [at + 1, at + 2, at + 16] if end is None else [end, end, at + 1, at + 13]
            )


# Work.


def damaged_records(count, flipped):
    """Records of which every second has a changed byte."""
    parts = [bytearray(framed(random.Random(number).randbytes(60))) for number in range(count)]
    for part in parts[::2]:
        part[flipped] ^= 1
    return b"".join(parts)


def claiming(count, left):
    """Damage, then good headers that each claim what `left` makes of the bytes behind them, then a
    record.
    """
    end = framed(b"the record")
    # from each header on
    behind = [12 * (count - number) + 20 + len(end) for number in range(count)]
    headers = [header(left(size)) for size in behind]
    return b"\xff" * 13 + b"".join(headers) + b"\xee" * 20 + end


def nested(count):
    """Damage in front of each record, with headers that claim a part of what follows."""
    claims = b"".join(header(40 * number) for number in range(1, 20))
    return b"".join(b"\xff" * 13 + claims + framed(bytes(30)) for _ in range(count))


KINDS = {
    "payloads": lambda size: damaged_records(size, 20),
    "lengths": lambda size: damaged_records(size, 0),
    "length checksums": lambda size: damaged_records(size, 9),
    "tiny": lambda size: (framed(b"a")[:-1] + b"\0" + framed(b"b")) * (2 * size),
    "all that follows": lambda size: claiming(3 * size, lambda behind: behind - 16),
    "half of what follows": lambda size: claiming(3 * size, lambda behind: behind // 2),
    "more than follows": lambda size: claiming(3 * size, lambda behind: behind + 1),
    "nested": lambda size: nested(size // 4),
}


@pytest.mark.parametrize("make", KINDS.values(), ids=KINDS)
def test_skipping_goes_over_the_bytes_a_few_times(tmp_path, monkeypatch, recwarn, small, make):
    """Each byte is read, searched and summed a few times, at any size, where it was once for each
    damaged place.
    """
    small(1 << 14, 1 << 13)
    monkeypatch.setattr(resync, "_BUDGET_BYTES", 1 << 14)
    monkeypatch.setattr(resync, "_DOUBLE_BUDGET_BYTES", 1 << 15)
    monkeypatch.setattr(LocalFile, "chunk_bytes", 1 << 12)
    work = dict.fromkeys(("read", "headers", "sums"), 0)

    def count(what, function, size):
        def counting(*args):
            work[what] += size(*args)
            return function(*args)

        return counting

    monkeypatch.setattr(
        LocalFile, "read", count("read", LocalFile.read, lambda file, size, offset: size)
    )
    into = count("read", LocalFile.read_into, lambda file, buffer, offset: len(buffer))
    monkeypatch.setattr(LocalFile, "read_into", into)
    monkeypatch.setattr(resync, "find_headers", count("headers", resync.find_headers, len))
    sums = count("sums", resync.crc32c, lambda data, *before: len(data))
    monkeypatch.setattr(resync, "crc32c", sums)
    for size in (400, 1600):
        data = make(size)
        (tmp_path / "a").write_bytes(data)
        work.update(read=0, headers=0, sums=0)
        sum(1 for _ in read_records(tmp_path / "a", on_error="skip"))
        assert work["headers"] <= 3.1 * len(data) + (1 << 16)
        assert work["sums"] <= 10 * len(data) + (1 << 15), size
        assert work["read"] <= 24 * len(data) + (1 << 17), size


def test_headers_that_claim_what_follows(tmp_path, recwarn):
    path = tmp_path / "a"
    path.write_bytes(claiming(300, lambda behind: behind - 16))
    assert list(read_records(path, on_error="skip")) == [b"the record"]
    assert "skipped 3633 damaged bytes" in str(recwarn.list[0].message)
