"""Clients in processes of their own: calls are answered, failures come back, and nobody waits for ever."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest
from benchmarks.client import ClientFailed, ClientProcess


class Counter:
    """What runs in the other process."""

    def __init__(self, first: int) -> None:
        self._value = first

    def add(self, number: int) -> int:
        self._value += number
        return self._value

    def pid_and_time(self) -> tuple[int, int]:
        return os.getpid(), time.monotonic_ns()

    def fail(self) -> None:
        raise LookupError("nothing here")

    def hang(self) -> None:
        time.sleep(60)


@pytest.fixture
def counter() -> Iterator[ClientProcess]:
    client = ClientProcess("tests.benchmarks.test_client:Counter", first=3)
    yield client
    client.close()


def test_client_keeps_its_object_between_calls(counter: ClientProcess) -> None:
    """Arguments and answers travel as JSON, and the object stays."""
    assert [counter.call("add", number=4), counter.call("add", number=1)] == [7, 8]


def test_client_is_another_process_on_the_same_clock(counter: ClientProcess) -> None:
    """Its times may be compared with those of this process."""
    before = time.monotonic_ns()
    pid, then = counter.call("pid_and_time")
    assert pid == counter.pid != os.getpid()
    assert before < then < time.monotonic_ns()


def test_client_failure_comes_back_and_leaves_it_usable(counter: ClientProcess) -> None:
    """What is raised there is raised here, with its traceback; the next call is answered as usual."""
    with pytest.raises(ClientFailed, match="LookupError: nothing here"):
        counter.call("fail")
    assert counter.call("add", number=1) == 4


def test_client_that_cannot_be_made_is_a_failure() -> None:
    """A class that cannot be made says why, and leaves no process behind."""
    with pytest.raises(ClientFailed, match="second"):
        ClientProcess("tests.benchmarks.test_client:Counter", second=3)


def test_client_that_hangs_is_killed(counter: ClientProcess) -> None:
    """An answer that does not come ends the wait, and the process."""
    counter.ask("hang")
    with pytest.raises(ClientFailed, match="killed after 0 s"):
        counter.answer(timeout_s=0.1)


def test_client_that_was_killed_is_gone(counter: ClientProcess) -> None:
    """A client that vanishes is waited for; another call is refused."""
    counter.kill()
    with pytest.raises(ProcessLookupError):
        os.kill(counter.pid, 0)
