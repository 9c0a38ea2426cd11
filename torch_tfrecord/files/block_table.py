"""Which blocks of which files a `BlockFile` holds: finding them, and making room for others."""

from __future__ import annotations

import hashlib
import struct
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from crc32c import crc32c

from torch_tfrecord.files.block_file import HEADER_BYTES, BlockFile

__all__ = ["BlockTable", "Entry", "digest"]

_KEY_BYTES = 16
_FREE = bytes(_KEY_BYTES)
# key, file, version, group, sectors held; then a checksum for each, and its own
_FACTS = struct.Struct("<16s8s8s8sQ")
_GROUP = struct.Struct("<8sdI")
_COUNTS = struct.Struct("<QQI")
_COUNTS_AT = 512
_GROUPS_AT = 1024
_MOST_GROUPS = 64
# Data that nobody has read for so long gives way. An epoch may take days, but reads some of its
# files all the time.
_IDLE_SECONDS = 600.0
_FULL_SECONDS = 30.0


def digest(text: str, size: int = 8) -> bytes:
    """A hash of a name: names, which may hold secrets, do not go to the disk."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=size).digest()


class Entry(NamedTuple):
    """What a slot holds.

    Attributes:
        slot: Its number.
        key: Hash of the file and the block.
        file: Hash of the file's path.
        version: Hash of its content's identity.
        group: Hash of what it is used with.
        held: Bit i is set where sector i is there.
        checksums: CRC-32C of each sector; 0 where it is not there.
    """

    slot: int
    key: bytes
    file: bytes
    version: bytes
    group: bytes
    held: int
    checksums: tuple[int, ...]


class BlockTable:
    """The keys and entries of a file. What changes them is called inside `BlockFile.locked`.

    Args:
        file: Where they lie.
        group: Hash of what is used together: its blocks keep each other alive.
    """

    def __init__(self, file: BlockFile, group: bytes) -> None:
        self.file = file
        self._layout = file.geometry
        self._group = group
        self._checksums = struct.Struct(f"<{self._layout.num_sectors}I")
        self._full: dict[tuple[int, ...], float] = {}

    def find(self, key: bytes, version: bytes) -> Entry | None:
        """The entry of a block in that version."""
        entry = self._find(key)
        if entry is None or entry.version == version:
            return entry
        self._full.clear()  # the old version's blocks are room
        return None

    def may_claim(self, key: bytes) -> bool:
        """Whether it is worth asking for room."""
        return self._full.get(self._sets(key), 0.0) < time.monotonic()

    def claim(self, key: bytes, file: bytes, current: Mapping[bytes, bytes]) -> Entry | None:
        """Room for a block: its entry, still without sectors; None where everything else is worth
        more.

        Args:
            key: Of the block.
            file: Hash of its file's path.
            current: The version of this file and of others, by the hash of the path: other ones of
                these go first.
        """
        version = current[file]
        found = self._find(key)
        if found is not None and found.version == version:
            return found
        slot = found.slot if found is not None else self._room(key, current)
        if slot is None:
            self._full[self._sets(key)] = time.monotonic() + _FULL_SECONDS
            return None
        # an entry whose key is not there counts for nothing
        self.file.write(_FREE, self._key_at(slot))
        entry = Entry(slot, key, file, version, self._group, 0, (0,) * self._layout.num_sectors)
        self._write(entry)
        self.file.write(key, self._key_at(slot))
        return entry

    def add(self, entry: Entry, sectors: Mapping[int, int]) -> None:
        """Sectors are there now, with these checksums."""
        checksums = list(entry.checksums)
        held = entry.held
        for sector, checksum in sectors.items():
            checksums[sector] = checksum
            held |= 1 << sector
        self._write(entry._replace(held=held, checksums=tuple(checksums)))

    def drop(self, entry: Entry, sectors: Iterable[int]) -> bool:
        """Sectors are gone; whether any was there."""
        gone = entry.held & sum(1 << sector for sector in set(sectors))
        if gone:
            self._write(entry._replace(held=entry.held & ~gone))
        return gone != 0

    def entries(self) -> Iterator[Entry]:
        """All that hold something."""
        for number in range(self._layout.num_sets):
            yield from (entry for _, entry in self._set(number) if entry is not None and entry.held)

    def data_at(self, slot: int) -> int:
        """First byte of a slot's data in the file."""
        return HEADER_BYTES + slot * self._layout.slot_bytes

    # Who uses what.

    def touch(self, groups: Iterable[bytes]) -> None:
        """These groups are in use."""
        times = self._times() | dict.fromkeys(groups, time.time())
        newest = sorted(times.items(), key=lambda item: -item[1])[:_MOST_GROUPS]
        data = b""
        for group, used in newest:
            facts = _GROUP.pack(group, used, 0)[:-4]
            data += facts + crc32c(facts).to_bytes(4, "little")
        self.file.write(data, _GROUPS_AT)

    def _times(self) -> dict[bytes, float]:
        """When each group was used last."""
        data = self.file.read(_GROUP.size * _MOST_GROUPS, _GROUPS_AT)
        times = {}
        for at in range(0, len(data) - _GROUP.size + 1, _GROUP.size):
            facts = data[at : at + _GROUP.size]
            group, used, checksum = _GROUP.unpack(facts)
            if checksum == crc32c(facts[:-4]) and used == used:
                times[group] = used
        return times

    def counts(self) -> tuple[int, int]:
        """Bytes that came from the cache, and bytes that were fetched, over all processes."""
        data = self.file.read(_COUNTS.size, _COUNTS_AT)
        if len(data) < _COUNTS.size:
            return 0, 0
        hits, misses, checksum = _COUNTS.unpack(data)
        return (hits, misses) if checksum == crc32c(data[:-4]) else (0, 0)

    def count(self, hits: int, misses: int) -> None:
        """Add to both counts."""
        before = self.counts()
        facts = _COUNTS.pack((before[0] + hits) % (1 << 64), (before[1] + misses) % (1 << 64), 0)[
            :-4
        ]
        self.file.write(facts + crc32c(facts).to_bytes(4, "little"), _COUNTS_AT)

    # Slots.

    def _find(self, key: bytes) -> Entry | None:
        for number in self._sets(key):
            keys = self._keys(number)
            at = keys.find(key)
            while at >= 0:
                if at % _KEY_BYTES == 0:
                    entry = self._read(number * self._layout.ways + at // _KEY_BYTES)
                    if entry is not None and entry.key == key:
                        return entry
                at = keys.find(key, at + 1)
        return None

    def _room(self, key: bytes, current: Mapping[bytes, bytes]) -> int | None:
        """A slot that is free, or that may be: of an old version first, else of the group that is
        idle for longest.
        """
        free = {number: self._free_ways(number) for number in self._sets(key)}
        # the emptier one: so both fill evenly
        number = max(free, key=lambda number: len(free[number]))
        if free[number]:
            return number * self._layout.ways + free[number][0]
        times, now = self._times(), time.time()
        best: tuple[float, int] | None = None
        for number in free:
            for slot, entry in self._set(number):
                if entry is None or current.get(entry.file, entry.version) != entry.version:
                    return slot
                used = times.get(entry.group, 0.0)
                if (
                    entry.group != self._group
                    and now - used > _IDLE_SECONDS
                    and (best is None or used < best[0])
                ):
                    best = used, slot
        return None if best is None else best[1]

    def _sets(self, key: bytes) -> tuple[int, ...]:
        one = int.from_bytes(key[:8], "little") % self._layout.num_sets
        two = int.from_bytes(key[8:], "little") % self._layout.num_sets
        return (one,) if one == two else (one, two)

    def _keys(self, number: int) -> bytes:
        return self.file.read(
            self._layout.ways * _KEY_BYTES, self._key_at(number * self._layout.ways)
        )

    def _free_ways(self, number: int) -> list[int]:
        keys = self._keys(number)
        return [
            at // _KEY_BYTES
            for at in range(0, len(keys), _KEY_BYTES)
            if keys[at : at + _KEY_BYTES] == _FREE
        ]

    def _set(self, number: int) -> Iterator[tuple[int, Entry | None]]:
        """Slots that are taken, with their entries; None for a damaged one."""
        keys, first = self._keys(number), number * self._layout.ways
        size = self._layout.entry_bytes
        entries = self.file.read(size * self._layout.ways, self._layout.entries_at + first * size)
        for way in range(len(keys) // _KEY_BYTES):
            key = keys[way * _KEY_BYTES : (way + 1) * _KEY_BYTES]
            if key != _FREE:
                entry = self._unpacked(first + way, entries[way * size : (way + 1) * size])
                yield first + way, entry if entry is not None and entry.key == key else None

    def _key_at(self, slot: int) -> int:
        return self._layout.keys_at + slot * _KEY_BYTES

    def _entry_at(self, slot: int) -> int:
        return self._layout.entries_at + slot * self._layout.entry_bytes

    def _read(self, slot: int) -> Entry | None:
        return self._unpacked(slot, self.file.read(self._layout.entry_bytes, self._entry_at(slot)))

    def _unpacked(self, slot: int, data: bytes) -> Entry | None:
        if len(data) < self._layout.entry_bytes or crc32c(data[:-4]) != int.from_bytes(
            data[-4:], "little"
        ):
            return None
        key, file, version, group, held = _FACTS.unpack_from(data)
        return Entry(
            slot, key, file, version, group, held, self._checksums.unpack_from(data, _FACTS.size)
        )

    def _write(self, entry: Entry) -> None:
        facts = _FACTS.pack(*entry[1:6]) + self._checksums.pack(*entry.checksums)
        self.file.write(facts + crc32c(facts).to_bytes(4, "little"), self._entry_at(entry.slot))
