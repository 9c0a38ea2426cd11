"""Headless Chromium by playwright, for tests and for the scripts that look at pages."""

import contextlib
import os
import shutil
from collections.abc import Iterator
from typing import Any

__all__ = ["browser_path", "open_browser"]


def browser_path() -> str | None:
    """Chromium, as `CHROMIUM` or the path names it; None without one, or without playwright."""
    with contextlib.suppress(ImportError):
        import playwright  # noqa: F401

        names = (os.environ.get("CHROMIUM"), "chromium", "google-chrome", "chromium-browser")
        return next(filter(None, map(shutil.which, filter(None, names))), None)
    return None


@contextlib.contextmanager
def open_browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        arguments = ["--no-sandbox", "--disable-gpu"]
        browser = playwright.chromium.launch(executable_path=browser_path(), args=arguments)
        try:
            yield browser
        finally:
            browser.close()
