"""The tables "doors" and "random": a line for each variant, with what we want of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from doors import TITLES
from report import NAMES, round_rate
from workload import Bar, Workload
from workloads import WORKLOADS

__all__ = ["door_table", "judge"]

Rates = dict[tuple[str, str], float]


def door_table(results: dict[str, Any]) -> str:
    """A table for each workload."""
    tables = []
    for name, workload in WORKLOADS.items():
        if name in results and workload.has_doors:
            lines = [f"| {workload.title} | side | a second | CPU µs each | what we want |", "|---|---|---|---|---|"]
            tables.append("\n".join([*lines, *_rows(workload, results[name])]))
    return "\n\n".join(tables)


def _rows(workload: Workload, result: dict[str, Any]) -> Iterable[str]:
    rates: Rates = {(one["side"], one["variant"]): one["per_second"] for one in result["sides"]}
    costs = {(one["side"], one["variant"]): 1000 * one["cpu_seconds_per_1000"] for one in result["sides"]}
    for side, variants in workload.variants.items():
        for variant in variants:
            verdicts = [judge(bar, rates) for bar in workload.doors if side == "ours" and variant == bar.ours[0]]
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


def judge(bar: Bar, rates: Rates) -> str | None:
    """A bar in words, with what was measured: "at least 5 times tf.data: 9.7x ok"; None where a side is missing."""
    ours = [rates[key] for name in bar.ours if (key := ("ours", name)) in rates]
    theirs = [rates[key] for name in bar.variants if (key := (bar.side, name)) in rates]
    if not theirs:
        return None
    others = " or ".join(bar.variants)
    against = TITLES[bar.variants[0]] if bar.side == "ours" else f"{NAMES[bar.side]} ({others})"
    against = NAMES[bar.side] if bar.variants == bar.ours else against  # the same work by another package
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
    shown = 1 / ratio if bar.as_limit else ratio
    return f"{wanted}: {shown:.{0 if shown >= 10 else 1 if shown >= 1 else 2}f}x {verdict}"
