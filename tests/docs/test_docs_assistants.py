"""The page for coding assistants: its list is that of the package, its right uses run, and its wrong
ones raise what it says.

The list is written by docs/list_api.py.
"""

import re
from pathlib import Path

import pytest
from helpers import load_script

import torch_tfrecord
from torch_tfrecord import tfds

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "assistants.md"
pytestmark = pytest.mark.skipif(not PAGE.is_file(), reason="not beside an installed package")


def test_the_list_is_that_of_the_package():
    module = load_script(DOCS / "list_api.py")
    text = PAGE.read_text(encoding="utf-8")
    assert text == module.listed(), "run python docs/list_api.py"
    listed = text.partition(module.BEGIN)[2]
    names = [name for name in torch_tfrecord.__all__ if name != "tfds"]
    names += [f"tfds.{name}" for name in tfds.__all__]
    assert [
        one for one in names if not re.search(rf"^{re.escape(one)}\b", listed, re.MULTILINE)
    ] == []
    assert "(self" not in listed
    assert not re.search(r"\b_\w+[=,)]", listed)


def test_right_and_wrong_uses(run, capsys):
    names = run("assistants")
    text = PAGE.read_text(encoding="utf-8")
    (program,) = re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    expected = re.findall(
        r"^ *(?:print\(.*\)  )?# (torch\.Size.*|64 1 48|False|64)$", program, re.M
    )
    assert len(expected) == 4
    assert capsys.readouterr().out == "".join(f"{line}\n" for line in expected)
    (wrong,) = re.findall(r"^```py\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)
    names |= {name: getattr(torch_tfrecord, name) for name in torch_tfrecord.__all__}
    uses = wrong.strip().split("\n\n")
    assert len(uses) > 20
    for use in uses:
        code = re.sub(r"^#.*\n?", "", use, flags=re.MULTILINE)
        said = " ".join(re.findall(r"^# (.+)$", use, re.MULTILINE)).partition(" Instead: ")[0]
        with pytest.raises(Exception, match=r"\w") as caught:
            exec(code, dict(names))
        found = " ".join(f"{caught.type.__name__}: {caught.value}".split())
        assert found.startswith(said), use
        assert len(said) > len(caught.type.__name__) + 20
