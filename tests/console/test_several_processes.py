"""The consoles of a node of three processes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.webdriver.common.by import By

from tests.console.conftest import WAIT_S, Console, until
from tests.three_processes import ThreeProcesses

pytestmark = pytest.mark.slow


def brokers(console: Console) -> list[list[str]]:
    """The table, cell by cell."""
    rows = console.all("#brokers-rows .line")
    return [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, ":scope > span")] for row in rows]


def test_each_console_says_which_shard_it_is_and_leads_to_the_others(
    three: ThreeProcesses, new_console: Callable[[str], Console]
) -> None:
    """The first view lists all brokers; one that is down is seen in any console."""
    console = new_console(three.consoles[0]).open()
    assert console.text("#node-shard") == "0 of 3"
    rows = until(lambda: brokers(console))
    assert [row[:3] for row in rows] == [[str(1 + shard), str(shard), three.addresses[shard]] for shard in range(3)]
    until(lambda: [row[4] for row in brokers(console)] == ["serving"] * 3)
    assert [row[5] for row in rows] == ["this one", "open", "open"]

    console.all("#brokers-rows a")[0].click()
    until(lambda: console.text("#node-shard") == "1 of 3")
    assert console.text("#node-id") == "2"
    with three.frozen(2):
        until(lambda: [row[4] for row in brokers(console)] == ["serving", "serving", "down"])
        assert console.text("#health") == "serving"
    until(lambda: [row[4] for row in brokers(console)] == ["serving"] * 3)


def test_topic_shows_who_leads_its_other_partitions(
    three: ThreeProcesses, new_console: Callable[[str], Console]
) -> None:
    """Its figures are those of the partitions that are led here."""
    admin = AdminClient({"bootstrap.servers": three.addresses[0]})
    admin.create_topics([NewTopic("shared", 3, 1)])["shared"].result(WAIT_S)
    console = new_console(three.consoles[1]).open("topics")
    until(lambda: "1 of 3" in console.text("#topics-rows"))
    console.find("#topics-rows .fold").click()
    cells = until(lambda: [cell.text for cell in console.all("#topics-rows td:nth-child(2)")])
    assert sorted(cells) == ["0", "led by broker 1", "led by broker 3"]


def test_console_of_one_process_has_no_shards(console: Console) -> None:
    """Nothing of it is there to be wondered at."""
    console.open()
    assert not console.shown("#brokers")
    assert not console.shown("#node-of-several")
