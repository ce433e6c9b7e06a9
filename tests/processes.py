"""On how many processes the node of a test runs: on one; on one and on three; or on as many as `--processes` says.

All that start a node and speak to it from outside take the fixture `processes`, and give it to their `NodeProcess`:

    fixture `processes` ──▶ clients, engines, cli, native: their `node` and `fresh_node`
                            fuzz: the node under attack    quickstart: the tour's node

`pytest --processes 3` runs all these tests on three. Without the option those run on three as well that are marked
`ALSO_ON_THREE`, and on three alone those that are marked `ONLY_ON_THREE`, since only several brokers have what they are
about. A test that is about the one process carries `one_process_only`, and says why.
"""

from __future__ import annotations

import pytest

from scripts.node_process import NodeProcess
from tests import lacking

SEVERAL = 3

ALSO_ON_THREE = pytest.mark.also_on_three
ONLY_ON_THREE = pytest.mark.only_on_three


def one_process_only(reason: str) -> pytest.MarkDecorator:
    """`reason` ends the sentence "one process only: …"."""
    return pytest.mark.one_process_only(reason)


@pytest.fixture(scope="session")
def processes(request: pytest.FixtureRequest) -> int:
    """How many processes the nodes of a test have: one, unless `spread` says otherwise."""
    return getattr(request, "param", 1)


def spread(metafunc: pytest.Metafunc) -> None:
    """Run the test on the numbers of processes that are its own; to be called from `pytest_generate_tests`."""
    chosen: int | None = metafunc.config.getoption("--processes")
    marks = {mark.name for mark in metafunc.definition.iter_markers()}
    if "processes" not in metafunc.fixturenames:
        return
    if "only_on_three" in marks:
        numbers = [SEVERAL]
    elif chosen is not None:
        numbers = [chosen]
    elif "also_on_three" in marks and "one_process_only" not in marks:
        numbers = [1, SEVERAL]
    else:
        return
    # Through the fixture itself: what depends on it, such as the session's node, is made anew when the number changes.
    metafunc.parametrize("processes", numbers, scope="session", ids=_name, indirect=True)


def _name(number: int) -> str:
    return "one process" if number == 1 else f"{number} processes"


def skip_on_several(item: pytest.Item) -> None:
    """Skip what is for one process only."""
    mark = item.get_closest_marker("one_process_only")
    callspec = getattr(item, "callspec", None)
    if mark is not None and callspec is not None and callspec.params.get("processes", 1) > 1:
        pytest.skip(lacking.ONE_PROCESS_ONLY + mark.args[0])


def kill_some(node: NodeProcess, number: int) -> None:
    """SIGKILL the node and start it; of several processes one, by turns, which the supervisor starts again."""
    if node.processes == 1:
        node.kill()
        node.start()
    else:
        node.kill_process(number % node.processes)
