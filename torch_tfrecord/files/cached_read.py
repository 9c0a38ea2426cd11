"""One read through the block cache: what is there, what is missing, what of it is kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import NamedTuple, TypeAlias

from crc32c import crc32c

from torch_tfrecord.files.block_table import BlockTable, Entry, digest

__all__ = ["CachedFile", "CachedRead", "Fetch", "Range"]

_MOST_JOINED_BYTES = 8 << 20


class CachedFile:
    """A remote file as it is now.

    Args:
        path: Any text that tells files apart; it should hold no credentials, which change while the
            file does not.
        version: What changes with the content: an ETag, a version, a time.
        size: Bytes.

    Attributes:
        identity: Equal for equal content.
    """

    __slots__ = ("identity", "path", "path_digest", "size", "version_digest")

    def __init__(self, path: str, version: str, size: int) -> None:
        self.path, self.size = path, size
        self.path_digest = digest(path)
        self.version_digest = digest(f"{size} {version}")
        self.identity = self.path_digest + self.version_digest


class Range(NamedTuple):
    """Bytes of a file, from `begin` to before `end`, inside of it."""

    file: CachedFile
    begin: int
    end: int


Fetch: TypeAlias = Callable[[Sequence[Range]], Sequence["bytes | memoryview"]]


class _Block(NamedTuple):
    """A slot's worth of a file.

    Attributes:
        begin: Its first byte in the file.
        end: Behind its last one.
    """

    file: CachedFile
    begin: int
    end: int

    @property
    def name(self) -> tuple[bytes, int]:
        """Equal for the same block of the same content."""
        return self.file.identity, self.begin

    @property
    def key(self) -> bytes:
        """Equal for the same block of whatever version."""
        return digest(f"{self.file.path_digest.hex()} {self.begin}", 16)

    def entry(self, table: BlockTable) -> Entry | None:
        """Where it lies."""
        return table.find(self.key, self.file.version_digest)


def _joins(last: Range, following: Range) -> bool:
    """Whether a range continues where another ends, or overlaps with it, which no size excuses from
    joining.
    """
    if last.file.identity != following.file.identity or following.begin > last.end:
        return False
    return following.begin < last.end or following.end - last.begin <= _MOST_JOINED_BYTES


class CachedRead:
    """The steps of one read, in the order of its methods.

    Args:
        table: Of the cache's file.
        ranges: What is wanted.

    Attributes:
        table: Of the cache's file.
        hit_bytes: That came from the cache.
        fetched_bytes: That were fetched.
        groups: Whose blocks were used.
    """

    def __init__(self, table: BlockTable, ranges: Sequence[Range]) -> None:
        self.table = table
        self._slot_bytes = table.file.geometry.slot_bytes
        self._sector_bytes = table.file.geometry.sector_bytes
        self._spans = [[*self._blocks(wanted)] for wanted in ranges]
        self._wanted = {span[0].name: span[0] for spans in self._spans for span in spans}
        self._entries = {name: block.entry(table) for name, block in self._wanted.items()}
        self._parts: list[list[bytes | Range]] = []
        self._fetched: dict[bytes, list[tuple[Range, bytes | memoryview]]] = {}
        self.hit_bytes = self.fetched_bytes = 0
        self.groups = {entry.group for entry in self._entries.values() if entry is not None}

    def claim(self) -> None:
        """Make room for the blocks that are not there, as far as there is any."""
        absent = [block for block in self._wanted.values() if self._entries[block.name] is None]
        absent = [block for block in absent if self.table.may_claim(block.key)]
        if absent:
            current = {
                block.file.path_digest: block.file.version_digest for block in self._wanted.values()
            }
            with self.table.file.locked():
                for block in absent:
                    self._entries[block.name] = self.table.claim(
                        block.key, block.file.path_digest, current
                    )

    def missing(self) -> list[Range]:
        """What must be fetched, joined where it touches, up to what one request is good for."""
        self._parts = [
            [part for span in spans for part in self._found(*span)] for spans in self._spans
        ]
        wanted = [
            self._rounded(part)
            for parts in self._parts
            for part in parts
            if isinstance(part, Range)
        ]
        joined: list[Range] = []
        for one in sorted(wanted, key=lambda one: (one.file.identity, one.begin)):
            if joined and _joins(joined[-1], one):
                joined[-1] = joined[-1]._replace(end=max(joined[-1].end, one.end))
            else:
                joined.append(one)
        return joined

    def take(self, ranges: Sequence[Range], fetched: Sequence[bytes | memoryview]) -> None:
        """The bytes of what was missing."""
        for wanted, data in zip(ranges, fetched, strict=True):
            self._fetched.setdefault(wanted.file.identity, []).append((wanted, data))
            self.fetched_bytes += len(data)

    def keep(self) -> None:
        """Write to the disk what was fetched of blocks that have room."""
        pieces = [
            piece
            for pairs in self._fetched.values()
            for pair in pairs
            for piece in self._to_keep(*pair)
        ]
        if pieces:
            with self.table.file.locked():
                for block, first, data, checksums in pieces:
                    entry = block.entry(self.table)
                    if entry is not None:  # else others needed the room
                        self.table.file.write(
                            data, self.table.data_at(entry.slot) + first * self._sector_bytes
                        )
                        self.table.add(entry, checksums)

    def forget(self) -> bool:
        """Drop what is kept of the ranges; whether any of it was."""
        found = False
        with self.table.file.locked():
            for block, begin, end in (span for spans in self._spans for span in spans):
                entry = block.entry(self.table)
                if entry is not None:
                    found |= self.table.drop(entry, self._sectors(block, begin, end))
        return found

    def results(self) -> list[bytes | memoryview]:
        """The bytes of each range."""
        found = [
            [self._cut(part) if isinstance(part, Range) else part for part in parts]
            for parts in self._parts
        ]
        return [parts[0] if len(parts) == 1 else b"".join(parts) for parts in found]

    def _blocks(self, wanted: Range) -> Iterator[tuple[_Block, int, int]]:
        """The blocks that a range lies in, with what is wanted of each."""
        size, end = self._slot_bytes, min(wanted.end, wanted.file.size)
        for begin in range(wanted.begin // size * size, end if wanted.begin < end else 0, size):
            block = _Block(wanted.file, begin, min(begin + size, wanted.file.size))
            yield block, max(wanted.begin, begin), min(end, block.end)

    def _sectors(self, block: _Block, begin: int, end: int) -> range:
        """The numbers of the sectors that bytes of a block lie in."""
        return range(
            (begin - block.begin) // self._sector_bytes,
            -(-(end - block.begin) // self._sector_bytes),
        )

    def _found(self, block: _Block, begin: int, end: int) -> Iterator[bytes | Range]:
        """Bytes that are there, and ranges that are not, in order."""
        entry = self._entries[block.name]
        if entry is None:
            yield Range(block.file, begin, end)
            return
        held = entry.held
        for is_held, run in groupby(
            self._sectors(block, begin, end), lambda sector: held >> sector & 1
        ):
            sectors = [*run]
            at = block.begin + sectors[0] * self._sector_bytes
            low, high = (
                max(begin, at),
                min(end, block.begin + (sectors[-1] + 1) * self._sector_bytes),
            )
            data = self._good(entry, block, sectors) if is_held else None
            if data is None:
                yield Range(block.file, low, high)
            else:
                self.hit_bytes += high - low
                yield data[low - at : high - at]

    def _good(self, entry: Entry, block: _Block, sectors: Sequence[int]) -> bytes | None:
        """The bytes of some sectors in a row; None where one is damaged, or has given way to
        another block's.
        """
        size = self._sector_bytes
        begin, end = sectors[0] * size, min((sectors[-1] + 1) * size, block.end - block.begin)
        data = self.table.file.read(end - begin, self.table.data_at(entry.slot) + begin)
        if len(data) < end - begin:
            return None
        if len(sectors) == 1:
            return data if crc32c(data) == entry.checksums[sectors[0]] else None
        view = memoryview(data)
        found = tuple(crc32c(view[at : at + size]) for at in range(0, len(data), size))
        return data if found == entry.checksums[sectors[0] : sectors[-1] + 1] else None

    def _rounded(self, wanted: Range) -> Range:
        """With the sectors around it, where they will be kept."""
        begin = wanted.begin // self._slot_bytes * self._slot_bytes
        block = _Block(wanted.file, begin, min(begin + self._slot_bytes, wanted.file.size))
        if self._entries[block.name] is None:
            return wanted
        sectors, size = self._sectors(block, wanted.begin, wanted.end), self._sector_bytes
        return Range(
            wanted.file, begin + sectors.start * size, min(begin + sectors.stop * size, block.end)
        )

    def _to_keep(
        self, wanted: Range, data: bytes | memoryview
    ) -> Iterator[tuple[_Block, int, memoryview, Mapping[int, int]]]:
        """Whole sectors of what was fetched: block, first sector, bytes, and the checksum of each
        sector.
        """
        if len(data) != wanted.end - wanted.begin:
            return
        view, size = memoryview(data), self._sector_bytes
        for block, begin, end in self._blocks(wanted):
            if self._entries.get(block.name) is None:
                continue
            first = -(-(begin - block.begin) // size)
            begin = block.begin + first * size
            if end < block.end:
                end -= (end - block.begin) % size
            if begin < end:
                part = view[begin - wanted.begin : end - wanted.begin]
                sums = {
                    first + at // size: crc32c(part[at : at + size])
                    for at in range(0, len(part), size)
                }
                yield block, first, part, sums

    def _cut(self, wanted: Range) -> bytes | memoryview:
        pairs = self._fetched[wanted.file.identity]
        fetched, data = pairs[bisect_right(pairs, wanted.begin, key=lambda pair: pair[0].begin) - 1]
        return memoryview(data)[wanted.begin - fetched.begin : wanted.end - fetched.begin]
