"""The site as MkDocs builds it: every heading is there, the reference shows what is public and
nothing else, everything fits in the window, and a broken link, anchor or link to an excluded file
fails.

`MKDOCS` names the command, as CI does, where it is not on the path; without either, these tests are
skipped.
"""

import html
import inspect
import os
import re
import shutil
import subprocess
from pathlib import Path
from types import FunctionType

import pytest
from browser import browser_path
from helpers import load_script

import torch_tfrecord
from torch_tfrecord import tfds

ROOT = Path(__file__).parents[2]
MKDOCS = os.environ.get("MKDOCS") or shutil.which("mkdocs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MKDOCS is None, reason="MkDocs is not installed"),
    pytest.mark.skipif(
        not (ROOT / "docs" / "site").is_dir(), reason="not beside an installed package"
    ),
]
# Not ours: names of data that `tfds.RLDSDataset` gives, and of a function that another program has.
NOT_OURS = {"_len", "_traj_index", "_frame_index", "_parse"}
# Methods for other modules of the package. A new method is listed in the reference, or here.
PLUMBING = {
    *("plan", "draw", "pin_memory", "answered", "of", "locate", "path"),
    *("records_of", "skip_to", "batch_size"),
    *("begin_at", "checked_place", "num_replicas", "num_samples", "rank", "total_size"),
    *("check_fresh", "to_bytes", "columns"),
    *("ahead", "begin", "over_epochs"),
}
METHODS = (FunctionType, property, classmethod, staticmethod)


@pytest.fixture
def repository(tmp_path):
    """The repository with its own copy of the pages."""
    for path in ROOT.iterdir():
        if path.name not in ("docs", "build"):
            (tmp_path / path.name).symlink_to(path)
    shutil.copytree(ROOT / "docs", tmp_path / "docs")
    return tmp_path


def build(repository):
    """The exit status, and what is warned of."""
    command = [
        MKDOCS,
        "build",
        "--strict",
        "-f",
        "docs/site/mkdocs.yml",
        "-d",
        str(repository / "site"),
    ]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(
        command,
        env=environment,
        cwd=repository,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    return done.returncode, re.findall(r"^WARNING +-  (.*)$", done.stderr, re.MULTILINE)


def shown_text(page):
    """What a reader of a built page sees."""
    article = re.search(r"<article.*?</article>", page.read_text(encoding="utf-8"), re.DOTALL)[0]
    return html.unescape(re.sub(r"<[^>]+>", "", article))


def check_reference(site):
    """Every public name has its anchor, and no private one is shown; types of ours are linked."""
    texts = {page.stem: page.read_text("utf-8") for page in (site / "reference").glob("*.html")}
    anchors = set(re.findall(r'<h\d id="([\w.]+)"', "".join(texts.values())))
    public = {f"torch_tfrecord.{name}" for name in torch_tfrecord.__all__ if name != "tfds"}
    public |= {f"torch_tfrecord.tfds.{name}" for name in tfds.__all__}
    assert public <= anchors
    private = set()
    for page in (site / "reference").glob("*.html"):
        private |= set(re.findall(r"(?<![\w/.-])_[A-Za-z]\w*", shown_text(page)))
    assert private <= NOT_OURS
    # a type that has no page is a <span> with its full name
    unexplained = re.findall(
        r'<span title="((?:torch_tfrecord|index_tools)\.(?:\w+\.)+[A-Z]\w*)">',
        "".join(texts.values()),
    )
    assert sorted(set(unexplained)) == []
    hidden = set()
    for name in sorted(public):
        thing = tfds if ".tfds." in name else torch_tfrecord
        thing = getattr(thing, name.rpartition(".")[2])
        if inspect.isclass(thing):
            fields = {*getattr(thing, "__dataclass_fields__", ()), *dir(Exception)}
            methods = {
                method
                for base in thing.__mro__
                if base.__module__.startswith("torch_tfrecord")
                for method, value in vars(base).items()
                if method[0] != "_" and isinstance(value, METHODS) and method not in fields
            }
            shown = {one.rpartition(".")[2] for one in anchors if one.startswith(f"{name}.")}
            hidden |= methods - shown
    assert sorted(hidden - PLUMBING) == []
    assert sorted(PLUMBING - hidden) == []


def check_for_programs(site):
    """llms.txt names the pages, and its links and those of the Markdown pages lead to files."""
    text = (site / "llms.txt").read_text(encoding="utf-8")
    assert re.match(r"# torch_tfrecord\n\n> .+\n\n.+\n\n## ", text)
    assert len(re.findall(r"^- \[.+\]\(.+\)", text, re.MULTILINE)) > 40
    broken = []
    for page in [site / "llms.txt", *site.rglob("*.html.md")]:
        prose = re.sub(r"^ *```.*?^ *```$", "", page.read_text("utf-8"), flags=re.S | re.M)
        for link in re.findall(r"\]\((?!\w+:)([^)#\s]+)", prose):
            if not (page.parent / link).is_file():
                broken.append((page.name, link))
    assert broken == []


@pytest.mark.slow
def test_the_site_builds_and_shows_every_heading(repository):
    assert build(repository) == (0, [])
    check_reference(repository / "site")
    check_for_programs(repository / "site")
    for page in (repository / "docs").rglob("*.md"):
        if "reference" in page.parts:
            continue  # whose headings are docstrings
        prose = re.sub(
            r"^ *```.*?^ *```$",
            "",
            page.read_text(encoding="utf-8"),
            flags=re.DOTALL | re.MULTILINE,
        )
        built = (
            (repository / "site" / page.relative_to(repository / "docs"))
            .with_suffix(".html")
            .read_text()
        )
        assert len(re.findall(r"<h[1-6][ >]", built)) == len(
            re.findall(r"^#+ ", prose, re.MULTILINE)
        ), page


@pytest.mark.daily
def test_everything_fits_in_the_window_of_a_desktop_and_of_a_phone(repository):
    if browser_path() is None:
        pytest.skip("playwright or Chromium is not installed")
    assert build(repository) == (0, [])
    look = load_script(ROOT / "docs" / "look_at_site.py").look
    assert [wide for wide in look(repository / "site") if wide.is_wrong] == []


@pytest.mark.daily
def test_a_broken_site_is_refused(repository):
    with (repository / "docs" / "write.md").open("a", encoding="utf-8") as page:
        page.write(
            "\n[a](nothing.md) [b](words.md#nothing) [c](#nothing) [d](site/pages.py) [e](../.github/SECURITY.md)\n"
        )
    status, warnings = build(repository)
    assert status == 1
    assert sorted(warnings) == [
        "'write.html' links to 'nothing.md', which is not in the site",
        "'write.html' links to 'site/pages.py', which is not in the site",
        "Doc file 'write.md' contains a link '#nothing', but there is no such anchor on this page.",
        "Doc file 'write.md' contains a link 'nothing.md', but the target is not found among documentation files.",
        "Doc file 'write.md' contains a link 'words.md#nothing', but the doc 'words.md' does not contain an anchor "
        "'#nothing'.",
    ]
