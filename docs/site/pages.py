"""What the site shows from outside docs/: the changelog, and each file of the repository that a
page links to.

Also warns of links to what the site does not have: MkDocs itself only notes links to files that it
leaves out.
"""

from __future__ import annotations

import logging
import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING
from urllib.parse import unquote

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

__all__ = ["on_files", "on_page_markdown", "on_post_build"]

_ROOT = Path(__file__).resolve().parents[2]
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
_BUILT_LINK = re.compile(r'<(?:a|img)\b[^>]* (?:href|src)="([^"#?:]+)[^":]*"')
_PATHS: dict[str, str] = {}  # of the files outside docs/ that pages show
# below MkDocs's own, whose warnings end a strict build
_LOG = logging.getLogger("mkdocs.hooks.pages")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that lie elsewhere."""
    from mkdocs.structure.files import File

    texts = {file.src_uri: file.content_string for file in files.documentation_pages()}
    linked = {_linked(page, link) for page, text in texts.items() for link in _LINK.findall(text)}
    files.append(File.generated(config, "changelog.md", content=_text("CHANGELOG.md")))
    for path in sorted(path for path in linked if not path.startswith("docs/")):
        _PATHS[_page_of(path)] = path
        files.append(File.generated(config, _page_of(path), content=_shown(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links that leave docs/, or lead there from outside, to the site's pages."""
    here = page.file.src_uri

    def inside(found: re.Match[str]) -> str:
        return os.path.relpath(_page_of(_linked(here, found[1])), PurePosixPath(here).parent)

    return _LINK.sub(inside, markdown)


def on_post_build(config: MkDocsConfig) -> None:
    """Warn of each link of the built pages to a file that the site does not have."""
    site = Path(config.site_dir)
    for page in sorted(site.rglob("*.html")):
        if page.name == "404.html":
            continue  # its links begin at the site's address
        for link in dict.fromkeys(_BUILT_LINK.findall(page.read_text(encoding="utf-8"))):
            if not (page.parent / unquote(link)).is_file():
                _LOG.warning(
                    "%r links to %r, which is not in the site",
                    page.relative_to(site).as_posix(),
                    link,
                )


def _linked(page: str, link: str) -> str:
    """The path in the repository of what a page links to."""
    return os.path.normpath(PurePosixPath(_PATHS.get(page, f"docs/{page}")).parent / link)


def _page_of(path: str) -> str:
    """The page, in docs/, that shows a file of the repository."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    # MkDocs leaves hidden files out
    name = "/".join(part.lstrip(".") for part in PurePosixPath(path).parts)
    return f"repository/{name}" if name.endswith(".md") else f"repository/{name}.md"


def _shown(path: str) -> str:
    if path.endswith(".md"):
        return _NOT_SEARCHED + _text(path)
    return f"{_NOT_SEARCHED}# {path}\n\n````{PurePosixPath(path).suffix[1:]}\n{_text(path)}````\n"


def _text(path: str) -> str:
    return (_ROOT / path).read_text(encoding="utf-8")
