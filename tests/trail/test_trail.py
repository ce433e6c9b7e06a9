"""The audit trail: a line for each thing that was done or refused, where it is written, and when it cannot be."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fairlog.trail import Action, Actor, Trail, TrailUnusable

ALICE = Actor("User:alice", "10.0.0.1:5000", "kafka", "tool-1")


def lines_of(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def test_line_says_who_did_what_from_where(tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    trail = Trail(file, wall_s=lambda: 1_764_316_800.25)
    trail.note(ALICE, Action.CREATE_TOPIC, "orders", partitions=3)
    trail.note(ALICE, Action.DELETE_TOPIC, 'odd "name"\n', "TOPIC_AUTHORIZATION_FAILED")
    assert lines_of(file) == [
        {
            "time": "2025-11-28T08:00:00.250Z",
            "action": "create topic",
            "on": "orders",
            "outcome": "done",
            "principal": "User:alice",
            "peer": "10.0.0.1:5000",
            "by": "kafka",
            "client_id": "tool-1",
            "partitions": 3,
        },
        {
            "time": "2025-11-28T08:00:00.250Z",
            "action": "delete topic",
            "on": 'odd "name"\n',
            "outcome": "TOPIC_AUTHORIZATION_FAILED",
            "principal": "User:alice",
            "peer": "10.0.0.1:5000",
            "by": "kafka",
            "client_id": "tool-1",
        },
    ]
    assert file.stat().st_mode & 0o777 == 0o600


def test_lines_are_those_of_the_log_without_a_file() -> None:
    with structlog.testing.capture_logs() as logged:
        Trail().note(ALICE, Action.DELETE_GROUP, "billing")
    assert [(line["event"], line["action"], line["on"], line["outcome"]) for line in logged] == [
        ("trail", "delete group", "billing", "done")
    ]


def test_two_processes_write_one_file_which_may_be_moved_away(tmp_path: Path) -> None:
    file, moved = tmp_path / "trail.jsonl", tmp_path / "trail.jsonl.1"
    one, two = Trail(file), Trail(file)
    one.note(ALICE, Action.CREATE_TOPIC, "a")
    two.note(ALICE, Action.CREATE_TOPIC, "b")
    file.rename(moved)
    one.note(ALICE, Action.CREATE_TOPIC, "c")
    two.note(ALICE, Action.CREATE_TOPIC, "d")
    assert [line["on"] for line in lines_of(moved)] == ["a", "b"]
    assert [line["on"] for line in lines_of(file)] == ["c", "d"]


def test_refusals_of_an_address_are_limited_and_what_was_done_is_not(tmp_path: Path) -> None:
    now_s = 0.0
    file = tmp_path / "trail.jsonl"
    trail = Trail(file, now_s=lambda: now_s)
    for _ in range(1000):
        trail.note(ALICE, Action.DELETE_TOPIC, "orders", "TOPIC_AUTHORIZATION_FAILED")
        trail.note(ALICE, Action.CREATE_TOPIC, "orders")
    outcomes = [line["outcome"] for line in lines_of(file)]
    assert outcomes.count("done") == 1000
    assert 1 <= outcomes.count("TOPIC_AUTHORIZATION_FAILED") <= 10
    now_s = 120.0
    trail.note(ALICE, Action.DELETE_TOPIC, "orders", "TOPIC_AUTHORIZATION_FAILED")
    assert lines_of(file)[-1]["suppressed"] == 1000 - outcomes.count("TOPIC_AUTHORIZATION_FAILED")


def test_file_that_cannot_be_opened_refuses_the_start(tmp_path: Path) -> None:
    with pytest.raises(TrailUnusable, match=r"trail\.file.*No such file"):
        Trail(tmp_path / "nowhere" / "trail.jsonl")


def test_missing_lines_are_counted_and_said_once(tmp_path: Path) -> None:
    """What was asked for is done nevertheless, and the next line that is written says how many are not there."""
    directory = tmp_path / "trails"
    directory.mkdir()
    file = directory / "trail.jsonl"
    trail = Trail(file)
    file.unlink()
    directory.rmdir()
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            trail.note(ALICE, Action.CREATE_TOPIC, "orders")
        directory.mkdir()
        trail.note(ALICE, Action.CREATE_TOPIC, "invoices")
    assert [line["event"] for line in logged] == ["the audit trail is not written", "the audit trail is written again"]
    assert [(line["on"], line["lines_missing"]) for line in lines_of(file)] == [("invoices", 3)]


def test_full_disk_refuses_nothing_and_is_said_once() -> None:
    trail = Trail(Path("/dev/full"))
    with structlog.testing.capture_logs() as logged:
        for _ in range(3):
            trail.note(ALICE, Action.CREATE_TOPIC, "orders")
    assert [(line["event"], line["reason"]) for line in logged] == [
        ("the audit trail is not written", "No space left on device")
    ]


def test_line_that_was_written_in_part_spoils_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The next one begins on a line of its own."""
    file = tmp_path / "trail.jsonl"
    trail = Trail(file)
    with monkeypatch.context() as patch:
        write = os.write
        patch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:10]))
        trail.note(ALICE, Action.CREATE_TOPIC, "orders")
    trail.note(ALICE, Action.CREATE_TOPIC, "invoices")
    torn, whole = file.read_text(encoding="utf-8").splitlines()
    assert len(torn) == 10
    assert (json.loads(whole)["on"], json.loads(whole)["lines_missing"]) == ("invoices", 1)


def test_refusals_do_not_hide_what_was_done_often(tmp_path: Path) -> None:
    file = tmp_path / "trail.jsonl"
    trail = Trail(file, now_s=lambda: 0.0)
    for _ in range(100):
        trail.note(ALICE, Action.RESET_OFFSETS, "g", "GROUP_AUTHORIZATION_FAILED", often=True)
    trail.note(ALICE, Action.RESET_OFFSETS, "g", often=True)
    assert lines_of(file)[-1]["outcome"] == "done"
