"""What the site shows from outside docs/: the changelog, and each file of the repository that a page links to."""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown"]

_ROOT = Path(__file__).resolve().parents[2]
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    from mkdocs.structure.files import File

    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    outside = {path for page, text in texts.items() for link in _LINK.findall(text) if (path := _outside(page, link))}
    files.append(File.generated(config, "changelog.md", content=_text("CHANGELOG.md")))
    for path in sorted(outside):
        files.append(File.generated(config, _page_of(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/ to the pages of `on_files`."""
    here = page.file.src_uri

    def inside(found: re.Match[str]) -> str:
        path = _outside(here, found[1])
        return os.path.relpath(_page_of(path), PurePosixPath(here).parent) if path else found[1]

    return _LINK.sub(inside, markdown)


def _outside(page: str, link: str) -> str | None:
    """The path in the repository of what a page links to, None where that lies in docs/."""
    path = os.path.normpath(PurePosixPath("docs", page).parent / link)
    return None if path.startswith("docs/") else path


def _page_of(path: str) -> str:
    return f"repository/{path}" if path.endswith(".md") else f"repository/{path}.md"


def _shown(path: str) -> str:
    if path.endswith(".md"):
        return _NOT_SEARCHED + _text(path)
    return f"{_NOT_SEARCHED}# {path}\n\n````{PurePosixPath(path).suffix[1:]}\n{_text(path)}````\n"


def _text(path: str) -> str:
    return (_ROOT / path).read_text(encoding="utf-8")
