"""How many times as fast as the best other library each way to write a loader is, and the geometric
mean of each.
"""

from __future__ import annotations

from statistics import geometric_mean
from typing import Any, NamedTuple

__all__ = ["GROUPS", "WAYS", "Group", "of_others", "ratio_of", "ratios", "way_table"]

WAYS = {
    "plain": "`DataLoader(ds)`",
    "collate": "`collate_fn=collate`",
    "workers": "`num_workers=2`",
    "stream": "stream",
    "make_dataloader": "`make_dataloader`",
}


class Group(NamedTuple):
    """Rows that are summed up together.

    Args:
        title: Of the group in the chart.
        summary: Of the row with its geometric means.
        rows: By the row's title, the workload and the variant of each way that was measured.
        best: The library that all are held against.
        is_one_data_set: Whether the rows are ways to read the same data, so that no mean is taken.
    """

    title: str
    summary: str
    rows: dict[str, dict[str, tuple[str, str]]]
    best: str
    is_one_data_set: bool = False


def _numbers(name: str) -> dict[str, tuple[str, str]]:
    ways = ("torch_collate", "collate", "with_collate", "stream_collate", "make_dataloader")
    return {way: (f"doors-{name}", variant) for way, variant in zip(WAYS, ways, strict=True)}


def _columns(
    name: str, collate: str = "collate", threads: str = "make_dataloader"
) -> dict[str, tuple[str, str]]:
    return {"collate": (f"doors-{name}", collate), "make_dataloader": (f"doors-{name}", threads)}


def _images(kind: str) -> dict[str, tuple[str, str]]:
    ways = {"collate": "process", "workers": "workers", "make_dataloader": "threads"}
    return {way: ("doors-transforms", f"{kind}_{variant}") for way, variant in ways.items()}


GROUPS = (
    Group(
        "Numbers of fixed shape, tf.data = 1",
        "numbers",
        {
            "40 scalars": _numbers("scalars"),
            "2,048 tokens": _numbers("tokens"),
            "1,024 floats": _numbers("floats"),
        },
        "tensorflow",
    ),
    Group(
        "Lists, texts, TFDS, tf.data = 1",
        "lists, texts, TFDS",
        {
            "short lists, ragged": _columns("ragged"),
            "short lists, padded": _columns("padded", "padded_plain", "padded"),
            "words and texts": _columns("texts") | {"plain": ("doors-texts", "torch_collate")},
            "SequenceExamples": _columns("sequences"),
            "a TFDS directory": _columns("tfds"),
        },
        "tensorflow",
    ),
    Group(
        "JPEGs, random crop and flip, DALI = 1",
        "JPEGs",
        {
            "JPEGs, torchvision's transforms": _images("v2"),
            "JPEGs, `Image(crop=...)`": _images("crop"),
        },
        "dali",
        is_one_data_set=True,
    ),
)


def ratio_of(results: dict[str, Any], workload: str, variant: str, best: str) -> float | None:
    """Records a second of a variant of ours / of the fastest variant of `best` in the same run;
    None: not measured.
    """
    sides = results.get(workload, {"sides": []})["sides"]
    ours = [
        one["per_second"] for one in sides if (one["side"], one["variant"]) == ("ours", variant)
    ]
    theirs = [one["per_second"] for one in sides if one["side"] == best]
    return float(ours[0]) / float(max(theirs)) if ours and theirs else None


def ratios(results: dict[str, Any], group: Group, way: str) -> dict[str, float]:
    """By row, what was measured of a way."""
    named = {title: ways[way] for title, ways in group.rows.items() if way in ways}
    found = {title: ratio_of(results, *name, group.best) for title, name in named.items()}
    return {title: ratio for title, ratio in found.items() if ratio is not None}


def of_others(results: dict[str, Any], group: Group) -> dict[str, float]:
    """By side, the geometric mean of another library's best / the group's best, of the same runs."""
    found: dict[str, list[float]] = {}
    for workload in sorted({name for row in group.rows.values() for name, _ in row.values()}):
        rates: dict[str, float] = {}
        for one in results.get(workload, {"sides": []})["sides"]:
            rates[one["side"]] = max(rates.get(one["side"], 0.0), float(one["per_second"]))
        for side in {*rates} - {"ours", group.best} if group.best in rates else ():
            found.setdefault(side, []).append(rates[side] / rates[group.best])
    return {side: geometric_mean(each) for side, each in found.items()}


def way_table(results: dict[str, Any]) -> str:
    """A row for each kind of data and the geometric means, a column for each way."""
    lines = [f"| data | {' | '.join(WAYS.values())} |", "|---|" + "---|" * len(WAYS)]
    for group in GROUPS:
        by_way = {way: ratios(results, group, way) for way in WAYS}
        lines += [_row(title, [by_way[way].get(title) for way in WAYS]) for title in group.rows]
        if not group.is_one_data_set:
            means = [_mean([*by_way[way].values()], len(group.rows)) for way in WAYS]
            lines.append(_row(f"geometric mean, {group.summary}", means, "**"))
    held = [group for group in GROUPS if not group.is_one_data_set]
    every = [
        [ratio for group in held for ratio in ratios(results, group, way).values()] for way in WAYS
    ]
    number = sum(len(group.rows) for group in held)
    lines.insert(
        -len(GROUPS[-1].rows),
        _row("geometric mean of all above", [_mean(one, number) for one in every], "**"),
    )
    return "\n".join(lines)


def _mean(values: list[float], number: int) -> float | None:
    """The mean of all rows or none: means of different rows could not be compared."""
    return geometric_mean(values) if len(values) == number else None


def _row(title: str, cells: list[float | None], mark: str = "") -> str:
    shown = ["" if cell is None else f"{mark}{cell:.1f}{mark}" for cell in cells]
    return f"| {mark}{title}{mark} | {' | '.join(shown)} |"
