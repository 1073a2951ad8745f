"""A headless Chromium for tests: found on PATH or named by CHROMIUM, driven by the chromedriver beside it, shut off from the network."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")
FLAGS = (
    "--headless=new",
    "--no-sandbox",  # the tests may run as root, and open only pages that they wrote themselves
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--host-resolver-rules=MAP * ~NOTFOUND",
)


def require_browser() -> tuple[str, str]:
    """Chromium and chromedriver; skips the test, saying why, where there is none."""
    chromium = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, NAMES)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    if not chromium or not driver:
        lacking = "chromium" if not chromium else "chromedriver"
        pytest.skip(f"no {lacking} on PATH, so the page was NOT tried in a browser (Debian: packages chromium and chromium-driver)")
    return chromium, driver


@contextmanager
def browser(folder: Path, *, width: int = 1280, height: int = 900, dark: bool = False, script: bool = True) -> Iterator[Any]:
    """A driver of one window.

    Args:
        folder: For its profile.
        width: Of the page.
        height: Of the page.
        dark: Whether the reader prefers dark colours.
        script: Whether pages may run scripts.
    """
    selenium = pytest.importorskip("selenium.webdriver", reason="selenium is not installed, so the page was NOT tried in a browser")
    from selenium.webdriver.chrome.service import Service

    chromium, driver = require_browser()
    options = selenium.ChromeOptions()
    options.binary_location = chromium
    for flag in (*FLAGS, f"--user-data-dir={folder}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    window = selenium.Chrome(options=options, service=Service(driver))
    try:
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        window.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        colours = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        window.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": colours})
        window.execute_cdp_cmd("Emulation.setScriptExecutionDisabled", {"value": not script})
        yield window
    finally:
        window.quit()
