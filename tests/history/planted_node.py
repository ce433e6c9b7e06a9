"""A node with a bug in it, by name: `python -m tests.history.planted_node serve …`, the name in the environment.

In each of them every start takes the journals' tails for lost, so that it aborts what is open:

    forgets-open-transactions   nothing else: what a client has prepared cannot be committed any more
    begins-anew                 a client that was told of that may begin anew in the same epoch, and commit the second
                                half of its transaction (`told-client-begins-anew` in tests/simulation/mutations.py)
"""

from __future__ import annotations

import os
from contextlib import ExitStack
from unittest import mock

from fairlog.cli import main as node
from fairlog.last_run import LastRun
from tests.simulation.mutations import MUTATIONS

PROGRAM = ("-m", "tests.history.planted_node")
VARIABLE = "FAIRLOG_HISTORY_PLANTED"
FORGETS, BEGINS_ANEW = "forgets-open-transactions", "begins-anew"


def main() -> None:
    planted = os.environ.pop(VARIABLE)
    assert planted in (FORGETS, BEGINS_ANEW)
    with ExitStack() as stack:
        stack.enter_context(mock.patch.object(LastRun, "tail_kept", new=False))
        if planted == BEGINS_ANEW:
            told = next(each for each in MUTATIONS if each.name == "told-client-begins-anew")
            stack.enter_context(told.plant())
        node()


if __name__ == "__main__":
    main()
