"""Results as tables, on the terminal and between the markers of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from workloads import TITLES, WORKLOADS, Bar, Workload

__all__ = ["NAMES", "grid", "provenance", "replace_block", "table"]

NAMES = {
    "ours": "torch_tfrecord",
    "tensorflow": "tf.data",
    "dali": "DALI",
    "tfrecord": "tfrecord",
    "tfr_reader": "tfr-reader",
    "tfd_utils": "tfd-utils",
    "array_record": "ArrayRecord",
}

Rates = Mapping[tuple[str, str], float]


def grid(titles: Iterable[object], rows: Iterable[Iterable[object]] = (), *, texts: int = 1) -> str:
    """A table in Markdown; its first columns are texts, the others are numbers."""
    titles = [*titles]
    rule = ["---" if number < texts else "---:" for number in range(len(titles))]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in (titles, rule, *rows))


def table(results: Mapping[str, Any], *, goals: bool = False) -> str:
    """A row for each way of ours, beside the fastest of the others that does the same, and, for
    those who work on the library, what we want.
    """
    rows = [
        row
        for name, workload in WORKLOADS.items()
        if name in results
        for row in _rows(workload, results[name], goals)
    ]
    return grid(
        ("data", "way", "a second", "best other", "ratio", "wanted")[: 5 + goals], rows, texts=2
    )


def _rows(workload: Workload, result: Mapping[str, Any], goals: bool) -> Iterator[list[str]]:
    rates = {(one["side"], one["variant"]): float(one["per_second"]) for one in result["sides"]}
    title = workload.title
    for variant in workload.variants["ours"]:
        rate = rates.get(("ours", variant))
        if rate is None and f"ours, {variant}" not in result["failed"]:
            continue  # was not asked for
        bars = [bar for bar in workload.bars if variant in bar.ours]
        row = [
            title,
            TITLES[variant],
            "failed" if rate is None else f"{round_rate(rate):,}",
            "",
            "",
        ]
        title = ""
        others = _others(workload, bars, rates)
        if rate is not None and others:
            best = max(others, key=lambda key: others[key])
            row[3:] = f"{NAMES[best[0]]} {round_rate(others[best]):,}", _ratio(rate / others[best])
        yield (
            [*row, "<br>".join(filter(None, (_wanted(bar, rates) for bar in bars)))]
            if goals
            else row
        )


def _others(workload: Workload, bars: Iterable[Bar], rates: Rates) -> Rates:
    """The rates that a way of ours is compared with: its bars say which, else all of others."""
    named = {(bar.side, name) for bar in bars if bar.side != "ours" for name in bar.variants}
    return {
        key: rate for key, rate in rates.items() if (key in named if named else key[0] != "ours")
    }


def _wanted(bar: Bar, rates: Rates) -> str:
    """ "9.7 x tf.data, 5": what is, and what is wanted; nothing where a side is missing."""
    ours = [rates[key] for name in bar.ours if (key := ("ours", name)) in rates]
    theirs = [rates[key] for name in bar.variants if (key := (bar.side, name)) in rates]
    if not ours or not theirs:
        return ""
    against = TITLES[bar.variants[0]] if bar.side == "ours" else NAMES[bar.side]
    return f"{_ratio(max(ours) / max(theirs))} x {against}, {bar.ratio:.2g}"


def _ratio(ratio: float) -> str:
    return f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 1 else 2}f}"


def round_rate(rate: float) -> int:
    """Three digits: more would not be repeatable."""
    return int(round(rate, -max(len(str(int(rate))) - 3, 0)))


def provenance(results: Mapping[str, Any]) -> str:
    """When, where and with which versions the tables were measured, and how busy the machine was before."""
    measured = [results[name] for name in WORKLOADS if name in results]
    machines = [result["machine"] for result in measured]
    loads = [machine["load_average"] for machine in machines]
    sides = [side for result in measured for side in result["sides"]]
    versions = {name: one for side in sides for name, one in side["versions"].items()}
    where = sorted(
        {f"{one['date'][:10]}, {one['processor']}, {one['cores']} cores" for one in machines}
    )
    last = machines[-1]
    rounds = " or ".join(map(str, sorted({len(side["rounds"]) for side in sides})))
    names = ("torch-tfrecord", "tensorflow-cpu", "nvidia-dali-cuda120", "tfrecord", "torch")
    names += ("torchvision", "protobuf", "tensorflow-datasets", "tfr-reader", "tfd-utils")
    listed = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    return (
        f"{'; '.join(where)}; Python {last['python']}, {listed}; "
        f"medians of {rounds} rounds; load average {min(loads)} to {max(loads)}."
    )


def replace_block(path: Path, name: str, text: str) -> None:
    """Put text between ``<!-- name -->`` and ``<!-- /name -->`` of a file; both markers must be there."""
    content = path.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(content):
        raise SystemExit(
            f"{path}: expected the markers <!-- {name} --> and <!-- /{name} -->, got none"
        )
    path.write_text(pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", content))
