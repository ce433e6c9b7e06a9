"""Repeats the failures of a run of several parts at its end: `tell(reports)`.

The parts of a run (scripts/test.py) print one after the other, and clients of the tests write to the same terminal, so
the failures of the first part are thousands of lines above the end. So each part also writes a report in JUnit's format
(pytest's `--junitxml`), and the last lines of the run are the failures of all of them. Standard library only.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from collections.abc import Iterable
from pathlib import Path

LINES = 40
"""The number of last lines shown of each failure: the assertion, and what led to it."""


def tell(reports: Iterable[Path]) -> str:
    """The failures and errors in the reports, one after the other; an empty text if there are none.

    A part that was killed has written no report; the text says so instead.
    """
    told: list[str] = []
    for report in reports:
        if not report.is_file():
            told.append(f"{report.stem}: was cut short and has written no report\n")
            continue
        for case in ElementTree.parse(report).getroot().iter("testcase"):
            told += [_failure(case, found) for found in (*case.findall("failure"), *case.findall("error"))]
    return "\n".join(told)


def _failure(case: ElementTree.Element, found: ElementTree.Element) -> str:
    lines = (found.text or found.get("message", "")).splitlines()[-LINES:]
    return "\n".join([f"{found.tag}: {case.get('classname')}::{case.get('name')}", *lines, ""])
