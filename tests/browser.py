"""A tab of a real browser, for the tests of pages."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")


@contextmanager
def browser_tab() -> Iterator[Any]:
    """Open an empty tab; what fails in a page's script fails the test."""
    playwright = pytest.importorskip("playwright.sync_api")
    if CHROMIUM is None:
        pytest.skip("no chromium to open the page in")
    with playwright.sync_playwright() as started:
        opened = started.chromium.launch(executable_path=CHROMIUM, args=["--headless=new", "--no-sandbox"])
        tab, faults = opened.new_page(), list[str]()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: faults.append(str(error)))
        yield tab
        assert faults == []
        opened.close()
