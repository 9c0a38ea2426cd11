"""Draw docs/rooms.svg: the rooms of the library, and which of them import from which.

    python docs/draw_rooms.py

The arrows are drawn from the imports in the source, and the sentences are those of CONTRIBUTING.md's
table. An arrow that others imply (loading to files, since loading imports records and records files)
is left out. Rooms without a box: the root and `native`, from which all import.
`tests/project/test_rooms.py` draws the picture again.
"""

from __future__ import annotations

import ast
import re
import textwrap
from html import escape
from pathlib import Path

ROOT = Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "rooms.svg"
TOOLS = "index_tools"
PART_OF: dict[str, str] = {}
WIDTH, BOX, HEIGHT, ROW = 2000, 380, 62, 96


def rooms() -> dict[str, str]:
    """The rooms in the order in which they may import, and what CONTRIBUTING.md says each is."""
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| room | what |")
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|", table, re.MULTILINE)
    return {name: text.partition(":")[0].strip() for name, text in rows}


def imports(names: list[str]) -> dict[str, set[str]]:
    """Room -> the rooms before it from which it imports."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in [*(ROOT / "torch_tfrecord").rglob("*.py"), *(ROOT / TOOLS).rglob("*.py")]:
        parts = path.relative_to(ROOT).parts
        room = TOOLS if parts[0] == TOOLS else PART_OF.get(parts[1], parts[1])
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if room in found and module.startswith("torch_tfrecord."):
                other = PART_OF.get(module.split(".")[1], module.split(".")[1])
                if other in names[: names.index(room)]:
                    found[room].add(other)
    return found


def draw() -> str:
    """The picture."""
    sentences = rooms()
    names = [name for name in sentences if name != "torch_tfrecord"]
    direct = imports(names)
    reached: dict[str, set[str]] = {}  # what each room imports, through others, too
    levels: dict[str, int] = {}
    for name in names:
        reached[name] = direct[name].union(*(reached[other] for other in direct[name]))
        levels[name] = 1 + max((levels[other] for other in direct[name]), default=-1)
    rows = [[n for n in names if levels[n] == level] for level in range(max(levels.values()) + 1)]
    places = {
        name: ((WIDTH - len(row) * (BOX + 20) + 20) // 2 + number * (BOX + 20), 10 + level * ROW)
        for level, row in enumerate(rows)
        for number, name in enumerate(row)
    }
    shapes = []
    for name in names:
        for other in sorted(direct[name], key=names.index):
            if not any(other in reached[between] for between in direct[name]):
                (x, y), (left, top) = places[name], places[other]
                shapes.append(
                    f'<line x1="{x + BOX // 2}" y1="{y}" x2="{left + BOX // 2}" '
                    f'y2="{top + HEIGHT + 9}" stroke="#555" marker-end="url(#head)"/>'
                )
    for name, (x, y) in places.items():
        shapes.append(
            f'<rect x="{x}" y="{y}" width="{BOX}" height="{HEIGHT}" rx="5" fill="#e8f1f8" '
            'stroke="#555"/>'
        )
        shapes.append(
            f'<text x="{x + 10}" y="{y + 19}" font-size="14" font-weight="bold">{name}</text>'
        )
        for number, line in enumerate(textwrap.wrap(sentences[name].replace("`", ""), 62)):
            shapes.append(
                f'<text x="{x + 10}" y="{y + 37 + 15 * number}" font-size="11.5">'
                f"{escape(line)}</text>"
            )
    height = 10 + len(rows) * ROW - (ROW - HEIGHT) + 10
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{height}" '
            'font-family="sans-serif">',
            '<defs><marker id="head" markerWidth="9" markerHeight="8" refX="1" refY="4" '
            'orient="auto"><path d="M0,0 L9,4 L0,8 z" fill="#555"/></marker></defs>',
            '<rect width="100%" height="100%" fill="white"/>',
            *shapes,
            "</svg>\n",
        ]
    )


if __name__ == "__main__":
    PICTURE.write_text(draw(), encoding="utf-8")
