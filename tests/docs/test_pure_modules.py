"""Modules that say that they are pure: the import contracts hold them to it."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SAYS_SO = re.compile(r"\bPure\b|\b[Nn]o I/O\b")
CONTRACTS = ("State machines, planners, codecs", "Rules that know shells")
"""How the contracts on purity begin."""


def test_module_that_calls_itself_pure_is_in_a_contract() -> None:
    """What the head of a module promises is checked with each change."""
    importlinter = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    held = {
        module
        for contract in importlinter["contracts"]
        if contract["name"].startswith(CONTRACTS)
        for module in contract["source_modules"]
    }
    say_so: set[str] = set()
    for room in importlinter["root_packages"]:
        for path in (ROOT / room).rglob("*.py"):
            head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if path.name != "__init__.py" and SAYS_SO.search(head or ""):
                say_so.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    assert len(say_so) > 50
    assert say_so - held == set()
