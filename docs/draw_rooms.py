"""Draw docs/rooms.svg: the core, its extensions, and what they import from each other.

    python docs/draw_rooms.py

All of it is from the imports in the source; the sentences are those of CONTRIBUTING.md's table. An extension is beside
the last room of the core from which it imports. An arrow of the core that others imply (loading to files, since loading
imports from records, and records from files) is left out, and so are the root and `native`, from which all import.
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
OUTSIDE = ("torch_tfrecord", TOOLS)
WIDTH, BOX, HEIGHT, GAP = 800, 228, 86, 10
CORE, BESIDE = 48, 306  # where the core's boxes begin, and the extensions' boxes
TOP = 40


def rooms() -> dict[str, str]:
    """The rooms in the order in which they may import, and what CONTRIBUTING.md says each is."""
    _, _, table = (ROOT / "CONTRIBUTING.md").read_text("utf-8").partition("| room | what |")
    rows = re.findall(r"^\| \[?`(\w+)`\S* \| ([^|]+) \|", table, re.MULTILINE)
    return {name: text.strip() for name, text in rows}


def imports(names: list[str]) -> dict[str, list[str]]:
    """Room -> the rooms before it from which it imports."""
    found: dict[str, set[str]] = {name: set() for name in names}
    for path in [*(ROOT / "torch_tfrecord").rglob("*.py"), *(ROOT / TOOLS).rglob("*.py")]:
        parts = path.relative_to(ROOT).parts
        room = TOOLS if parts[0] == TOOLS else parts[1]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            module = node.module or "" if isinstance(node, ast.ImportFrom) else ""
            if room in found and module.startswith("torch_tfrecord."):
                found[room].add(module.split(".")[1])
    return {
        name: [other for other in names[: names.index(name)] if other in found[name]]
        for name in names
    }


def box(x: int, y: int, width: int, height: int, colour: str, name: str, *lines: str) -> list[str]:
    """A box with a name and lines below it; a line that begins with a plus is grey."""
    shapes = [
        f'<rect x="{x}" y="{y}" width="{width}" height="{height}" rx="5" fill="{colour}" stroke="#555"/>',
        f'<text x="{x + 9}" y="{y + 19}" font-size="15" font-weight="bold">{name}</text>',
    ]
    wrapped = [
        (part, line[:1] == "+") for line in lines for part in textwrap.wrap(line, width // 7)
    ]
    for number, (part, is_grey) in enumerate(wrapped):
        style = 'font-style="italic" fill="#666"' if is_grey else 'fill="#222"'
        shapes.append(
            f'<text x="{x + 9}" y="{y + 35 + 14 * number}" font-size="12" {style}>{escape(part)}</text>'
        )
    return shapes


def draw() -> str:
    """The picture."""
    sentences = {name: text.partition(":") for name, text in rooms().items()}
    names = [name for name in sentences if name not in OUTSIDE]
    core = [name for name in names if sentences[name][0] == "the core"]
    own = {
        name: second.partition(":")[0].strip() if name in core else f"{first}{colon}{second}"
        for name, (first, colon, second) in sentences.items()
    }
    own = {name: text if len(text) < 90 else text.partition(":")[0] for name, text in own.items()}
    direct = imports([*names, TOOLS])
    reached: dict[str, set[str]] = {}  # by each room of the core, also through others
    for name in core:
        reached[name] = {*direct[name]}.union(*(reached[other] for other in direct[name]))
    beside: dict[str, list[str]] = {name: [] for name in core}
    for name in [name for name in names if name not in core and name != "train"]:
        beside[[other for other in direct[name] if other in core][-1]].append(name)

    def other_rooms(name: str) -> str:
        others = [other for other in direct[name] if other not in core]
        return f"+ {', '.join(others)}" if others else ""

    shapes, y, tops = [], TOP, {}
    for name in core:
        height = max(1, -(-len(beside[name]) // 2)) * (HEIGHT + GAP) - GAP
        tops[name] = y
        text = own[name].replace("`", "")
        shapes += box(CORE, y, BOX, height, "#cfe3f3", name, text)
        for number, other in enumerate(beside[name]):
            x, at = BESIDE + number % 2 * (BOX + GAP), y + number // 2 * (HEIGHT + GAP)
            shapes += box(x, at, BOX, HEIGHT, "#f6efdc", other, own[other], other_rooms(other))
        if beside[name]:
            middle = y + HEIGHT // 2
            shapes.append(
                f'<line x1="{BESIDE}" y1="{middle}" x2="{CORE + BOX + 9}" y2="{middle}" '
                'stroke="#555" marker-end="url(#head)"/>'
            )
        y += height + GAP
    lane = 0
    for name in core:
        for other in direct[name]:
            if any(other in reached[between] for between in direct[name]):
                continue
            start, end, x = (
                tops[name] + 30 + 12 * (lane % 3),
                tops[other] + 14,
                CORE - 16 - 10 * (lane % 3),
            )
            lane += 1
            shapes.append(
                f'<path d="M{CORE},{start} H{x} V{end} H{CORE - 9}" fill="none" '
                'stroke="#555" marker-end="url(#head)"/>'
            )
    shapes.append(
        f'<text x="{CORE}" y="26" font-size="16" font-weight="bold">The core</text>'
        f'<text x="{BESIDE}" y="26" font-size="16" font-weight="bold">Extensions, and + the others that they use</text>'
    )
    wide = WIDTH - CORE - 28
    for name in ("train", TOOLS):
        shapes += box(
            CORE, y, wide, 62, "#e7f1e0", name, own[name].replace("`", ""), other_rooms(name)
        )
        y += 62 + GAP
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y}" width="{WIDTH}" '
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
