"""Half of the combinations of a test's parameters, for tests that start and kill nodes and take ten seconds each.

`EVERY_PAIR` keeps those combinations in which the numbers of the values, from 0 on, add up to an even number. With
three parameters or more, each value of one still meets each value of every other one, which is what finds most faults;
with two it would not, and is refused. `pytest --processes N` runs all combinations.
"""

from __future__ import annotations

import pytest

EVERY_PAIR = pytest.mark.every_pair
PARAMETERS_MIN = 3


def drop_other_halves(config: pytest.Config, items: list[pytest.Item]) -> None:
    """To be called from `pytest_collection_modifyitems`."""
    if config.getoption("--processes") is not None:
        return
    values: dict[tuple[str, str], list[object]] = {}
    """Of each test's parameters, in the order in which they come."""
    kept: list[pytest.Item] = []
    dropped: list[pytest.Item] = []
    for item in items:
        if item.get_closest_marker(EVERY_PAIR.name) is None:
            kept.append(item)
            continue
        params: dict[str, object] = item.callspec.params  # type: ignore[attr-defined]
        assert len(params) >= PARAMETERS_MIN, f"{item.nodeid} has too few parameters for EVERY_PAIR: {list(params)}"
        test = item.nodeid.partition("[")[0]
        numbers = [_number(values.setdefault((test, name), []), value) for name, value in params.items()]
        (dropped if sum(numbers) % 2 else kept).append(item)
    if dropped:
        config.hook.pytest_deselected(items=dropped)
        items[:] = kept


def _number(known: list[object], value: object) -> int:
    if value not in known:
        known.append(value)
    return known.index(value)
