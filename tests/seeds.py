"""A seed for the trials of the test suite that no run of other code has had, and every run of this code has.

What a trial draws is new with each change, so that over time much is tried; and the same wherever the same code is
tested, so that what is green in one place is green in the other. Who wants more gives seeds by hand.
"""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("coordinator", "copier", "datalog", "fairlog", "journal", "pyspark_fairlog")


@cache
def seed_of_the_code() -> str:
    """Of the source of all packages, where it is and what it says: 10 hexadecimal digits."""
    paths = [*ROOT.glob("fairlog_*.py"), *(path for name in PACKAGES for path in (ROOT / name).rglob("*.py"))]
    digest = hashlib.sha256()
    for path in sorted(paths):
        source = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT).as_posix()} {len(source)}\n".encode() + source)
    return digest.hexdigest()[:10]
