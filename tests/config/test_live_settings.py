"""The settings of the start, and what clients have changed on top of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import trio
import trio.testing

from fairlog.cluster.interface import ConfigsChange
from fairlog.config import ConfigError, RequestSettings, Settings
from fairlog.live_settings import ALL_BROKERS, LiveSettings
from fairlog_types import StorageFailure


class Kept:
    """As much of a cluster store as is asked for."""

    node_id = 7

    def __init__(self, **configs: Mapping[str, str]) -> None:
        self.configs = {name.removeprefix("broker_").removeprefix("all"): each for name, each in configs.items()}
        self.failure: StorageFailure | None = None

    def broker_configs(self, resource: str) -> Mapping[str, str]:
        return self.configs.get(resource, {})

    async def alter_broker_configs(self, resource: str, change: ConfigsChange) -> bool:
        await trio.lowlevel.checkpoint()
        own = self.broker_configs(resource)
        configs = change(own)
        if configs == own:
            return False
        if self.failure is not None:
            raise self.failure
        self.configs[resource] = configs
        return True


def live(kept: Any, of_start: Settings | None = None) -> LiveSettings:
    return LiveSettings(of_start or Settings(), kept)


def test_settings_of_a_start_are_under_what_clients_have_set_before() -> None:
    """This broker's own goes before that of all; another broker's does not count."""
    kept = Kept(
        all={"log.retention.ms": "5", "max.connections": "5"},
        broker_7={"max.connections": "7"},
        broker_8={"max.connections": "8", "message.max.bytes": "5000"},
    )
    settings = live(kept)
    assert (settings.current.topics.retention_ms, settings.current.requests.connections_max) == (5, 7)
    assert settings.current.requests.message_bytes_max == Settings().requests.message_bytes_max
    assert settings.of_start == Settings()


def test_start_whose_settings_do_not_fit_what_clients_have_set_is_refused() -> None:
    """Naming the broker config: it was set long ago, by someone else, and stands in no file."""
    smaller = Settings(requests=RequestSettings(request_bytes_max=2_000_000))
    with pytest.raises(ConfigError, match=r"the broker config message\.max\.bytes does not fit.*request_bytes_max"):
        live(Kept(all={"message.max.bytes": "3000000"}), smaller)


async def test_change_is_kept_before_it_holds_and_wakes_who_waits() -> None:
    """What cannot be kept does not hold, and wakes no one."""
    kept = Kept()
    settings, woken = live(kept), list[int]()

    async def wait() -> None:
        await settings.wait_changed()
        woken.append(settings.current.requests.connections_max)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(wait)
        await trio.testing.wait_all_tasks_blocked()
        kept.failure = StorageFailure("no space left on device")
        with pytest.raises(StorageFailure):
            await settings.alter(ALL_BROKERS, lambda _own: {"max.connections": "5"}, validate_only=False)
        await settings.alter(ALL_BROKERS, lambda _own: {"max.connections": "6"}, validate_only=True)
        await trio.testing.wait_all_tasks_blocked()
        assert (woken, settings.current) == ([], Settings())
        kept.failure = None
        await settings.alter(ALL_BROKERS, lambda _own: {"max.connections": "5"}, validate_only=False)
    assert woken == [5]
    assert settings.changed_for(ALL_BROKERS) == {"max.connections": "5"}
