"""The chart of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from statistics import geometric_mean
from typing import Any, NamedTuple

from report import NAMES
from ways import GROUPS, WAYS, Group, of_others, ratios

__all__ = ["draw_comparison"]

# One color a way to write the loader, one a library, distinct for the color-blind, too.
_COLORS = {
    "plain": "#9ecae1",
    "collate": "#4292c6",
    "workers": "#e6a03c",
    "stream": "#8c6bb1",
    "make_dataloader": "#08519c",
}
_OTHERS = "#a9a9a9"
_WIDTH, _HEIGHT, _DPI = 9.0, 5.8, 100  # inches; 900 x 580 pixels


class _Bar(NamedTuple):
    """A bar: its length is a geometric mean, its dots are data sets."""

    label: str
    color: str
    ratio: float
    dots: list[float]


def draw_comparison(results: dict[str, Any], path: Path) -> None:
    """Two questions: which library, and how to write the loader; for each kind of data, as
    multiples of the best other library.
    """
    pyplot = _pyplot()
    groups = [(group, ways) for group in GROUPS if (ways := _ways(results, group))]
    if not groups:
        return
    figure, panels = pyplot.subplots(
        len(groups),
        2,
        figsize=(_WIDTH, _HEIGHT),
        height_ratios=[1 + len(ways) for _, ways in groups],
        layout="constrained",
        squeeze=False,
    )
    for (left, right), (group, ways) in zip(panels, groups, strict=True):
        libraries = _libraries(results, group, ways)
        most = max(value for bar in (*libraries, *ways) for value in (bar.ratio, *bar.dots))
        _draw_panel(left, group.title, libraries, most)
        _draw_panel(right, group.title, ways, most)
    for panel, question in zip(
        panels[0], ("Which library?", "How do I write the loader?"), strict=True
    ):
        panel.set_title(f"{question}\n", fontsize=12, fontweight="bold", loc="center")
    line = pyplot.Line2D
    marks = [
        line([], [], color=_COLORS["make_dataloader"], linewidth=7, label="torch_tfrecord"),
        line([], [], color=_OTHERS, linewidth=7, label="another library"),
        line([], [], color="black", marker="o", markersize=3.5, linewidth=0, label="one data set"),
        line([], [], color="black", linewidth=0.8, label="1: tf.data or DALI at its fastest"),
    ]
    figure.legend(handles=marks, loc="outside lower center", ncols=4, fontsize=9, frameon=False)
    figure.savefig(path, dpi=_DPI)
    pyplot.close(figure)


def _draw_panel(panel: Any, title: str, bars: list[_Bar], most: float) -> None:
    for row, bar in enumerate(bars):
        panel.barh(row, bar.ratio, color=bar.color, height=0.76)
        panel.plot(bar.dots, [row] * len(bar.dots), "o", color="black", markersize=3)
        # In a column of its own: beside a dot it would be taken for that dot's value.
        mean = f"{bar.ratio:.2g}"
        panel.text(1.2 * most, row, mean, va="center", ha="right", fontsize=9, fontweight="bold")
    panel.axvline(1, color="black", linewidth=0.8)
    panel.set_xlim(0, 1.2 * most)
    panel.set_ylim(len(bars) - 0.4, -0.6)
    panel.set_title(title, fontsize=9, loc="left", color="#444444")
    panel.set_yticks(range(len(bars)), [bar.label for bar in bars], fontsize=9)
    panel.tick_params(length=0)
    panel.set_xticks([])
    panel.spines[["top", "right", "bottom", "left"]].set_visible(False)


def _libraries(results: dict[str, Any], group: Group, ways: list[_Bar]) -> list[_Bar]:
    """Ours, written in its fastest way, and the others."""
    ours = max(ways, key=lambda bar: bar.ratio)._replace(
        label="torch_tfrecord", color=_COLORS["make_dataloader"]
    )
    others = {group.best: 1.0, **of_others(results, group)}
    return [ours, *(_Bar(NAMES[side], _OTHERS, ratio, []) for side, ratio in others.items())]


def _ways(results: dict[str, Any], group: Group) -> list[_Bar]:
    """One bar for data sets that are summed up, none where one of them was not measured; else a bar
    for each row.
    """
    bars = []
    for way, label in WAYS.items():
        found, color, name = ratios(results, group, way), _COLORS[way], label.replace("`", "")
        if group.is_one_data_set:
            bars += [
                _Bar(f"{name}, {row.split()[-1]}".replace("`", ""), color, ratio, [])
                for row, ratio in found.items()
            ]
        elif found and len(found) == len(group.rows):
            values = [*found.values()]
            bars.append(_Bar(name, color, geometric_mean(values), values))
    return bars


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise SystemExit("the chart needs matplotlib: pip install -e '.[benchmarks]'") from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot
