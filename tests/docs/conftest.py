"""For tests of the documentation: running the program of a page."""

import re
from pathlib import Path

import pytest
import torch

DOCS = Path(__file__).parents[2] / "docs"


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs a page's program, or its programs one after another, as they stand; gives the names."""
    monkeypatch.chdir(tmp_path)

    def run(page, **names):
        text = (DOCS / f"{page}.md").read_text(encoding="utf-8")
        programs = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
        assert programs
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            for program in programs:
                exec(program, names)
        return names

    return run
