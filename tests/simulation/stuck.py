"""A run that does not come to an end is stopped where it stands, and says what everybody waits for."""

from __future__ import annotations

from typing import Any

import trio

from tests.simulation.world import World

VIRTUAL_S_MAX = 2000.0
"""No run takes so long by its own clock, unless somebody waits for ever."""


class Stuck(BaseException):
    """Time goes on, and nothing else."""


async def stop_when_stuck(world: World) -> None:
    """Time passes also when all others wait; and not for ever: then the event loop is stopped where it stands."""
    await trio.sleep(VIRTUAL_S_MAX)
    world.transcript += _waiting(trio.lowlevel.current_root_task())

    def stuck() -> float:
        raise Stuck

    world.clock._real_clock = stuck


def _waiting(task: trio.lowlevel.Task | None, indent: int = 0) -> list[str]:
    """What each task waits for, as a tree."""
    if task is None:
        return []
    frames: list[str] = []
    coroutine: Any = task.coro
    while getattr(coroutine, "cr_frame", None) is not None:
        frames.append(f"{coroutine.cr_frame.f_code.co_name}:{coroutine.cr_frame.f_lineno}")
        coroutine = coroutine.cr_await
    lines = [" " * indent + " > ".join(frames)]
    for nursery in task.child_nurseries:
        for child in sorted(nursery.child_tasks, key=lambda each: each.name):
            lines += _waiting(child, indent + 2)
    return lines
