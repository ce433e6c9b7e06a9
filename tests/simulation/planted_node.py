"""A real node with planted bugs: `python -m tests.simulation.planted_node serve …`, their names in the environment.

The names are those of the simulation's bugs (`mutations.py`), so that the crash tests and the history checker look for
what the simulation looks for as well, in a process of its own. The node's code knows nothing of it. Programs that put
something else under a node (`tests/crash/lossy_disk.py`, `tests/crash/recording.py`) end in this `main`, too; a node
of which no bug is asked for is the node that is shipped.
"""

from __future__ import annotations

import os
from contextlib import ExitStack

PROGRAM = ("-m", "tests.simulation.planted_node")
"""To be run in place of `-m fairlog.cli`."""
VARIABLE = "PLANTED_BUGS"


def environment(*names: str) -> dict[str, str]:
    """What a node's environment needs for these bugs."""
    return {VARIABLE: ",".join(names)} if names else {}


def main() -> None:
    names = os.environ.pop(VARIABLE, "")
    from fairlog.cli import main as node

    with ExitStack() as planted:
        if names:
            from tests.simulation.mutations import plant

            for name in names.split(","):
                planted.enter_context(plant(name))
        node()


if __name__ == "__main__":
    main()
