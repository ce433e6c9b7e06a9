"""docs/authorization.md says of each API, and of each op, what it asks for."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

from fairlog.kafka.handlers import ALL
from fairlog.native.protocol import OPS
from fairlog.security.acls import Operation, ResourceType

PAGE = (Path(__file__).resolve().parents[2] / "docs/authorization.md").read_text(encoding="utf-8")

WORDS = {
    ResourceType.TOPIC: "topic",
    ResourceType.GROUP: "group",
    ResourceType.CLUSTER: "cluster",
    ResourceType.TRANSACTIONAL_ID: "transactional id",
}


def _in_words(checks: Iterable[tuple[Operation, ResourceType]], of_ids: str) -> str:
    words = WORDS | {ResourceType.TRANSACTIONAL_ID: of_ids}
    return ", ".join(f"{operation.name} {words[of]}" for operation, of in checks) or "nothing"


def test_table_of_apis_is_complete_and_right() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| ([^|]*) \|", PAGE, re.MULTILINE)
    expected = [
        (str(api.key), api.name, _in_words(((each.operation, each.of) for each in api.checks), "transactional id"))
        for api in ALL
    ]
    assert rows == expected


def test_table_of_ops_is_complete_and_right() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]*) \|", PAGE, re.MULTILINE)
    assert rows == [(name, _in_words(op.checks, "sink")) for name, op in OPS.items()]


def test_codes_of_the_table_are_those_of_the_checks() -> None:
    """A row names the code of each of its checks, unless what is denied is left out."""
    for api in ALL:
        (row,) = (line for line in PAGE.splitlines() if line.startswith(f"| {api.key} | {api.name} |"))
        told = row.rsplit("|", 2)[1]
        codes = {str(code) for code in re.findall(r"\b(?:29|30|31|53)\b", told)}
        assert codes <= {str(int(check.code)) for check in api.checks}, row
        assert bool(api.checks) == bool(told.strip()), row
