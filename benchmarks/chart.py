"""The two charts of docs/performance.md."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from report import NAMES, best_of
from workloads import PEERS, WORKLOADS

__all__ = ["draw_comparison", "draw_scaling"]

_COLOURS = {"tensorflow": "#e8710a", "dali": "#5f9e1d", "tfrecord": "#7b6bb5"}
_LABELS = {
    "tabular": "tabular, 40 scalars",
    "tokens": "2,048 int64",
    "embeddings": "1,024 float32",
    "raw": "raw records",
    "index-tabular": "index, 650 B records",
    "index-embeddings": "index, 4 KB records",
    "index-images": "index, 77 KB records",
    "images": "images, float32",
    "images-uint8": "images, uint8",
}


def draw_comparison(results: dict[str, Any], path: Path) -> None:
    """How many times as fast as each peer, on a log scale; a tick where we want to be."""
    pyplot = _pyplot()
    bars = [bar for name in WORKLOADS if name in results for bar in _bars(name, results[name])]
    if not bars:
        return
    figure, axes = pyplot.subplots(figsize=(8, 0.8 + 0.26 * len(bars)), layout="constrained")
    for row, (label, peer, ratio, wanted) in enumerate(bars):
        axes.barh(row, ratio - 1, left=1, color=_COLOURS[peer], height=0.7)
        axes.text(max(ratio, 1) * 1.05, row, f"{ratio:.1f}", va="center", fontsize=8)
        if wanted:
            axes.plot([wanted, wanted], [row - 0.42, row + 0.42], color="black", linewidth=1.5)
        if label:
            axes.axhline(row - 0.5, color="#dddddd", linewidth=0.6)
    axes.set_xscale("log")
    axes.set_yticks(range(len(bars)), [label for label, *_ in bars])
    axes.set_ylim(len(bars) - 0.5, -0.5)
    axes.set_xlim(right=1.6 * max(ratio for *_, ratio, _ in bars))
    axes.axvline(1, color="black", linewidth=0.8)
    axes.set_xlabel("times as many records a second as the peer's best (black mark: the goal)")
    shown = [peer for peer in PEERS if any(bar[1] == peer for bar in bars)]
    handles = [pyplot.Rectangle((0, 0), 1, 1, color=_COLOURS[peer]) for peer in shown]
    axes.legend(handles, [NAMES[peer] for peer in shown], loc="lower right", fontsize=9)
    _save(figure, path)


def _bars(name: str, result: dict[str, Any]) -> list[tuple[str, str, float, float]]:
    """(label of the group's first row, peer, ratio, goal or 0), the strongest peer first."""
    ours = best_of(result, "ours")
    rates = {peer: best_of(result, peer) for peer in PEERS}
    found = sorted((one["per_second"], peer) for peer, one in rates.items() if one is not None)[::-1]
    if ours is None or not found:
        return []
    goals = dict(WORKLOADS[name].bars)
    goals.setdefault(found[0][1], goals.pop("best", 0))
    return [
        (_LABELS[name] if number == 0 else "", peer, ours["per_second"] / rate, goals.get(peer, 0))
        for number, (rate, peer) in enumerate(found)
    ]


def draw_scaling(curves: dict[str, Any], path: Path) -> None:
    """Microseconds a record over the number of records, of features, and the size of a record."""
    pyplot = _pyplot()
    shown = [curve for curve in curves.values() if "lines" in curve]
    figure, panels = pyplot.subplots(1, len(shown), figsize=(4 * len(shown), 3.4), layout="constrained", squeeze=False)
    for axes, curve in zip(panels[0], shown, strict=True):
        for name, costs in curve["lines"].items():
            axes.plot(curve["at"], [1e6 * cost for cost in costs], marker="o", markersize=3, label=name)
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel(curve["label"])
        axes.grid(color="#eeeeee")
        axes.legend(fontsize=7)
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


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110)
    _pyplot().close(figure)
