"""What a strain is: how much of what is done to a node, and what has to be seen of it."""

from __future__ import annotations

import contextlib
import resource
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field

from tests.limits.site import Site
from tests.limits.wire import Wire

MIB = 1 << 20

Ended = str
"""How a strain ended, in some words for the table: refused, cut off, made to wait."""


@dataclass(frozen=True, slots=True)
class Strain:
    """`run` does it at a `Site`, and uses `Site.strained` once.

    It raises AssertionError if the strain did not end as it should.
    """

    name: str
    size: str
    """At full size, in words."""
    run: Callable[[Site], Ended]
    run_small: Callable[[Site], Ended]
    """The same in seconds, for the test suite."""
    grows_bytes_max: int
    """By so much the node's memory may grow at full size."""
    small_grows_bytes_max: int
    environment: dict[str, str] = field(default_factory=dict[str, str])
    small_environment: dict[str, str] | None = None
    """If it is another."""
    everywhere: bool = False
    """The node listens on all interfaces."""
    needs: Callable[[], str | None] = lambda: None
    """Why it cannot be done on this machine; None if it can."""


def raise_own_files_limit() -> int:
    """As far as the system lets this process go; how far that is."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


@contextlib.contextmanager
def connections(address: str, number: int, *, receive_bytes: int | None = None) -> Generator[list[Wire]]:
    """So many, closed at the end."""
    raise_own_files_limit()
    opened: list[Wire] = []
    try:
        opened.extend(Wire(address, receive_bytes=receive_bytes) for _ in range(number))
        yield opened
    finally:
        for wire in opened:
            wire.close()


def side_by_side(work: Sequence[Callable[[], None]]) -> None:
    """Do all this in threads. Raises the first error, when all have ended."""
    errors: list[Exception] = []

    def run(each: Callable[[], None]) -> None:
        try:
            each()
        except Exception as error:  # noqa: BLE001 (raised below)
            errors.append(error)

    threads = [threading.Thread(target=run, args=(each,)) for each in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
