"""The drawings of the pages are of what the library does now."""

from pathlib import Path

import pytest
from helpers import load_script

SCRIPT = Path(__file__).parents[2] / "docs" / "draw_pictures.py"


@pytest.fixture(scope="module")
def drawing():
    if not SCRIPT.is_file():
        pytest.skip("not beside an installed package")
    return load_script(SCRIPT)


@pytest.mark.parametrize("name", ["rlds_window.svg", "crop.svg", "show.svg"])
def test_the_picture_is_current_and_shown(drawing, name):
    picture = SCRIPT.with_name(name).read_text(encoding="utf-8")
    assert picture == drawing.PICTURES[name](), "run python docs/draw_pictures.py"
    pages = [page.read_text(encoding="utf-8") for page in SCRIPT.parent.glob("*.md")]
    assert sum(f"]({name})" in page for page in pages) == 1
