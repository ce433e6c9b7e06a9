"""Chromium without a screen, a node with clients, and the console as a person sees it.

One browser serves all tests; each gets an empty page, a window as wide as a desk's, and the light scheme. Whatever the
browser writes to its console is an error: a blocked script, a violated policy, an exception.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from selenium.common.exceptions import (
    NoSuchElementException,
    SessionNotCreatedException,
    StaleElementReferenceException,
)
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement

from scripts import browser as browsers
from scripts.node_process import NodeProcess
from tests.three_processes import TOKEN as TOKEN
from tests.three_processes import three as three

WAIT_S = 60.0
"""Patience: a browser beside other work."""
STARTS = 3

T = TypeVar("T")


def until(what: Callable[[], T], *, wait_s: float = WAIT_S) -> T:
    """Look again until it is there: not None, not False, not empty."""
    deadline = time.monotonic() + wait_s
    while True:
        try:
            if found := what():
                return found
        except (NoSuchElementException, StaleElementReferenceException):
            pass  # the page has moved under our eyes
        assert time.monotonic() < deadline, "it did not come"
        time.sleep(0.03)


class Console:
    """The page, through a person's eyes and hands."""

    def __init__(self, driver: Chrome, url: str) -> None:
        self.driver = driver
        self.url = url

    def open(self, view: str = "") -> Console:
        self.driver.get("about:blank")
        self.driver.get(self.url + (f"#{view}" if view else ""))
        until(lambda: self.text("#health") not in ("", "connecting"))
        return self

    def look(self, *, width: int = 1100, height: int = 900, dark: bool = False) -> None:
        """Through a window of this size, in this scheme."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
        self.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})

    def find(self, selector: str) -> WebElement:
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def all(self, selector: str) -> list[WebElement]:
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def text(self, selector: str) -> str:
        return self.find(selector).text

    def shown(self, selector: str) -> bool:
        return self.find(selector).is_displayed()

    def card(self, transactional_id: str, listed: str = "#view-transactions") -> WebElement | None:
        """The first card of this id in a list."""
        for card in self.all(f"{listed} .card"):
            if card.find_element(By.CSS_SELECTOR, ".id").text == transactional_id:
                return card
        return None

    def press(self, *keys: str) -> WebElement:
        """Press keys where the focus is; answers where it is then."""
        self.driver.switch_to.active_element.send_keys(*keys)
        return self.driver.switch_to.active_element

    def tab_to(self, name: str) -> WebElement:
        """Press Tab until the element with this name (as a screen reader has it) has the focus."""
        for _ in range(60):
            focused = self.press(Keys.TAB)
            if focused.accessible_name == name:
                return focused
        raise AssertionError(f"Tab never comes to {name!r}")

    def run(self, script: str, *arguments: Any) -> Any:
        return self.driver.execute_script(script, *arguments)

    def complaints(self) -> list[str]:
        """What the browser has written to its console since the last look, but for what the network did."""
        entries = self.driver.get_log("browser")
        return [entry["message"] for entry in entries if entry["source"] != "network"]


def started(options: ChromeOptions, driver: str) -> Chrome:
    """The browser. Its driver gives it a minute to start, which one that comes from a cold disk may need for its files
    alone: the second time they are in memory.
    """
    for _ in range(STARTS - 1):
        with suppress(SessionNotCreatedException):
            return Chrome(options, Service(driver))
    return Chrome(options, Service(driver))


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Chrome]:
    found = browsers.find()
    if found is None:
        pytest.skip(browsers.MISSING)
    options = ChromeOptions()
    options.binary_location = found.browser
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    for flag in browsers.FLAGS:
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('browser')}")
    driver = started(options, found.driver)
    driver.set_page_load_timeout(WAIT_S)
    yield driver
    driver.quit()


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., NodeProcess]]:
    """Starts nodes with an admin listener: `new_node(FAIRLOG_…="…")`."""
    nodes: list[NodeProcess] = []

    def make(**environment: str) -> NodeProcess:
        defaults = {
            "FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0",
            "FAIRLOG_ADMIN_TOKEN": TOKEN,
            "FAIRLOG_LOG_FORMAT": "console",
            "FAIRLOG_JOURNAL_GROUP_JOURNALS": "2",
        }
        node = NodeProcess(tmp_path / f"node{len(nodes)}", defaults | environment)
        nodes.append(node)
        node.start()
        return node

    yield make
    for node in nodes:
        node.kill()


@pytest.fixture
def node(new_node: Callable[..., NodeProcess]) -> NodeProcess:
    return new_node()


@pytest.fixture
def new_console(driver: Chrome) -> Iterator[Callable[[NodeProcess | str], Console]]:
    """The console of a node, or the one at a URL, not opened yet."""
    consoles: list[Console] = []

    def make(node: NodeProcess | str) -> Console:
        url = node if isinstance(node, str) else node.console
        assert url is not None
        console = Console(driver, url)
        console.look()
        console.complaints()
        consoles.append(console)
        return console

    yield make
    for console in consoles:
        assert console.complaints() == []
        console.driver.get("about:blank")


@pytest.fixture
def console(node: NodeProcess, new_console: Callable[[NodeProcess], Console]) -> Console:
    return new_console(node)


class Clients:
    """Stock clients of a node."""

    def __init__(self, address: str) -> None:
        self.address = address

    def make_topic(self, name: str, partitions: int) -> None:
        admin = AdminClient({"bootstrap.servers": self.address})
        for future in admin.create_topics([NewTopic(name, partitions, 1)]).values():
            future.result(WAIT_S)

    def producer(self, transactional_id: str, *, timeout_ms: int = 60_000) -> Producer:
        settings = {
            "bootstrap.servers": self.address,
            "transactional.id": transactional_id,
            "transaction.timeout.ms": timeout_ms,
            "linger.ms": 0,
            "log_level": 0,
        }
        producer = Producer(settings)
        producer.init_transactions(WAIT_S)
        return producer

    def commit(self, producer: Producer, topic: str, values: list[str], partitions: int = 1) -> None:
        producer.begin_transaction()
        self.write(producer, topic, values, partitions)
        producer.commit_transaction(WAIT_S)

    def hang(
        self, transactional_id: str, topic: str, values: list[str], partitions: int = 1, *, timeout_ms: int = 32_000
    ) -> Producer:
        """Write, and then say nothing any more. It looks hung after a quarter of its time-out, and is to be aborted by
        hand before the rest of it has passed."""
        producer = self.producer(transactional_id, timeout_ms=timeout_ms)
        producer.begin_transaction()
        self.write(producer, topic, values, partitions)
        return producer

    @contextmanager
    def member(self, group: str, topic: str, *, records: int) -> Iterator[None]:
        """A member of a group that reads so many records, commits them, and leaves at the end."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": group,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "log_level": 0,
            }
        )
        try:
            consumer.subscribe([topic])
            for message in consumer.consume(records, WAIT_S):
                assert message.error() is None, message.error()
                consumer.commit(message, asynchronous=False)
            yield
        finally:
            consumer.close()

    def write(self, producer: Producer, topic: str, values: list[str], partitions: int) -> None:
        for index, value in enumerate(values):
            producer.produce(topic, value, partition=index % partitions)
        assert producer.flush(WAIT_S) == 0


@pytest.fixture
def clients(node: NodeProcess) -> Clients:
    return Clients(node.address)


class Tail:
    """A plain consumer that reads along, from the beginning: what anybody would have seen."""

    def __init__(self, address: str, topic: str, partitions: int = 1) -> None:
        self.seen: list[str] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": address,
                "group.id": "tail",
                "enable.auto.commit": False,
                "isolation.level": "read_uncommitted",
            }
        )
        self._consumer.assign([TopicPartition(topic, partition, 0) for partition in range(partitions)])
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._ending.is_set():
            message = self._consumer.poll(0.1)
            if message is not None and message.error() is None:
                self.seen.append((message.value() or b"").decode())

    def close(self) -> None:
        self._ending.set()
        self._thread.join()
        self._consumer.close()
