"""The two charts of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any

from report import NAMES
from ways import GROUPS, WAYS, Group, of_others, ratios

__all__ = ["draw_comparison", "draw_scaling"]

_OURS, _WORKERS, _OTHERS = "#1f6fb4", "#7fb2dd", "#b0b0b0"


def draw_comparison(results: dict[str, Any], path: Path) -> None:
    """Each way to write a loader beside the best other library: a bar is a geometric mean, a dot
    one data set.

    Narrow, so that it can be read on a phone.
    """
    pyplot = _pyplot()
    panels = [(group, bars) for group in GROUPS if (bars := _bars(results, group))]
    if not panels:
        return
    heights = [0.55 + len(bars) for _, bars in panels]
    figure, axes = pyplot.subplots(
        len(panels),
        1,
        figsize=(4.8, 0.28 * sum(heights)),
        height_ratios=heights,
        layout="constrained",
        squeeze=False,
    )
    for panel, (group, bars) in zip(axes[:, 0], panels, strict=True):
        _draw_panel(panel, group, bars)
    _save(figure, path, dpi=160)


def _draw_panel(panel: Any, group: Group, bars: list[tuple[str, str, float, list[float]]]) -> None:
    most = max(value for *_, mean, values in bars for value in (mean, *values))
    for row, (label, colour, mean, values) in enumerate(bars):
        panel.barh(row, mean, color=colour, height=0.74)
        panel.plot(values, [row] * len(values), "o", color="black", markersize=3)
        inside = {
            "x": 0.02 * most,
            "color": "white" if colour == _OURS else "black",
            "fontweight": "bold",
        }
        beside = {"x": mean + 0.02 * most, "bbox": {"color": "white", "pad": 0.5}}
        place = inside if mean > most / 6 else beside
        panel.text(y=row, s=f"{mean:.2g}", va="center", fontsize=9, **place)
        panel.text(-0.02 * most, row, label, va="center", ha="right", fontsize=9)
    panel.axvline(1, color="black", linewidth=0.8, zorder=0)
    panel.set_xlim(0, 1.1 * most)
    panel.set_ylim(len(bars) - 0.5, -0.5)
    panel.set_title(group.title, fontsize=9.5, fontweight="bold", x=1, ha="right")
    panel.set_yticks([])
    panel.set_xticks([])
    panel.spines[["top", "right", "bottom"]].set_visible(False)


def _bars(results: dict[str, Any], group: Group) -> list[tuple[str, str, float, list[float]]]:
    """(label, colour, length, dots) of each bar: our ways, the best other library, the rest."""
    ours = [bar for way in WAYS for bar in _bars_of_way(group, way, ratios(results, group, way))]
    if not ours:
        return []
    others = {NAMES[group.best]: 1.0, **of_others(results, group)}
    return ours + [(name, _OTHERS, ratio, []) for name, ratio in others.items()]


def _bars_of_way(
    group: Group, way: str, found: dict[str, float]
) -> list[tuple[str, str, float, list[float]]]:
    """One bar for data sets that are summed up, none where one of them was not measured; else a bar
    for each row.
    """
    label, colour = WAYS[way].replace("`", ""), _WORKERS if way == "workers" else _OURS
    if not group.is_one_data_set:
        values = [*found.values()]
        return (
            [(label, colour, geometric_mean(values), values)]
            if len(values) == len(group.rows)
            else []
        )
    return [
        (f"{label}, {row.split()[-1]}".replace("`", ""), colour, ratio, [])
        for row, ratio in found.items()
    ]


def draw_scaling(curves: dict[str, Any], path: Path) -> None:
    """Microseconds a record over the numbers of records and features, and the sizes of records and
    batches.
    """
    pyplot = _pyplot()
    shown = [curve for curve in curves.values() if "lines" in curve]
    figure, panels = pyplot.subplots(
        1, len(shown), figsize=(3.5 * len(shown), 3.3), layout="constrained", squeeze=False
    )
    for axes, curve in zip(panels[0], shown, strict=True):
        for name, costs in curve["lines"].items():
            axes.plot(
                curve["at"], [1e6 * cost for cost in costs], marker="o", markersize=3, label=name
            )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(curve["label"])
        axes.grid(color="#eeeeee")
        axes.legend(fontsize=6)
    panels[0][0].set_ylabel("microseconds a record")
    _save(figure, path)


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("the charts need matplotlib: pip install -e '.[benchmarks]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def _save(figure: Any, path: Path, dpi: int = 110) -> None:
    figure.savefig(path, dpi=dpi)
    _pyplot().close(figure)
