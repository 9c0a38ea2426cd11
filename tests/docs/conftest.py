"""For tests of the documentation: running the program of a page."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the one program of a page as it stands; gives its names."""
    monkeypatch.chdir(tmp_path)

    def run(page):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        names = {}
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            exec(program, names)
        return names

    return run
