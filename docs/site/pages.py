"""What the site shows from outside docs/: the changelog, and each file of the repository that a
page links to.

Also warns of links to what the site does not have: MkDocs itself only notes links to files that it
leaves out. And writes, for programs that read the site, each page as Markdown (`page.html.md`) and
their list, `llms.txt` (https://llmstxt.org).
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

__all__ = ["on_files", "on_page_content", "on_page_markdown", "on_post_build"]

_ROOT = Path(__file__).resolve().parents[2]
_NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"
_LINK = re.compile(r"(?<=\]\()(\.\./[^)#\s]+)")
_BUILT_LINK = re.compile(r'<(?:a|img)\b[^>]* (?:href|src)="([^"#?:]+)[^":]*"')
_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_ROW = re.compile(r"<tr>.*?</tr>", re.DOTALL)
_HEAD = re.compile(r"<th[^>]*>(.*?)</th>", re.DOTALL)
_MOST_FOLDED = 3  # columns of a table that folds on a phone; wider ones scroll
_SENTENCE = re.compile(r"^(?![#<!|\[\s-]|```)(.+?)(?:\.(?=\s|$)|:?\n\n)", re.DOTALL | re.MULTILINE)
_MARKDOWN_LINK = re.compile(r"(?<=\]\()(?!\w+:)([^)#\s]+)\.md\b")
_MARKDOWN: dict[str, str] = {}  # of the pages in docs/, with links between pages
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

    markdown = _LINK.sub(inside, markdown)
    if not here.startswith(("reference/", "repository/")):
        _MARKDOWN[here] = markdown
    return markdown


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Tell the cells of narrow tables the heads of their columns, for extra.css, which folds them."""

    def with_heads(table: re.Match[str]) -> str:
        heads = [re.sub(r"<[^>]+>", "", head) for head in _HEAD.findall(table[0])]
        if not 2 <= len(heads) <= _MOST_FOLDED:
            return table[0]

        def row(found: re.Match[str]) -> str:
            names = iter(heads)
            return re.sub(r"<td(?=[ >])", lambda _: f'<td data-head="{next(names, "")}"', found[0])

        return _ROW.sub(row, table[0])

    return _TABLE.sub(with_heads, html)


def on_post_build(config: MkDocsConfig) -> None:
    """Write what programs read, and warn of each link of the built pages to a file that the site
    does not have.
    """
    site = Path(config.site_dir)
    for name, markdown in _MARKDOWN.items():
        (site / _plain(name)).write_text(_for_programs(name, markdown), encoding="utf-8")
    (site / "llms.txt").write_text(_list_of_pages(config), encoding="utf-8")
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


def _plain(page: str, folder: str = "") -> str:
    """The file for programs: Markdown, where the page is not made of docstrings or source."""
    is_text = os.path.normpath(PurePosixPath(folder, page)) in _MARKDOWN
    name = re.sub(r"\bREADME$", "index", page.removesuffix(".md"))  # as MkDocs calls it
    return name + (".html.md" if is_text else ".html")


def _for_programs(page: str, markdown: str) -> str:
    folder = str(PurePosixPath(page).parent)
    return _MARKDOWN_LINK.sub(lambda link: _plain(f"{link[1]}.md", folder), markdown)


def _list_of_pages(config: MkDocsConfig) -> str:
    """Of llms.txt: the pages by section, each with its first sentence."""
    loose, sections = [], []
    for item in config.nav or []:
        ((title, inside),) = item.items()
        if isinstance(inside, str):
            loose.append(_listed(title, inside))
        else:
            pages = [{title: one} if isinstance(one, str) else one for one in inside]
            links = [_listed(*page) for one in pages for page in one.items()]
            sections += ["", f"## {title}", "", *links]
    about = (
        "`from torch_tfrecord import ...` is the whole interface; "
        "[assistants.html.md](assistants.html.md) has every name with its arguments, and wrong uses."
    )
    head = [f"# {config.site_name}", "", f"> {config.site_description}", "", about]
    return "\n".join([*head, "", "## Begin", "", *loose, *sections, ""])


def _listed(title: str, page: str) -> str:
    found = _SENTENCE.search(_MARKDOWN.get(page, ""))
    text = " ".join(re.sub(r"\[([^]]+)\]\([^)]*\)", r"\1", found[1]).split()) if found else ""
    end = f": {text.rstrip(' ,:.')}" if text else ""
    return f"- [{title}]({_plain(page)}){end}"


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
