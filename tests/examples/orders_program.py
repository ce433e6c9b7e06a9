"""examples/two_phase_commit as a test needs it: imported, and stopped after one of its steps.

    python tests/examples/orders_program.py STEP BOOTSTRAP DATABASE TOPIC…

runs an instance for each topic up to that step, and then kills itself.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

EXAMPLE = Path(__file__).resolve().parents[2] / "examples" / "two_phase_commit"
sys.path.insert(0, str(EXAMPLE))

import orders  # noqa: E402
import prepared_producer  # noqa: E402

STEPS = ("take_over", "settle", "write_record", "write_row_and_note", "commit_row", "commit_record")
"""Methods of `Orders`, in the order in which one instance calls them; `settle` if there is something to settle."""

Orders = orders.Orders
PreparedProducer = prepared_producer.PreparedProducer
Refused = prepared_producer.Refused


class Halted(Exception):
    """The step is done."""


def open_orders(bootstrap: str, database: str, topic: str, **settings: str) -> orders.Orders:
    """An instance, with these settings of PostgreSQL's; the topic has its own transactional id and its own tables."""
    options = " ".join(f"-c {name}={value}" for name, value in {"search_path": topic, **settings}.items())
    return Orders(bootstrap, f"{database} options='{options}'", topic, transactional_id(topic))


def transactional_id(topic: str) -> str:
    return f"orders of {topic}"


def run_up_to(step: str, instance: orders.Orders) -> None:
    """Let it recover and take an order, and stop it right after that step."""
    go_on: Callable[..., Any] = getattr(instance, step)

    def then_halt(*arguments: Any, **words: Any) -> None:
        go_on(*arguments, **words)
        raise Halted

    setattr(instance, step, then_halt)
    try:
        instance.recover()
        instance.take("tea")
    except Halted:
        return
    raise AssertionError(f"it never came to {step}")


if __name__ == "__main__":
    step, bootstrap, database, *topics = sys.argv[1:]
    instances = [open_orders(bootstrap, database, topic) for topic in topics]
    for each in instances:
        run_up_to(step, each)
    os.kill(os.getpid(), signal.SIGKILL)
