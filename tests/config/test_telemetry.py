"""The node's log lines go to stderr, as JSON or for people."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog
import trio

from fairlog import telemetry
from fairlog.config import LogSettings


@pytest.fixture(autouse=True)
def structlog_as_before() -> Iterator[None]:
    """Other tests find structlog as it was."""
    yield
    structlog.reset_defaults()


def test_log_line_not_on_a_terminal_is_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    """Fields are fields, values that JSON does not know are text, stdout stays free."""
    telemetry.set_up(LogSettings())
    structlog.get_logger().info("transaction", outcome="commit", partitions=2, where=LogSettings)
    captured = capsys.readouterr()
    line = json.loads(captured.err)
    assert (line["event"], line["level"], line["outcome"], line["partitions"]) == ("transaction", "info", "commit", 2)
    assert captured.out == ""


async def test_log_line_of_one_of_several_shards_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Also from a thread; and a line that names another shard keeps that."""
    telemetry.set_up(LogSettings())
    log = structlog.get_logger()

    with structlog.contextvars.bound_contextvars(shard=2):
        await trio.to_thread.run_sync(log.info, "flushed")
        log.info("asked", shard=1)
        log.info("answered")
    log.info("elsewhere")
    lines = capsys.readouterr().err.splitlines()
    assert [json.loads(line).get("shard") for line in lines] == [2, 1, 2, None]


def test_log_line_is_written_with_its_end_in_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two processes of one node write two lines and then two ends, where stderr is not buffered."""
    written: list[str] = []
    stderr = io.StringIO()
    monkeypatch.setattr(stderr, "write", written.append)
    monkeypatch.setattr(sys, "stderr", stderr)
    telemetry.set_up(LogSettings())
    structlog.get_logger().info("one")
    structlog.get_logger().info("two")
    assert [json.loads(line)["event"] for line in written] == ["one", "two"]
    assert all(line.endswith("\n") for line in written)


def test_log_line_below_the_level_is_not_written(capsys: pytest.CaptureFixture[str]) -> None:
    """One line per request appears at debug only."""
    telemetry.set_up(LogSettings(level="info"))
    structlog.get_logger().debug("request")
    telemetry.set_up(LogSettings(level="debug"))
    structlog.get_logger().debug("request", api="Produce")
    assert [json.loads(line)["api"] for line in capsys.readouterr().err.splitlines()] == ["Produce"]


def test_log_line_of_an_exception_carries_its_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    """An error of ours can be found from the log alone, also as JSON."""
    telemetry.set_up(LogSettings(format="json"))
    try:
        {}["gone"]
    except KeyError:
        structlog.get_logger().exception("broken")
    line = json.loads(capsys.readouterr().err)
    assert line["exception"][0]["exc_type"] == "KeyError"


@pytest.mark.parametrize("form", ["json", "console"])
def test_log_line_of_an_exception_keeps_what_clients_sent_out(
    form: Literal["json", "console"], capsys: pytest.CaptureFixture[str]
) -> None:
    """The values that the code had in hand when it failed are clients' data: no log has them."""
    telemetry.set_up(LogSettings(format=form))

    def fail(record: bytes) -> None:
        raise LookupError(len(record))

    try:
        fail("-".join(["card", "number"]).encode())
    except LookupError:
        structlog.get_logger().exception("broken")
    err = capsys.readouterr().err
    assert "LookupError" in err
    assert "card-number" not in err


def test_log_line_for_people_is_text(capsys: pytest.CaptureFixture[str]) -> None:
    """`console` is readable even through a pipe, without colours."""
    telemetry.set_up(LogSettings(format="console"))
    structlog.get_logger().info("transaction", outcome="commit")
    err = capsys.readouterr().err
    assert "transaction" in err
    assert "outcome=commit" in err
    assert "\x1b" not in err
