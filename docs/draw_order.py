"""Draw docs/order.svg: how positions flow to ranks, batches and workers, with the library's own
numbers.

    python docs/draw_order.py
"""

from __future__ import annotations

from pathlib import Path

from torch_tfrecord import RecordSampler

FILES = (5, 4, 3)  # records of each file
N = sum(FILES)
BATCH = 2
COLOURS = ("#8ecae6", "#ffd166", "#b5e48c")
RANK_EDGES = ("#1d3557", "#c1121f", "#588157")
CELL = 40
LEFT = 150
WIDTH = LEFT + (N + 2) * (CELL + 4) + 24  # two places more: repeated ones
PICTURE = Path(__file__).with_name("order.svg")


def file_of(position: int) -> int:
    """The file that has a position."""
    return next(file for file in range(len(FILES)) if position < sum(FILES[: file + 1]))


def text(x: float, y: float, words: str, size: int = 13, anchor: str = "start") -> str:
    """Words at a place."""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}">{words}</text>'


def cell(x: float, y: float, position: int, edge: str = "#555", width: int = 1) -> str:
    """The box of a position, coloured as its file."""
    colour = COLOURS[file_of(position)]
    box = f'<rect x="{x:g}" y="{y:g}" width="{CELL}" height="28" rx="4" fill="{colour}" stroke="{edge}" '
    return f'{box}stroke-width="{width}"/>' + text(
        x + CELL / 2, y + 19, str(position), 13, "middle"
    )


def place(number: int) -> float:
    """Where the box of a place in the order begins."""
    return LEFT + number * (CELL + 4)


def row(y: float, label: str, positions: list[int], edges: list[str] | None = None) -> list[str]:
    """A label, and the boxes of some positions."""
    parts = [text(10, y + 19, label)]
    for number, position in enumerate(positions):
        edge = edges[number] if edges else "#555"
        parts.append(cell(place(number), y, position, edge, 3 if edges else 1))
    return parts


def shares(world_size: int, state: dict | None = None) -> list[list[int]]:
    """The positions of each rank, from the start or from a state on."""
    found = []
    for rank in range(world_size):
        sampler = RecordSampler(range(N), seed=0, rank=rank, world_size=world_size)
        if state:
            sampler.load_state_dict(state)
        found.append(list(sampler))
    return found


def batches(
    y: float, rank: int, positions: list[int], first_place: int, world_size: int
) -> list[str]:
    """A rank's positions below their places in the order, in batches with the worker that loads
    them.
    """
    parts = [text(10, y + 19, f"rank {rank} of {world_size}")]
    for number, position in enumerate(positions):
        batch, x = number // BATCH, place(first_place + rank + number * world_size)
        parts.append(cell(x, y, position, RANK_EDGES[rank], 3))
        if first_place + rank + number * world_size >= N:
            parts.append(text(x + CELL / 2, y - 6, "again", 11, "middle"))
        parts.append(text(x + CELL / 2, y + 43, f"b{batch} w{batch % 2}", 11, "middle"))
    return parts


def draw() -> str:
    """The whole picture."""
    order = list(RecordSampler(range(N), seed=0))
    before = shares(2)
    taken = 2 * BATCH * 2  # two batches on each of two ranks
    sampler = RecordSampler(range(N), seed=0, rank=0, world_size=2)
    state = {**sampler.state_dict(), "consumed": taken}
    after = shares(3, state)
    parts = row(20, "positions", list(range(N)))
    for file in range(len(FILES)):
        middle = place(sum(FILES[:file])) + FILES[file] * (CELL + 4) / 2
        parts.append(text(middle, 64, f"file {file}", 12, "middle"))
    parts.append(text(10, 92, "permutation of (seed, epoch)", 12))
    parts += row(102, "the epoch's order", order, [RANK_EDGES[number % 2] for number in range(N)])
    parts.append(
        text(10, 160, "2 ranks, batches of 2 (b), 2 workers (w): place p goes to rank p mod 2", 12)
    )
    for rank, positions in enumerate(before):
        parts += batches(172 + 56 * rank, rank, positions, 0, 2)
    line = place(taken) - 2
    parts.append(
        f'<path d="M{line:g} 96 V490" stroke="#c1121f" stroke-width="2" stroke-dasharray="6 4"/>'
    )
    parts.append(text(line + 8, 294, f"state: epoch 0, consumed {taken}", 12))
    parts.append(
        text(10, 294, "continued on 3 ranks: what is left of the order is dealt out from there", 12)
    )
    for rank, positions in enumerate(after):
        parts += batches(310 + 62 * rank, rank, positions, taken, 3)
    body = "\n".join(parts)
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="500" font-family="sans-serif">'
    return f'{head}\n<rect width="100%" height="100%" fill="white"/>\n{body}\n</svg>\n'


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
