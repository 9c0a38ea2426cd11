"""Look at every page of the built site at the width of a desktop and of a phone, in headless Chromium.

    mkdocs build --strict -f docs/site/mkdocs.yml
    pip install playwright && python docs/look_at_site.py            # what does not fit
    python docs/look_at_site.py shots index.html reference/order.html  # and pictures, in the folder shots

Needs Chromium. `tests/docs/test_site_build.py` asserts that everything fits.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import NamedTuple

sys.path.append(str(Path(__file__).resolve().parents[1] / "tests" / "support"))
from browser import open_browser

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
DESKTOP, PHONE = 1280, 390
WIDEST = 100  # characters that a line of code may have
# What is wider than the window, and what of it scrolls inside itself.
LOOK = """() => {
    const root = document.documentElement, found = [];
    if (root.scrollWidth > root.clientWidth) {
        const wide = [...document.querySelectorAll("article *")].filter(
            (one) => one.getBoundingClientRect().right > root.clientWidth + 1
                && !one.closest("pre, .md-typeset__scrollwrap, .highlight"));
        found.push(["page", wide.length ? wide.at(-1).outerHTML.slice(0, 120) : "", 0]);
    }
    for (const code of document.querySelectorAll("article pre > code"))
        if (code.scrollWidth > code.clientWidth) {
            const lines = code.innerText.split("\\n").sort((one, two) => two.length - one.length);
            found.push(["code", lines[0], lines[0].length]);
        }
    for (const table of document.querySelectorAll("article .md-typeset__scrollwrap"))
        if (table.scrollWidth > table.clientWidth + 1)
            found.push(["table", table.innerText.split("\\n")[0].slice(0, 80), 0]);
    return found;
}"""


class Wide(NamedTuple):
    """Something that does not fit.

    Attributes:
        page: The page's path in the site.
        width: That of the window, in pixels.
        kind: "page", "code" or "table".
        text: Its longest line, or its beginning.
        characters: Those of that line of code.
    """

    page: str
    width: int
    kind: str
    text: str
    characters: int

    @property
    def is_wrong(self) -> bool:
        """Whether it is more than code or a table that scrolls inside itself where it may."""
        may_scroll = self.width == PHONE or self.kind == "table" or self.characters > WIDEST
        return self.kind == "page" or not may_scroll


def look(site: Path, shots: Path | None = None, names: tuple[str, ...] = ()) -> list[Wide]:
    """What does not fit, and pictures of the pages that are named, light and dark."""
    found = []
    with open_browser() as browser:
        for width, height in ((DESKTOP, 900), (PHONE, 844)):
            for scheme in ("light", "dark") if shots else ("light",):
                # a context of its own: the theme remembers the palette
                window = browser.new_page(
                    viewport={"width": width, "height": height}, color_scheme=scheme
                )
                for path in sorted(site.rglob("*.html")):
                    name = path.relative_to(site).as_posix()
                    if shots and name not in names:
                        continue
                    window.goto(path.as_uri())
                    found += [Wide(name, width, *wide) for wide in window.evaluate(LOOK)]
                    if shots:
                        stem = name.removesuffix(".html").replace("/", "_")
                        window.screenshot(path=shots / f"{stem}_{width}_{scheme}.png")
                window.close()
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else None
    if folder is not None:
        folder.mkdir(exist_ok=True)
    for wide in look(SITE, folder, tuple(sys.argv[2:])):
        print(*wide[:3], "wrong" if wide.is_wrong else "scrolls", wide.characters, repr(wide.text))
