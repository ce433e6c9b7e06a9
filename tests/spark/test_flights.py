"""The example in examples/flights: driver and node are killed and started again, and the result is that of a batch."""

from __future__ import annotations

import csv
import importlib.util
import json
import random
from collections import defaultdict
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import java
import pytest
from confluent_kafka import Consumer, TopicPartition

from scripts.node_process import ROOT, NodeProcess
from tests.spark.pipeline_process import PipelineProcess

pytestmark = pytest.mark.slow

PIPELINE = ROOT / "examples" / "flights" / "pipeline.toml"
SEED = 20130101
LATE = timedelta(hours=1)
HOUR = timedelta(hours=1)
VICTIMS = ("driver", "nobody: Ctrl-C", "node")
SECOND_DAY, END = "2013-01-02", "2013-01-03"
"""The test has the first two of the example's days: all its state has to come over each restart with that."""
WAIT_S = 30.0


@pytest.fixture(autouse=True)
def _java() -> None:
    if java.find() is None:
        pytest.skip(java.MISSING)


def loader() -> Any:
    """examples/flights/load.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("load", PIPELINE.with_name("load.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def read(node: NodeProcess, topic: str) -> list[tuple[str, dict[str, Any]]]:
    """All records of a topic of one partition, as a plain consumer reads them: (key, value)."""
    consumer = Consumer({"bootstrap.servers": node.address, "group.id": "test", "enable.auto.commit": False})
    try:
        place = TopicPartition(topic, 0, 0)
        first, end = consumer.get_watermark_offsets(place, WAIT_S)
        consumer.assign([place])
        records: list[tuple[str, dict[str, Any]]] = []
        while len(records) < end - first:
            message = consumer.poll(WAIT_S)
            assert message is not None, f"{topic} ends at {end} and gave {len(records)} records"
            assert message.error() is None, message.error()
            assert message.offset() == len(records)
            records.append((message.key().decode(), json.loads(message.value())))
        return records
    finally:
        consumer.close()


def expected_hours() -> dict[str, dict[str, Any]]:
    """What the records say of each hour that is over: a plain loop over the file, without Spark."""
    with (ROOT / "examples" / "data" / "departures-nyc-2013-01.csv").open(newline="") as file:
        flights = [flight for flight in csv.DictReader(file) if flight["scheduled_departure"] < END]
    over = max(datetime.fromisoformat(flight["scheduled_departure"]) for flight in flights) - LATE
    hours: dict[str, dict[str, Any]] = {}
    for flight in flights:
        hour = datetime.fromisoformat(flight["scheduled_departure"]).replace(minute=0)
        if hour + HOUR > over:
            continue
        at = hours.setdefault(
            f"{flight['origin']} {hour:%Y-%m-%d %H}",
            {"origin": flight["origin"], "hour": f"{hour:%Y-%m-%dT%H:%M:%S}.000000Z"}
            | dict.fromkeys(("scheduled", "departed", "delay_min"), 0),
        )
        at["scheduled"] += 1
        if flight["departure_delay_min"]:
            at["departed"] += 1
            at["delay_min"] += int(flight["departure_delay_min"])
    return hours


def expected_days(hours: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """How each day stands when all its hours are counted, with all hours that tie for the worst."""
    by_day: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for key, hour in hours.items():
        by_day[key[:-3]].append(hour)
    days: dict[str, dict[str, Any]] = {}
    for key, each in by_day.items():
        scheduled, departed = (sum(hour[name] for hour in each) for name in ("scheduled", "departed"))
        means = {hour["hour"][11:16]: hour["delay_min"] / hour["departed"] for hour in each if hour["departed"]}
        days[key] = {
            "origin": key[:3],
            "day": key[4:],
            "hours": len(each),
            "scheduled": scheduled,
            "cancelled": scheduled - departed,
            "delay_min": sum(hour["delay_min"] for hour in each),
            "worst_hour": {hour for hour, mean in means.items() if mean == max(means.values())},
        }
    return days


@pytest.fixture
def run(tmp_path: Path) -> Iterator[Callable[..., PipelineProcess]]:
    """Starts the example's pipeline with a checkpoint of the test; nothing of it is left at the end."""
    started: list[PipelineProcess] = []

    def start(node: NodeProcess, *arguments: str) -> PipelineProcess:
        where = ("--bootstrap", node.address, "--checkpoint", str(tmp_path / "checkpoint"), "--master", "local[2]")
        process = PipelineProcess(tmp_path / f"run{len(started)}", str(PIPELINE), *where, *arguments)
        started.append(process)
        return process

    yield start
    for each in started:
        each.kill_all()


def test_pipeline_killed_and_restarted_gives_the_batch_answer(
    fresh_node: Callable[..., NodeProcess], run: Callable[..., PipelineProcess]
) -> None:
    """Each hour exactly once and right, and each day's last word right, whoever was killed whenever."""
    chance = random.Random(SEED)
    node = fresh_node()
    load = loader()
    flights = [each for each in load.flights_of_four_days() if each["scheduled_departure"] < END]
    half = next(index for index, each in enumerate(flights) if each["scheduled_departure"] >= SECOND_DAY)
    list(load.load(node.address, flights[:half]))

    limited = ("--records-per-batch", "150")
    process = run(node, *limited)
    for number, victim in enumerate(VICTIMS):
        if process.ended:
            process = run(node, *limited)
        step, more = chance.choice(("hours", "days")), chance.randint(1, 2)
        process.wait_for_batches(step, process.batches(step) + more)
        if number == 1:
            list(load.load(node.address, flights[half:]))
        if victim == "node":
            node.kill()
            node.start()
            # It goes on, or ends with a sentence if a batch was being written; whichever it is, there is more to do.
            process.wait_for_batches(step, process.batches(step) + 1)
            process.kill()
        elif victim == "driver":
            process.kill()
        else:
            process.interrupt()
            assert process.wait() == 0, process.err
            assert "hours: " in process.out
    assert process.ended

    last = run(node, "--trigger", "available-now")
    assert last.wait() == 0, last.err
    hours = read(node, "hours")
    expected = expected_hours()
    assert len(hours) == len({key for key, _ in hours}), "an hour was written twice"
    assert dict(hours) == expected
    days = dict(read(node, "days"))
    for key, day in expected_days(expected).items():
        assert days[key].pop("worst_hour") in day.pop("worst_hour")
        assert days[key] == day
