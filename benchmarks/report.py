"""Results as tables, on the terminal and between the markers of docs/performance.md."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from workloads import TITLES, WORKLOADS, Bar, Workload

__all__ = [
    "NAMES",
    "bar_rows",
    "best_of",
    "compared",
    "cpu_table",
    "door_table",
    "judge",
    "provenance",
    "replace_block",
    "round_rate",
    "side_table",
    "summary_table",
]

# The columns of the summary, and those that only "random" has.
_COLUMNS = {
    "ours": "torch_tfrecord",
    "tensorflow": "tf.data",
    "dali": "DALI",
    "tfrecord": "tfrecord",
}
NAMES = {
    **_COLUMNS,
    "tfr_reader": "tfr-reader",
    "tfd_utils": "tfd-utils",
    "array_record": "ArrayRecord",
}


def best_of(result: dict[str, Any], side: str) -> dict[str, Any] | None:
    """The fastest variant of a side; of "ours" the one that the bars are about; None where it is
    missing.
    """
    found = [one for one in result["sides"] if one["side"] == side]
    if not found or side == "ours":
        return found[0] if found else None
    return max(found, key=lambda one: float(one["per_second"]))


def bar_rows(workload: Workload, result: dict[str, Any]) -> list[tuple[str, float, float]]:
    """(against whom, ratio, bar) for each bar of a workload that was measured."""
    ours = best_of(result, "ours")
    peers = {side: best_of(result, side) for side in workload.variants if side != "ours"}
    rates = {side: one["per_second"] for side, one in peers.items() if one is not None}
    if ours is None or not rates:
        return []
    rows = []
    for side, bar in workload.bars.items():
        named = max(rates, key=lambda name: rates[name]) if side == "best" else side
        if named in rates:
            rows.append((NAMES[named], ours["per_second"] / rates[named], bar))
    return rows


def summary_table(results: dict[str, Any], *, goals: bool = True) -> str:
    """One row a workload: every side's best, the ratios and, for those who work on the library, the
    bars.
    """
    titles = [*_COLUMNS.values(), "ratio", *(["bar", "met"] if goals else [])]
    lines = [f"| work | {' | '.join(titles)} |", "|---|" + "---|" * len(titles)]
    for name, workload in WORKLOADS.items():
        if name in results and not workload.has_doors:
            lines.append(_summary_row(workload, results[name], goals))
    return "\n".join(lines)


def provenance(results: dict[str, Any], *, doors: bool = False) -> str:
    """When, where and with which versions the tables were measured, and how busy the machine was
    before.
    """
    measured = [
        results[name]
        for name, one in WORKLOADS.items()
        if name in results and one.has_doors == doors
    ]
    if not measured:
        return "Nothing was measured yet."
    machines = [result["machine"] for result in measured]
    loads = [machine["load_average"] for machine in machines]
    versions: dict[str, str] = {}
    for result in measured:
        for side in result["sides"]:
            versions |= side["versions"]
    last = machines[-1]
    rounds = sorted({len(side["rounds"]) for result in measured for side in result["sides"]})
    names = [
        "torch-tfrecord",
        "tensorflow-cpu",
        "nvidia-dali-cuda120",
        "tfrecord",
        "torch",
        "torchvision",
        "protobuf",
    ]
    names += ["tensorflow-datasets", "tfr-reader", "tfd-utils", "array-record"]
    listed = ", ".join(f"{name} {versions[name]}" for name in names if name in versions)
    return (
        f"{last['date'][:10]}, {last['processor']}, {last['cores']} cores, Python {last['python']}, {listed}; "
        f"medians of {' or '.join(map(str, rounds))} rounds; load average at the start of a table {min(loads)} to "
        f"{max(loads)} (above 1 to 2 something else was running, too)."
    )


def _summary_row(workload: Workload, result: dict[str, Any], goals: bool) -> str:
    cells = []
    for side in _COLUMNS:
        one = best_of(result, side)
        missing = "missing" if side in result["missing"] else "-"
        cells.append(missing if one is None else _rate(workload, result, one))
    rows = bar_rows(workload, result)
    ratios = [f"{ratio:.1f} x {name}" for name, ratio, _ in rows]
    bars = [f"{bar:g}" for _, _, bar in rows]
    met = [ratio >= bar for _, ratio, bar in rows]
    ours = best_of(result, "ours")
    if goals and workload.gigabytes_bar and ours is not None:
        speed = _gigabytes(result, ours)
        ratios.append(f"{speed:.1f} GB/s")
        bars.append(f"{workload.gigabytes_bar:g} GB/s")
        met.append(speed >= workload.gigabytes_bar)
    cells.append("<br>".join(ratios) or "-")
    if goals:
        cells += ["<br>".join(bars) or "-", "<br>".join("yes" if one else "no" for one in met)]
    return f"| {workload.title} | {' | '.join(cells)} |"


def _rate(workload: Workload, result: dict[str, Any], one: dict[str, Any]) -> str:
    rate = f"{round_rate(one['per_second']):,}/s"
    return (
        f"{rate}, {_gigabytes(result, one):.1f} GB/s"
        if workload.table in ("raw", "index")
        else rate
    )


def _gigabytes(result: dict[str, Any], one: dict[str, Any]) -> float:
    return float(one["per_second"]) * float(result["file_bytes"]) / float(result["records"]) / 1e9


def round_rate(rate: float) -> int:
    """Three digits: more would not be repeatable."""
    digits = max(len(str(int(rate))) - 3, 0)
    return int(round(rate, -digits))


def cpu_table(results: dict[str, Any]) -> str:
    """Milliseconds of processor time that a record takes, of the variants in the summary: on all
    cores, with the workers. A busy machine changes them less than the rates.
    """
    lines = [
        f"| CPU milliseconds a record | {' | '.join(_COLUMNS.values())} | ratio |",
        "|---|" + "---|" * (len(_COLUMNS) + 1),
    ]
    for name, workload in WORKLOADS.items():
        if name not in results or workload.has_doors:
            continue
        # A second for 1,000 records is a millisecond for one.
        costs = {
            side: one["cpu_seconds_per_1000"]
            for side in _COLUMNS
            if (one := best_of(results[name], side)) is not None
        }
        others = {side: cost for side, cost in costs.items() if side != "ours"}
        ratio = "-"
        if others and "ours" in costs:
            least = min(others, key=lambda side: others[side])
            ratio = f"{_digits(others[least] / costs['ours'])} x less than {NAMES[least]}"
        cells = [f"{costs[side]:.3g}" if side in costs else "-" for side in _COLUMNS]
        lines.append(f"| {workload.title} | {' | '.join(cells)} | {ratio} |")
    return "\n".join(lines)


def side_table(results: dict[str, Any]) -> str:
    """Every variant of every side: its median, the range of its rounds, processor time and
    memory.
    """
    lines = [
        "| work | side | variant | records/s | lowest to highest | CPU ms each | peak MiB | a worker's |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in WORKLOADS:
        lines += [_side_row(name, one) for one in results.get(name, {"sides": []})["sides"]]
    return "\n".join(lines)


def _side_row(name: str, one: dict[str, Any]) -> str:
    rates = [round_["records"] / round_["seconds"] for round_ in one["rounds"]]
    cells: Iterable[str] = (
        name,
        NAMES[one["side"]],
        TITLES.get(one["variant"], one["variant"]) if one["side"] == "ours" else one["variant"],
        f"{round_rate(one['per_second']):,}",
        f"{round_rate(min(rates)):,} to {round_rate(max(rates)):,}",
        f"{one['cpu_seconds_per_1000']:.3g}",
        f"{one['peak_mib']:,.0f}",
        f"{one['worker_peak_mib']:,.0f}" if one["worker_peak_mib"] else "-",
    )
    return f"| {' | '.join(cells)} |"


def door_table(results: dict[str, Any], *, goals: bool = True) -> str:
    """A table for each workload; what a row is held against with our goals, or as the ratio
    alone.
    """
    tables = []
    for name, workload in WORKLOADS.items():
        if name in results and workload.has_doors:
            last = "what we want" if goals else "ratio"
            title = workload.title
            if workload.table == "compressed":
                share = 100 * results[name]["index_bytes"] / results[name]["file_bytes"]
                title += f"; its index is {share:.2g} % of the file"
            lines = [
                f"| {title} | side | a second | CPU µs each | {last} |",
                "|---|---|---|---|---|",
            ]
            tables.append("\n".join([*lines, *_door_rows(workload, results[name], goals)]))
    return "\n\n".join(tables)


def _door_rows(workload: Workload, result: dict[str, Any], goals: bool) -> Iterable[str]:
    rates: dict[tuple[str, str], float] = {
        (one["side"], one["variant"]): one["per_second"] for one in result["sides"]
    }
    costs = {
        (one["side"], one["variant"]): 1000 * one["cpu_seconds_per_1000"] for one in result["sides"]
    }
    medians = {one["variant"]: one["median_ms"] for one in result["sides"] if "median_ms" in one}
    for side, variants in workload.variants.items():
        for variant in variants:
            say = judge if goals else compared
            verdicts = [
                say(bar, rates)
                for bar in workload.doors
                if side == "ours" and variant == bar.ours[0]
            ]
            if side == "ours" and (median := medians.get(variant)) is not None:
                verdicts.append(_in_milliseconds(workload, median, goals))
            rate = rates.get((side, variant))
            if rate is not None:
                cell = f"{round_rate(rate):,} | {costs[side, variant]:.3g}"
            elif f"{side}, {variant}" in result["failed"]:
                cell = "failed | -"
            elif side in result["missing"]:
                cell = "missing | -"
            else:
                continue  # was not asked for
            title = TITLES.get(variant, variant) if side == "ours" else variant
            yield f"| {title} | {NAMES[side]} | {cell} | {'<br>'.join(filter(None, verdicts))} |"


def _in_milliseconds(workload: Workload, median: float, goals: bool) -> str:
    """The median of one record, with the most that we want."""
    if not goals or not workload.milliseconds_bar:
        return f"{median:.2g} ms in the median"
    verdict = "ok" if median <= workload.milliseconds_bar else "missed"
    return f"at most {workload.milliseconds_bar:g} ms in the median: {median:.2g} ms {verdict}"


def judge(bar: Bar, rates: dict[tuple[str, str], float]) -> str | None:
    """A bar in words, with what was measured: "at least 5 times tf.data: 9.7x ok"; None where a
    side is missing.
    """
    ours, theirs = _rates_of(bar, rates)
    if not theirs:
        return None
    against = _against(bar)
    if bar.as_limit:
        wanted = f"at most {1 / bar.ratio:g} times the cost of {against}"
    else:
        wanted = f"at least {bar.ratio:g} times {against}"
    if len(bar.ours) > 1:
        wanted += f", the best of {' and '.join(TITLES[name] for name in bar.ours)}"
    if not ours:
        return f"{wanted}: failed"
    ratio = max(ours) / max(theirs)
    verdict = "ok" if ratio >= bar.ratio else "missed"
    return f"{wanted}: {_digits(1 / ratio if bar.as_limit else ratio)}x {verdict}"


def compared(bar: Bar, rates: dict[tuple[str, str], float]) -> str | None:
    """The same for users: "9.7 x tf.data (parse_example)"."""
    ours, theirs = _rates_of(bar, rates)
    if not ours or not theirs:
        return None
    return f"{_digits(max(ours) / max(theirs))} x {_against(bar)}"


def _rates_of(bar: Bar, rates: dict[tuple[str, str], float]) -> tuple[list[float], list[float]]:
    ours = [rates[key] for name in bar.ours if (key := ("ours", name)) in rates]
    return ours, [rates[key] for name in bar.variants if (key := (bar.side, name)) in rates]


def _against(bar: Bar) -> str:
    if bar.variants == bar.ours:  # the same work by another package
        return NAMES[bar.side]
    return (
        TITLES[bar.variants[0]]
        if bar.side == "ours"
        else f"{NAMES[bar.side]} ({' or '.join(bar.variants)})"
    )


def _digits(ratio: float) -> str:
    return f"{ratio:.{0 if ratio >= 10 else 1 if ratio >= 1 else 2}f}"


def replace_block(path: Path, name: str, text: str) -> None:
    """Put text between ``<!-- name -->`` and ``<!-- /name -->`` of a file; both markers must be
    there.
    """
    content = path.read_text()
    pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- /{name} -->)", re.DOTALL)
    if not pattern.search(content):
        raise SystemExit(
            f"{path}: expected the markers <!-- {name} --> and <!-- /{name} -->, got none"
        )
    path.write_text(pattern.sub(lambda match: f"{match[1]}{text}\n{match[2]}", content))
