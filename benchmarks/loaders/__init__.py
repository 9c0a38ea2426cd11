"""The loaders that `conformance.py` asks: each module here is a peer, with

    def write(folder, shards)     # the records of each shard, in the peer's own format
    def open_loader(setting)      # a Loader, as the peer's documentation says

and, where the peer reads TFRecord files, `READS_TFRECORD = True`: then they are in the folder when
`write` is called. `CHECK` names a check of the files that is off by default, and that
`setting.checked` turns on. `NOT_OFFERED` names the properties that the peer does not claim, with
the reason; their result is "not offered".
"""

from __future__ import annotations

import hashlib
import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

__all__ = ["Loader", "NotOfferedError", "Setting", "files_in", "picture", "value_of", "with_draw"]


@dataclass(frozen=True)
class Setting:
    """One run of a loader in one process.

    Args:
        folder: The records, as `write` left them.
        workers: Processes of the loader, or threads where it has these.
        draw: Whether each sample gets a "draw", the place of a random crop.
        epochs: As many one after another.
        stop_after: Batches of the last epoch, after which the state is saved to `save`.
        load: A state that is loaded first.
        kill_after: Batches after which a worker is killed.
        checked: Whether checks of the files are turned on that are off by default.
        attempt: Tells runs apart that are otherwise the same.
    """

    folder: str
    workers: int = 2
    rank: int = 0
    world_size: int = 1
    batch_size: int = 8
    shuffle: bool = False
    seed: int = 7
    draw: bool = False
    epochs: int = 1
    stop_after: int | None = None
    save: str | None = None
    load: str | None = None
    kill_after: int | None = None
    checked: bool = False
    attempt: int = 0


class NotOfferedError(Exception):
    """The peer has no such thing; the text says what it lacks."""


class Loader:
    """A loader, and the object with its state."""

    def __init__(self, batches: Iterable[Any], stateful: Any = None) -> None:
        self.batches = batches
        self.stateful = batches if stateful is None else stateful

    def epoch(self, number: int) -> Iterator[Mapping[str, Any]]:
        """The batches of an epoch, or what is left of it after `load`: "id", "value" and, if asked for, "draw", each a
        sequence of as many as there are records.
        """
        yield from self.batches

    def state(self) -> Any:
        """The state, to be pickled."""
        return self._method("state_dict")()

    def load(self, state: Any) -> None:
        self._method("load_state_dict")(state)

    def _method(self, name: str) -> Any:
        if not hasattr(self.stateful, name):
            raise NotOfferedError(f"{type(self.stateful).__name__} has no {name}")
        return getattr(self.stateful, name)


def value_of(number: int) -> bytes:
    """The value of a record: 64 bytes that stand nowhere else."""
    return hashlib.sha512(str(number).encode()).digest()


@cache
def picture() -> bytes:
    """A PNG of 256 x 256: red is the row, green the column, so that a crop shows where it was taken."""
    # By PNG's filter "Sub", a pixel is written as its difference from the one before.
    rows = b"".join(b"\1" + bytes((row, 0, 0)) + 255 * b"\0\1\0" for row in range(256))
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", 256, 256, 8, 2, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows, 9)),
        (b"IEND", b""),
    ]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def with_draw(sample: Mapping[str, Any]) -> dict[str, Any]:
    """A transform as people write it, where a peer has no crop of its own: it draws from numpy's global state."""
    import numpy as np

    return {**sample, "draw": int(np.random.randint(1 << 31))}


def files_in(folder: str, end: str) -> list[str]:
    """The shards, in order."""
    return sorted(entry.path for entry in os.scandir(folder) if entry.name.endswith(end))
