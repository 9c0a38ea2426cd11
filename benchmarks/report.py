"""Results as tables, on the terminal and between the markers of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from workloads import TITLES, WORKLOADS, Bar, Workload

__all__ = ["NAMES", "grid", "provenance", "replace_block", "tables"]

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


def grid(titles: Iterable[object], rows: Iterable[Iterable[object]] = ()) -> str:
    """A table in Markdown; its first column is text, the others are numbers."""
    titles = [*titles]
    lines = [titles, ["---", *["---:"] * (len(titles) - 1)], *rows]
    return "\n".join(f"| {' | '.join(map(str, line))} |" for line in lines)


def tables(results: Mapping[str, Any], *, goals: bool = True) -> str:
    """A table for each workload, a row for each variant, with its ratios to others and, for those
    who work on the library, what we want of them.
    """
    return "\n\n".join(
        "\n".join(_rows(workload, results[name], goals))
        for name, workload in WORKLOADS.items()
        if name in results
    )


def _rows(workload: Workload, result: Mapping[str, Any], goals: bool) -> Iterable[str]:
    title = workload.title
    if workload.table == "compressed":
        share = 100 * result["index_bytes"] / result["file_bytes"]
        title += f"; its index is {share:.2g} % of the file"
    yield f"| {title} | side | a second | CPU µs each | {'ratio, wanted' if goals else 'ratio'} |"
    yield "|---|---|---|---|---|"
    measured = {(one["side"], one["variant"]): one for one in result["sides"]}
    rates = {key: one["per_second"] for key, one in measured.items()}
    for side, variants in workload.variants.items():
        for variant in variants:
            one, is_ours = measured.get((side, variant)), side == "ours"
            bars = [bar for bar in workload.bars if is_ours and variant == bar.ours[0]]
            verdicts = [_verdict(bar, rates, goals) for bar in bars]
            if one is not None:
                cost = 1000 * one["cpu_seconds_per_1000"]
                cell = f"{round_rate(one['per_second']):,} | {cost:.3g}"
                if is_ours and "median_ms" in one:
                    verdicts.append(f"{one['median_ms']:.2g} ms in the median")
                    if goals and workload.milliseconds_bar:
                        verdicts[-1] += f", {workload.milliseconds_bar:g}"
            elif f"{side}, {variant}" in result["failed"]:
                cell = "failed | -"
            elif side in result["missing"]:
                cell = "missing | -"
            else:
                continue  # was not asked for
            title = TITLES.get(variant, variant) if is_ours else variant
            yield f"| {title} | {NAMES[side]} | {cell} | {'<br>'.join(filter(None, verdicts))} |"


def _verdict(bar: Bar, rates: Rates, goals: bool) -> str:
    """ "9.7 x tf.data (parse_example)", and for us what is wanted: ", 5"; nothing where a side is missing."""
    ours = [rates[key] for name in bar.ours if (key := ("ours", name)) in rates]
    theirs = [rates[key] for name in bar.variants if (key := (bar.side, name)) in rates]
    if not ours or not theirs:
        return ""
    if bar.side == "ours":
        against = TITLES[bar.variants[0]]
    elif bar.variants == bar.ours:  # the same work by another package
        against = NAMES[bar.side]
    else:
        against = f"{NAMES[bar.side]} ({' or '.join(bar.variants)})"
    ratio = max(ours) / max(theirs)
    shown = f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 1 else 2}f} x {against}"
    return f"{shown}, {bar.ratio:.2g}" if goals else shown


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
    last = machines[-1]
    rounds = " or ".join(map(str, sorted({len(side["rounds"]) for side in sides})))
    names = ("torch-tfrecord", "tensorflow-cpu", "nvidia-dali-cuda120", "tfrecord", "torch")
    names += ("torchvision", "protobuf", "tensorflow-datasets", "tfr-reader", "tfd-utils")
    listed = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    return (
        f"{last['date'][:10]}, {last['processor']}, {last['cores']} cores, Python {last['python']}, {listed}; "
        f"medians of {rounds} rounds; load average at the start of a table {min(loads)} to "
        f"{max(loads)} (above 1 to 2 something else was running, too)."
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
