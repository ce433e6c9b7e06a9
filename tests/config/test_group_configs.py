"""What a consumer group goes by: its own configs, within the bounds of the node's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlog import live_group_configs
from fairlog.cluster.interface import ConfigsChange
from fairlog.config import ConfigError, GroupSettings, Settings
from fairlog.config_sources import with_texts
from fairlog.group_configs import GROUP_CONFIGS
from fairlog.live_group_configs import LiveGroupConfigs
from fairlog.topic_config_changes import BadChange

SESSION, INTERVAL = "consumer.session.timeout.ms", "consumer.heartbeat.interval.ms"


class Kept:
    """As much of a cluster store as is asked for."""

    def __init__(self, **configs: dict[str, str]) -> None:
        self.configs = configs

    def group_configs(self, group: str) -> dict[str, str]:
        return self.configs.get(group, {})

    def configured_groups(self) -> list[str]:
        return list(self.configs)

    async def alter_group_configs(self, group: str, change: ConfigsChange) -> bool:
        before, self.configs[group] = self.group_configs(group), dict(change(self.group_configs(group)))
        return self.configs[group] != before


def live(settings: GroupSettings, **configs: dict[str, str]) -> LiveGroupConfigs:
    kept: Any = Kept(**configs)
    return LiveGroupConfigs(settings, kept)


def test_group_goes_by_its_own_configs_and_then_by_the_nodes() -> None:
    """One by one; all else is the node's for every group."""
    configs = live(GroupSettings(members_max=3), g={SESSION: "50000"}, h={INTERVAL: "6000"})
    found = [configs.consumer_settings(each) for each in ("g", "h", "i")]
    assert [(each.session_timeout_ms, each.heartbeat_interval_ms) for each in found] == [
        (50_000, 5_000),
        (45_000, 6_000),
        (45_000, 5_000),
    ]
    assert {each.members_max for each in found} == {3}


def test_configs_that_the_nodes_bounds_have_left_are_taken_to_the_nearest() -> None:
    """The bounds were others when they were set; the group goes on, as in Kafka, and what was set is kept."""
    settings = GroupSettings(
        consumer_min_session_timeout_ms=45_000,
        consumer_max_session_timeout_ms=48_000,
        consumer_min_heartbeat_interval_ms=4_000,
        consumer_max_heartbeat_interval_ms=6_000,
    )
    configs = live(settings, g={SESSION: "50000", INTERVAL: "3000"})
    found = configs.consumer_settings("g")
    assert (found.session_timeout_ms, found.heartbeat_interval_ms) == (48_000, 4_000)
    assert configs.of("g") == {SESSION: "50000", INTERVAL: "3000"}


async def test_more_groups_than_the_store_has_room_for_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that are there can still be changed."""
    monkeypatch.setattr(live_group_configs, "GROUPS_MAX", 1)
    configs = live(GroupSettings(), g={SESSION: "50000"})
    with pytest.raises(BadChange, match="1 groups have configs of their own already"):
        await configs.alter("h", lambda _own: {SESSION: "50000"}, validate_only=False)
    await configs.alter("g", lambda _own: {SESSION: "51000"}, validate_only=False)
    assert configs.of("g") == {SESSION: "51000"}


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        ({"consumer_session_timeout_ms": "44999"}, "is not from groups.consumer_min_session_timeout_ms"),
        ({"consumer_session_timeout_ms": "60001"}, "to groups.consumer_max_session_timeout_ms"),
        ({"consumer_heartbeat_interval_ms": "4999"}, "is not from groups.consumer_min_heartbeat_interval_ms"),
        ({"consumer_max_heartbeat_interval_ms": "4999"}, "to groups.consumer_max_heartbeat_interval_ms"),
        (
            {"consumer_max_heartbeat_interval_ms": "45000", "consumer_heartbeat_interval_ms": "45000"},
            "is not above groups.consumer_heartbeat_interval_ms",
        ),
    ],
)
def test_nodes_own_values_are_within_its_bounds(texts: dict[str, str], words: str) -> None:
    """As in Kafka; the refusal names the settings."""
    with pytest.raises(ConfigError, match=words):
        with_texts(Settings(), {f"groups.{name}": text for name, text in texts.items()}, "a test")


def test_compatibility_page_has_the_configs_of_groups() -> None:
    """With the settings that give the default and the bounds."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    table = page.partition("| config | default | from | to |\n|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == [
        f"| `{row.name}` | `{row.setting}` | `{row.least}` | `{row.most}` |" for row in GROUP_CONFIGS.values()
    ]


async def test_value_that_new_bounds_have_left_does_not_hinder_a_change_of_another() -> None:
    """The node was started with narrower bounds: what the group has is judged when it is set, and not again."""
    narrow = GroupSettings(consumer_max_session_timeout_ms=50_000, consumer_max_heartbeat_interval_ms=10_000)
    groups = live(narrow, g={INTERVAL: "15000", SESSION: "60000"})
    await groups.alter("g", lambda own: {INTERVAL: own[INTERVAL], SESSION: "46000"}, validate_only=False)
    assert (groups.consumer_settings("g").session_timeout_ms, groups.consumer_settings("g").heartbeat_interval_ms) == (
        46_000,
        10_000,
    )
    with pytest.raises(BadChange, match="15001"):
        await groups.alter("g", lambda own: {**own, INTERVAL: "15001"}, validate_only=False)


def test_interval_is_below_the_session_whatever_the_node_was_started_with() -> None:
    """Else each member would be removed between two of its heartbeats."""
    short = GroupSettings(consumer_min_session_timeout_ms=10_000, consumer_session_timeout_ms=12_000)
    assert live(short, g={INTERVAL: "15000"}).consumer_settings("g").heartbeat_interval_ms == 11_999
