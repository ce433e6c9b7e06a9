"""The browser that the console is tested in: Debian's Chromium and its driver, found or installed.

    python3 scripts/browser.py        says where they are; installs them with apt-get if they are missing

Only here, and in scripts/test.py on CI, is anything installed outside .venv, and only where apt-get may: as root. The
downloads that Selenium and Playwright would make by themselves are not used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
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
"""Without a screen, as root (where there is no sandbox), and without a word to anybody but the node."""

MISSING = (
    "the console is tested in Chromium, and there is no chromium with its chromedriver on the path: "
    f"`apt-get install {' '.join(PACKAGES)}` (Debian), or `python3 scripts/browser.py` as root"
)


@dataclass(frozen=True)
class Browser:
    """Paths of the two programs."""

    browser: str
    driver: str


def find() -> Browser | None:
    """The browser and its driver, if both are on the path."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = next(filter(None, map(shutil.which, DRIVERS)), None)
    return None if browser is None or driver is None else Browser(browser, driver)


def ensure() -> Browser:
    """Find them, or install them. Exits with a sentence if that cannot be done."""
    found = find()
    if found is not None:
        return found
    if shutil.which("apt-get") is None or os.geteuid() != 0:
        sys.exit(MISSING)
    print(f"installing {' and '.join(PACKAGES)} …", flush=True)
    environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
    for command in (["update"], ["install", "--yes", "--no-install-recommends", *PACKAGES]):
        done = subprocess.run(
            ["apt-get", "--quiet", "--quiet", *command],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            sys.exit(f"{done.stdout[-2000:]}\napt-get {command[0]} failed: see above; {MISSING}")
    found = find()
    return found or sys.exit(MISSING)


if __name__ == "__main__":
    programs = ensure()
    print(f"{programs.browser}\n{programs.driver}")
