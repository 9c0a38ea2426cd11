"""The site as MkDocs builds it: every heading is there, and a broken link, anchor or link to an
excluded file fails.

`MKDOCS` names the command, as CI does, where it is not on the path; without either, these tests are
skipped.
"""

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MKDOCS = os.environ.get("MKDOCS") or shutil.which("mkdocs")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(MKDOCS is None, reason="MkDocs is not installed"),
    pytest.mark.skipif(
        not (ROOT / "docs" / "site").is_dir(), reason="not beside an installed package"
    ),
]


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


@pytest.mark.slow
def test_the_site_builds_and_shows_every_heading(repository):
    assert build(repository) == (0, [])
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
