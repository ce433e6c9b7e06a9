"""How bugs are planted: what one is, and the ways in which the node's own code is changed for it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from unittest import mock

import trio

import copier.staging

Plant = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class Mutation:
    """One planted bug."""

    name: str
    what: str
    """What the code does then."""
    plant: Plant


def patched(owner: object, name: str, new: object) -> Plant:
    return lambda: mock.patch.object(owner, name, new)


async def does_not_wait(*_: object) -> None:
    await trio.lowlevel.checkpoint()


@contextmanager
def staged(*plants: Plant) -> Iterator[None]:
    """Every transaction is copied in stages of a batch; and what is planted."""
    with ExitStack() as stack:
        for name in ("STAGED_FROM_BYTES", "STAGE_BYTES"):
            stack.enter_context(mock.patch.object(copier.staging, name, 1))
        for plant in plants:
            stack.enter_context(plant())
        yield
