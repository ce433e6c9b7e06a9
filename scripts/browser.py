"""The browser for the tests of the console: Debian's Chromium and its driver.

The downloads that Selenium and Playwright would make are not used.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass

BROWSERS = ("chromium", "chromium-browser", "google-chrome")
DRIVERS = ("chromedriver",)
PACKAGES = ("chromium", "chromium-driver")

FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-dev-shm-usage",
    "--force-device-scale-factor=1",
    "--hide-scrollbars",
)
"""Without a screen, as root (where there is no sandbox), and without connections to any host except the node."""

MISSING = (
    "the console is tested in Chromium, and there is no chromium with its chromedriver on the path: "
    f"`apt-get install {' '.join(PACKAGES)}` (Debian), or `python3 scripts/debian.py` as root"
)


@dataclass(frozen=True)
class Browser:
    """The paths of the two programs."""

    browser: str
    driver: str


def find() -> Browser | None:
    """The browser and its driver, if both are on the path."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    return None if browser is None or driver is None else Browser(browser, driver)
