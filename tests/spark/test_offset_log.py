"""How far a batch reads is taken from the checkpoint, and only if it is the query's."""

from __future__ import annotations

from pathlib import Path

import pytest

from pyspark_fairlog.offset_log import OffsetLogRefused, is_local, parse_ends, parse_planned_ms, read_plan

METADATA = '{"batchWatermarkMs":0,"batchTimestampMs":1,"conf":{}}'
ORDERS = '{"orders":{"0":42,"1":40}}'


def log(*lines: str) -> str:
    return "\n".join(("v1", METADATA, *lines))


@pytest.mark.parametrize(
    ("text", "ends"),
    [
        (log(ORDERS), (("orders", 0, 42), ("orders", 1, 40))),
        (log(ORDERS, '{"orders":{"0":41},"clicks":{"0":5}}'), (("clicks", 0, 5), ("orders", 0, 41), ("orders", 1, 40))),
        (log('{"logOffset":3}', ORDERS, "17"), (("orders", 0, 42), ("orders", 1, 40))),
        (log("-", ORDERS), (("orders", 0, 42), ("orders", 1, 40))),
        (
            log('{"#version":2,"#topicIds":{"orders":"0f"},"orders":{"0":42,"1":40}}'),
            (("orders", 0, 42), ("orders", 1, 40)),
        ),
        (log("-"), ()),
        (log("{}"), ()),
    ],
    ids=[
        "one source",
        "two sources of a topic",
        "sources of other kinds",
        "a source without data",
        "topic ids",
        "none",
        "no topic",
    ],
)
def test_ends_are_those_of_the_sources_that_read_topics(text: str, ends: object) -> None:
    assert parse_ends(text) == ends


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("v2\n{}\n{}", "v2"),
        ("", "version"),
        ("v1", "version"),
        (log("17"), "none of the query's sources reads topics"),
        (log('{"orders":{"0":-1}}'), "none of the query's sources"),
        (log('{"orders":{"zero":1}}'), "none of the query's sources"),
    ],
)
def test_log_that_is_not_understood_is_refused(text: str, said: str) -> None:
    with pytest.raises(OffsetLogRefused, match=said):
        parse_ends(text)


@pytest.mark.parametrize(
    ("text", "planned_ms"),
    [
        (log(ORDERS), 1),
        (log(), 1),
        ("v1", None),
        ("", None),
        ("v1\n{}\n" + ORDERS, None),
        ("v1\n[]\n" + METADATA, None),
        ('v1\n{"batchTimestampMs":true}', None),
        ('v1\n{"batchTimestampMs":"1"}', None),
        ('v1\n{"batchTimestampMs":-1}', None),
        ('v1\n{"batchTimestampMs":9223372036854775808}', None),
        ('v1\n{"batchTimestampMs":' + "9" * 5000 + "}", None),
    ],
)
def test_time_of_the_plan_is_in_the_second_line(text: str, planned_ms: int | None) -> None:
    """None of what is no time is believed: a commit names it only if it is known."""
    assert parse_planned_ms(text) == planned_ms


def written(checkpoint: Path) -> Path:
    (checkpoint / "offsets").mkdir(parents=True)
    (checkpoint / "metadata").write_text('{"id":"q"}')
    (checkpoint / "offsets" / "7").write_text(log(ORDERS))
    return checkpoint


@pytest.mark.parametrize("form", ["{}", "file:{}", "file://{}"])
def test_checkpoint_is_read_by_path_and_by_uri(tmp_path: Path, form: str) -> None:
    checkpoint = form.format(written(tmp_path / "a checkpoint"))
    assert is_local(checkpoint)
    assert read_plan(checkpoint, "q", 7) == log(ORDERS)


def test_checkpoint_of_another_query_is_refused(tmp_path: Path) -> None:
    """Of a restart under the same sink, say, with another checkpoint beside it."""
    with pytest.raises(OffsetLogRefused, match="another query"):
        read_plan(str(written(tmp_path / "c")), "other", 7)


@pytest.mark.parametrize("checkpoint", ["{}/none", "file://{}/none", "gopher://{}/none"])
def test_checkpoint_that_cannot_be_read_is_refused_by_name(tmp_path: Path, checkpoint: str) -> None:
    with pytest.raises(OffsetLogRefused, match="none"):
        read_plan(checkpoint.format(tmp_path), "q", 7)
