"""Every side gives the same: a way to run one epoch, and how to look at what it handed out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from workloads import WORKLOADS, Workload

__all__ = ["Job", "Side", "do_nothing"]


@dataclass(frozen=True)
class Job:
    """The work of one process: a side's variant of a workload, on a file of `count` records."""

    side: str
    workload_name: str
    variant: str
    path: str
    count: int
    threads: int

    @property
    def workload(self) -> Workload:
        return WORKLOADS[self.workload_name]

    @property
    def index_path(self) -> str:
        """The text index (``tfrecord2idx``) beside the file."""
        return f"{self.path.removesuffix('.tfrecord')}.idx"


def do_nothing() -> None:
    pass


@dataclass(frozen=True)
class Side:
    """A side, ready to run.

    Args:
        items: One epoch: batches, records, or whatever the user of this side would get.
        columns: An item as arrays [B, ...] and lists of bytes, by name, as the check wants it.
        size: Records in an item.
        drain: One epoch as fast as it goes, for sides that hand out single records; the count is
            known.
        prepare: Called before the clock starts.
        ordered: Whether the records come in the order of the file.
        is_single: Whether an item is one sample, which stays as it is while the next ones are made.
    """

    items: Callable[[], Iterable[Any]]
    columns: Callable[[Any], Mapping[str, Any]]
    size: Callable[[Any], int] = len
    drain: Callable[[], Any] | None = None
    prepare: Callable[[], None] = do_nothing
    ordered: bool = True
    is_single: bool = False
