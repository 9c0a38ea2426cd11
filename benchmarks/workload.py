"""What a workload is: a row of a table, or several, and the bars for them."""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["Bar", "Workload"]


@dataclass(frozen=True)
class Bar:
    """How fast variants of ours should be beside variants of a side, which may be ours, too.

    Args:
        ours: Variants of "ours", of which the fastest counts.
        side: Whom they are held against.
        variants: Of that side; the fastest counts.
        ratio: The least (records a second of ours) / (records a second of the other).
        as_limit: Printed as "at most 1/ratio times the time".
    """

    ours: tuple[str, ...]
    side: str
    variants: tuple[str, ...]
    ratio: float
    as_limit: bool = False


@dataclass(frozen=True)
class Workload:
    """One row of the table.

    Args:
        name: What ``compare.py`` calls it.
        table: The table it belongs to; "index" has three.
        corpus: Name of the files it reads.
        title: The row's text.
        batch_size: Records in a batch; 0 where there are none.
        variants: By side, the ways it is run; the first of "ours" is the one that the bars are
            about.
        bars: By peer, the ratio to its best variant that we want; "best" is the best of all peers.
        gigabytes_bar: Gigabytes a second that we want, or 0.
        milliseconds_bar: The most that we want of the median of what is timed one by one, or 0.
        random_columns: Outputs that are compared by their statistics, since each side draws its own
            crops.
        doors: Where each variant of ours is a row: what we want of each.
    """

    name: str
    table: str
    corpus: str
    title: str
    batch_size: int
    variants: dict[str, tuple[str, ...]]
    bars: dict[str, float] = field(default_factory=dict)
    gigabytes_bar: float = 0
    milliseconds_bar: float = 0
    random_columns: tuple[str, ...] = ()
    doors: tuple[Bar, ...] = ()

    @property
    def has_doors(self) -> bool:
        """Whether each variant of ours is a row of its own."""
        return self.table in ("compressed", "doors", "random", "workers")

    def kind(self, variant: str) -> str:
        """Variants of one kind hand out the same values: raw records are another than what is
        parsed from them, and than an index.
        """
        if self.table == "compressed":
            return "index" if variant.startswith("index") else "records"
        return variant.partition("_")[0] if self.table == "random" else ""
