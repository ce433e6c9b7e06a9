"""On how many processes a test runs: on one; on one and on three; or on as many as `--processes` says.

`pytest --processes 3 tests/clients` runs all of them on three. Without the option those that say most of a cluster run
on three as well: the modules that carry `ALSO_ON_THREE`. What only several brokers have is tested in modules that carry
`ONLY_ON_THREE`. A test that asks for what several processes do not have yet, or that is about the one process, carries
`one_process_only`, and says why.
"""

from __future__ import annotations

import pytest

from tests import lacking

SEVERAL = 3

ALSO_ON_THREE = pytest.mark.also_on_three
ONLY_ON_THREE = pytest.mark.only_on_three


def one_process_only(reason: str) -> pytest.MarkDecorator:
    """`reason` ends the sentence "one process only: …"."""
    return pytest.mark.one_process_only(reason)


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
