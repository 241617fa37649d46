"""A real browser without a window: pages are opened, and what they complain of or ask for is kept."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


@dataclass
class Visit:
    """A page, with what its console said and what it asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    def table(self, chart: str) -> list[list[str]]:
        """Open the table of a chart and return its rows."""
        figure = self.page.locator("figure", has=self.page.get_by_text(chart, exact=True))
        details = figure.locator("details")
        if details.get_attribute("open") is None:
            details.locator("summary").click()
        rows = figure.locator("tbody tr")
        rows.first.wait_for()
        return [cells.split("\t") for cells in rows.all_inner_texts()]


def path_of_chromium() -> str:
    path = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if path is None:
        pytest.skip("no Chromium is installed (Debian: chromium)")
    return path


@contextmanager
def chromium() -> Iterator[Browser]:
    """One browser, which many tests share."""
    path = path_of_chromium()
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visit(browser: Browser, **how: object) -> Iterator[Visit]:
    """A fresh page; at the end nothing may have been complained of."""
    context = browser.new_context(**how)  # type: ignore[arg-type]
    found = Visit(context.new_page())
    bad = ("error", "warning")
    found.page.on("console", lambda one: found.complaints.append(one.text) if one.type in bad else None)
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("request", lambda request: found.asked.append(request.url))
    yield found
    context.close()
    assert found.complaints == []
