"""While the engine of several machines is away: what would have to be written is refused at once, what reads is not."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any

import pytest

from fairlog.broker import Broker
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import ALL
from tests.kafka.asking import Asker
from tests.kafka.example_requests import build_batch, example_fields
from tests.kafka.in_memory import Memory

REFUSED = {
    0: ErrorCode.NOT_ENOUGH_REPLICAS,
    8: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    22: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    24: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    25: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    26: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    28: ErrorCode.COORDINATOR_NOT_AVAILABLE,
}
"""By API key; all clients ask again on these (docs/decisions/0072-refused-while-the-engine-is-away.md)."""

LAST = {0: 12, 8: 9, 24: 3}
"""The last versions that name topics, and one transaction."""
READING = [1, 2, 3, 9, 10]


@dataclass
class CutOff(Memory):
    is_away: bool = True

    @property
    def broker(self) -> Broker:
        return replace(super().broker, appends_wait=lambda: self.is_away)


@pytest.fixture
def cut_off() -> CutOff:
    memory = CutOff()
    memory.topics.create_now("t")
    return memory


def codes(answer: Any) -> set[int]:
    """All error codes in an answer."""
    return set(map(int, re.findall(r"error_code=(-?\d+)", str(answer))))


@pytest.mark.parametrize("key", REFUSED)
async def test_what_would_be_written_is_refused_with_a_code_on_which_clients_ask_again(
    cut_off: CutOff, key: int
) -> None:
    """In every version, and nothing is begun: neither a batch nor the coordinator is asked for anything."""
    (api,) = [api for api in ALL if api.key == key]
    for version in range(api.served.min, LAST.get(key, api.served.max) + 1):
        assert codes(await Asker(cut_off)(key, version, **example_fields(key))) - {ErrorCode.NONE} == {REFUSED[key]}
    assert cut_off.coordinator.calls == []
    assert cut_off.leaders.logs[cut_off.log("t")] == []
    cut_off.is_away = False
    answer = await Asker(cut_off)(key, api.served.min, **example_fields(key))
    assert REFUSED[key] not in codes(answer)


@pytest.mark.parametrize("key", READING)
async def test_what_reads_is_answered_as_ever(cut_off: CutOff, key: int) -> None:
    """From what was copied, and from what the node knows of the cluster."""
    cut_off.leaders.logs[cut_off.log("t")].append(build_batch(records=2))
    cut_off.leaders.release()
    (api,) = [api for api in ALL if api.key == key]
    version = min(api.served.max, 9)
    cut_off.is_away = False
    before = await Asker(cut_off)(key, version, **example_fields(key))
    cut_off.is_away = True
    assert str(await Asker(cut_off)(key, version, **example_fields(key))) == str(before)
