"""The picture of the rooms, and the table of CONTRIBUTING.md that it takes its words from."""

from pathlib import Path

import pytest
from helpers import load_script

ROOT = Path(__file__).parents[2]
SCRIPT = ROOT / "docs" / "draw_rooms.py"


@pytest.fixture
def drawing():
    if not SCRIPT.is_file():
        pytest.skip("not beside an installed package")
    return load_script(SCRIPT)


def test_the_picture_is_that_of_the_imports(drawing):
    assert drawing.PICTURE.read_text(encoding="utf-8") == drawing.draw(), (
        "run python docs/draw_rooms.py"
    )


def test_the_table_has_every_room(drawing):
    folders = {path.parent.name for path in (ROOT / "torch_tfrecord").glob("*/*.py")}
    told = {*drawing.rooms(), "native"}
    assert told == {*folders, "torch_tfrecord", "index_tools"}


def test_each_room_has_a_page_of_at_most_40_lines(drawing):
    for name in drawing.rooms().keys() - {"torch_tfrecord"}:
        folder = ROOT if name == "index_tools" else ROOT / "torch_tfrecord"
        lines = (folder / name / "README.md").read_text(encoding="utf-8").splitlines()
        assert lines[0].startswith(f"# {name}")
        assert len(lines) <= 40
