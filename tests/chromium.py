"""Chromium, as a user's browser."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from playwright.sync_api import Browser, BrowserContext, expect, sync_playwright

PATH = next(filter(None, map(shutil.which, ("chromium", "google-chrome"))), None)

PATIENCE = 60_000.0
"""Milliseconds that a click or a claim waits at most: a busy machine is many times slower."""
expect.set_options(timeout=PATIENCE)


@contextmanager
def chromium() -> Iterator[Browser]:
    """A browser, until the block ends. Without one on this machine the test is skipped."""
    if PATH is None:
        pytest.skip("there is no Chromium: apt-get install chromium")
    with sync_playwright() as driver:
        # Root may not use Chromium's own sandbox.
        browser = driver.chromium.launch(executable_path=PATH, args=["--no-sandbox"])
        yield browser
        browser.close()


@contextmanager
def visiting(browser: Browser, url: str) -> Iterator[BrowserContext]:
    """A context for the page at `url`. A script that raises fails the test."""
    made = browser.new_context(base_url=url, viewport={"width": 1360, "height": 900})
    made.set_default_timeout(PATIENCE)
    raised: list[str] = []
    made.on("weberror", lambda error: raised.append(str(error.error)))
    yield made
    made.close()
    assert raised == []
