"""The table of topic configs: which values pass, what holds for a topic, and what a change makes of it."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog import topic_configs
from fairlog.broker_configs import BROKER_CONFIGS
from fairlog.cluster.interface import Topic
from fairlog.config import KEYS, Settings, TopicSettings
from fairlog.topic_config_changes import BadChange, Change, Operation, changed, replaced
from fairlog.topic_configs import TOPIC_CONFIGS, CleanupPolicy, ConfigType, why_refused

SETTINGS = Settings()
LONG_MAX = 2**63 - 1

READERS = (
    topic_configs.cleanup_policies,
    topic_configs.compaction_lag_max_ms,
    topic_configs.compaction_lag_min_ms,
    topic_configs.delete_retention_ms,
    topic_configs.dirty_ratio_min,
    topic_configs.message_bytes_max,
    topic_configs.retention_bytes,
    topic_configs.retention_ms,
)

wild = st.text(max_size=12) | st.sampled_from(
    [
        "",
        " ",
        "-",
        "--1",
        "+1",
        "1_0",
        "0x10",
        "1e3",
        "٣",
        "nan",
        "inf",
        "-inf",
        "1.",
        ".5",
        "true",
        "delete,",
        "compact",
        "9" * 5000,
    ]
)


def topic(**configs: str) -> Topic:
    """A topic with these configs of its own; `_` stands for the dot."""
    return topic_with({name.replace("_", "."): value for name, value in configs.items()})


def topic_with(configs: dict[str, str]) -> Topic:
    return Topic("t", UUID(int=1), 1, configs, 0)


# --- values ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("row", TOPIC_CONFIGS.values(), ids=lambda row: row.name)
def test_config_row_is_complete_and_its_default_is_a_value_of_it(row: topic_configs.TopicConfig) -> None:
    """Whatever DescribeConfigs shows can be set again as it is shown; and there is something to read about it."""
    assert row.values.allows(topic_configs.default_value(row, SETTINGS))
    assert row.doc.endswith(".")
    assert (row.setting is not None) == (row.default == "")
    assert row.setting is None or row.setting in KEYS
    assert row.broker_name is None or row.broker_name in BROKER_CONFIGS


def bounds_of(name: str) -> tuple[int, int]:
    described = TOPIC_CONFIGS[name].values.described
    least = int(described.removeprefix("a whole number of at least "))
    return least, 2**31 - 1 if TOPIC_CONFIGS[name].values.type is ConfigType.INT else LONG_MAX


NUMBERS = [row.name for row in TOPIC_CONFIGS.values() if row.values.type in (ConfigType.INT, ConfigType.LONG)]


@given(name=st.sampled_from(NUMBERS), value=st.integers(-(2**65), 2**65) | st.integers(-3, 20), near=st.integers(-2, 2))
def test_number_is_allowed_within_its_bounds_only(name: str, value: int, near: int) -> None:
    """The bounds that the message names are those that hold, to the number."""
    least, most = bounds_of(name)
    for number in (value, least + near, most + near):
        assert TOPIC_CONFIGS[name].values.allows(str(number)) == (least <= number <= most)


@given(value=st.floats(-0.5, 1.5) | st.sampled_from([0.0, 1.0]))
def test_ratio_is_allowed_from_0_to_1(value: float) -> None:
    """Also as small as 1e-05, which is how Python writes it."""
    allowed = TOPIC_CONFIGS["min.cleanable.dirty.ratio"].values.allows(f"{abs(value):.17g}")
    assert allowed == (abs(value) <= 1.0)
    assert not TOPIC_CONFIGS["min.cleanable.dirty.ratio"].values.allows("-0.1")


@given(items=st.lists(st.sampled_from(["delete", "compact", " delete", "compact ", "shred", ""]), max_size=4))
def test_cleanup_policy_is_a_list_of_known_words(items: list[str]) -> None:
    """In any order and with spaces around, or an empty list; nothing between two commas is no word."""
    value = ",".join(items)
    allowed = not value or {item.strip() for item in items} <= {"delete", "compact"}
    assert TOPIC_CONFIGS["cleanup.policy"].values.allows(value) == allowed
    if allowed:
        assert {each.value for each in topic_configs.cleanup_policies(topic(cleanup_policy=value), SETTINGS)} == {
            item.strip() for item in items if value
        }


@pytest.mark.parametrize("filler", [" ", "delete,"])
def test_value_is_short_whatever_it_is_made_of(filler: str) -> None:
    """All topics' configs share the cluster store's room."""
    assert why_refused({"cleanup.policy": filler * 10 + "delete"}) is None
    assert why_refused({"cleanup.policy": filler * 1000 + "delete"}) is not None


@given(name=st.sampled_from(list(TOPIC_CONFIGS)), value=wild | st.integers().map(str) | st.floats().map(str))
def test_value_that_is_allowed_can_be_read(name: str, value: str) -> None:
    """No value that passes the check makes a reader fail later, whatever is asked for; and checks never raise."""
    if why_refused({name: value}) is None:
        for read in READERS:
            read(topic_with({name: value}), SETTINGS)


def test_refusal_names_the_config_the_value_and_what_would_do() -> None:
    """One sentence tells what to write instead."""
    assert why_refused({"retention.ms": "1", "cleanup.polcy": "delete"}) == "unknown topic config cleanup.polcy"
    assert why_refused({"retention.ms": "one day"}) == (
        "retention.ms=one day is not a value of this config: a whole number of at least -1 is needed"
    )
    assert why_refused({"compression.type": "lzma"}) == (
        "compression.type=lzma is not a value of this config: one of producer, uncompressed, gzip, snappy, lz4, zstd"
        " is needed"
    )
    assert why_refused({"fairlog.transactions": "marker"}) == (
        "fairlog.transactions=marker is not a value of this config: one of journal, markers is needed"
    )


def test_compaction_lags_have_to_fit_each_other() -> None:
    """A record that must be compacted before it may be is a slip."""
    assert why_refused({"min.compaction.lag.ms": "5", "max.compaction.lag.ms": "5"}) is None
    assert why_refused({"min.compaction.lag.ms": "6", "max.compaction.lag.ms": "5"}) == (
        "min.compaction.lag.ms=6 is above max.compaction.lag.ms=5"
    )


# --- what holds for a topic ------------------------------------------------------------------------


def test_topic_without_configs_has_the_nodes_settings_and_kafkas_defaults() -> None:
    """Settings of the node stand where it has them."""
    plain, settings = topic(), Settings()
    assert topic_configs.cleanup_policies(plain, settings) == {CleanupPolicy.DELETE}
    assert topic_configs.retention_ms(plain, settings) == 7 * 24 * 3600 * 1000
    assert topic_configs.retention_bytes(plain, settings) is None
    assert topic_configs.message_bytes_max(plain, settings) == 1_048_588
    assert topic_configs.delete_retention_ms(plain, settings) == 24 * 3600 * 1000
    assert topic_configs.compaction_lag_min_ms(plain, settings) == 0
    assert topic_configs.compaction_lag_max_ms(plain, settings) == LONG_MAX
    assert topic_configs.dirty_ratio_min(plain, settings) == 0.5
    settings = dataclasses.replace(
        settings, topics=dataclasses.replace(settings.topics, retention_ms=-1, retention_bytes=5)
    )
    assert topic_configs.retention_ms(plain, settings) is None
    assert topic_configs.retention_bytes(plain, settings) == 5


def test_topics_own_config_goes_before_the_nodes() -> None:
    """-1 lifts a limit that the node has."""
    own = topic(
        retention_ms="-1",
        retention_bytes="9",
        cleanup_policy="compact, delete",
        max_message_bytes="7",
        min_cleanable_dirty_ratio="0.25",
    )
    assert topic_configs.retention_ms(own, SETTINGS) is None
    assert topic_configs.retention_bytes(own, SETTINGS) == 9
    assert topic_configs.cleanup_policies(own, SETTINGS) == set(CleanupPolicy)
    assert topic_configs.message_bytes_max(own, SETTINGS) == 7
    assert topic_configs.dirty_ratio_min(own, SETTINGS) == 0.25


# --- changes ---------------------------------------------------------------------------------------


def change(operation: Operation, name: str, value: str | None = None) -> Change:
    return Change(operation, name, value)


SET, DELETE, APPEND, SUBTRACT = Operation


def test_replaced_configs_are_all_that_a_topic_has() -> None:
    """What is not named goes back to the default."""
    own = {"segment.ms": "7"}
    assert replaced(own, [("retention.ms", "5"), ("cleanup.policy", "compact")]) == {
        "retention.ms": "5",
        "cleanup.policy": "compact",
    }
    assert replaced(own, []) == {}


def test_changed_configs_leave_the_others_alone() -> None:
    """Set and delete one, and the rest stays; what is changed is a copy."""
    own = {"retention.ms": "5", "segment.ms": "7"}
    new = changed(own, [change(SET, "max.message.bytes", "9"), change(DELETE, "retention.ms", "ignored")], SETTINGS)
    assert new == {"segment.ms": "7", "max.message.bytes": "9"}
    assert own == {"retention.ms": "5", "segment.ms": "7"}
    assert changed(own, [change(DELETE, "flush.ms")], SETTINGS) == own


def test_list_is_changed_item_by_item_from_the_default_on() -> None:
    """Appending adds what is missing, subtracting takes what is there."""
    appended = changed({}, [change(APPEND, "cleanup.policy", "compact,delete")], SETTINGS)
    assert appended == {"cleanup.policy": "delete,compact"}
    assert changed(appended, [change(SUBTRACT, "cleanup.policy", "delete")], SETTINGS) == {"cleanup.policy": "compact"}
    assert changed(appended, [change(APPEND, "cleanup.policy", " compact")], SETTINGS) == appended


def test_list_may_become_empty_and_be_filled_again() -> None:
    """A topic without a cleanup policy keeps all its records, as in Kafka."""
    empty = changed({}, [change(SUBTRACT, "cleanup.policy", "delete")], SETTINGS)
    assert empty == {"cleanup.policy": ""}
    assert topic_configs.cleanup_policies(topic_with(empty), SETTINGS) == frozenset()
    assert not topic_configs.is_compacted(topic_with(empty))
    assert changed(empty, [change(APPEND, "cleanup.policy", "compact")], SETTINGS) == {"cleanup.policy": "compact"}
    assert replaced({}, [("cleanup.policy", "")]) == {"cleanup.policy": ""}


def test_config_that_does_not_exist_can_be_deleted() -> None:
    """As in Kafka: whoever copies configs from a newer cluster deletes those that it has only there."""
    own = {"retention.ms": "5"}
    unknown = change(DELETE, "errors.deadletterqueue.group.enable")
    assert changed(own, [unknown, change(SET, "flush.ms", "1")], SETTINGS) == {"retention.ms": "5", "flush.ms": "1"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (change(SET, "retention.hours", "1"), "unknown topic config retention.hours"),
        (change(SET, "retention.ms", "soon"), "retention.ms=soon is not a value"),
        (change(SET, "retention.ms"), "retention.ms is given no value"),
        (change(APPEND, "retention.ms", "1"), "retention.ms is not a list"),
        (change(SUBTRACT, "segment.ms", "1"), "segment.ms is not a list"),
        (change(APPEND, "cleanup.policy"), "cleanup.policy is given no value"),
        (change(APPEND, "cleanup.policy", "shred"), "cleanup.policy=delete,shred is not a value"),
        (change(APPEND, "cleanup.policy", "delete,,"), "cleanup.policy=delete, is not a value"),
        (change(APPEND, "retention.hours", "1"), "unknown topic config retention.hours"),
        (change(SET, "flush.ms", "2"), "flush.ms is named more than once"),
        (change(SET, "min.compaction.lag.ms", "9"), "min.compaction.lag.ms=9 is above max.compaction.lag.ms=5"),
    ],
)
def test_one_bad_change_refuses_all(bad: Change, words: str) -> None:
    """Good changes beside it are not made either; the refusal says what is wrong."""
    own = {"max.compaction.lag.ms": "5"}
    with pytest.raises(BadChange, match=words):
        changed(own, [change(SET, "flush.ms", "1"), bad], SETTINGS)
    assert own == {"max.compaction.lag.ms": "5"}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ([("retention.ms", None)], "retention.ms is given no value"),
        ([("retention.ms", "1"), ("retention.ms", "1")], "retention.ms is named more than once"),
        ([("retention.ms", "1"), ("retention", "1")], "unknown topic config retention"),
    ],
)
def test_bad_replacement_is_refused(bad: list[tuple[str, str | None]], words: str) -> None:
    """As a whole."""
    with pytest.raises(BadChange, match=words):
        replaced({}, bad)


MARKERS = {"fairlog.transactions": "markers"}


def test_what_is_fixed_with_a_topic_stays_when_all_configs_are_said_anew() -> None:
    """Tools that write back what they have read, and tools that name their own configs only, change no topic's mode."""
    assert replaced(MARKERS, [("retention.ms", "5")]) == {**MARKERS, "retention.ms": "5"}
    assert replaced(MARKERS, [("fairlog.transactions", "markers")]) == MARKERS
    assert replaced({}, [("fairlog.transactions", "journal")]) == {"fairlog.transactions": "journal"}
    assert changed(MARKERS, [change(SET, "fairlog.transactions", "markers")], SETTINGS) == MARKERS


@pytest.mark.parametrize(
    ("own", "bad"),
    [
        (MARKERS, change(SET, "fairlog.transactions", "journal")),
        (MARKERS, change(DELETE, "fairlog.transactions")),
        ({}, change(SET, "fairlog.transactions", "markers")),
        ({}, change(SET, "fairlog.placement", "together")),
        ({"fairlog.placement": "together"}, change(DELETE, "fairlog.placement")),
    ],
)
def test_what_is_fixed_with_a_topic_cannot_be_changed(own: dict[str, str], bad: Change) -> None:
    """Not to another value, and not back to the default where that is another; the refusal says what to do instead."""
    with pytest.raises(BadChange, match=r"fixed when a topic is made.* make another topic"):
        changed(own, [bad], SETTINGS)
    if bad.operation is SET:
        with pytest.raises(BadChange, match="fixed when a topic is made"):
            replaced(own, [(bad.name, bad.value)])


def test_topic_that_says_nothing_of_transactions_has_journals() -> None:
    """Also on a node whose new topics have markers: it was made before there was a choice."""
    assert topic_configs.transactions(topic()) == "journal"
    assert topic_configs.transactions(topic_with(MARKERS)) == "markers"


def test_offsets_of_delivery_reports_are_the_topics_or_the_nodes_and_can_be_changed() -> None:
    """It is not fixed with the topic: what it says acts from the next batch on."""
    of_node = Settings(topics=TopicSettings(transactional_offsets="lowest"))
    name = "fairlog.transactional.offsets"
    own = changed({}, [change(SET, name, "lowest")], SETTINGS)
    assert own == {name: "lowest"}
    assert changed(own, [change(SET, name, "none")], SETTINGS) == {name: "none"}
    answers = [
        topic_configs.answers_lowest_offsets(topic_with(configs), settings)
        for settings in (SETTINGS, of_node)
        for configs in ({}, {name: "none"}, own)
    ]
    assert answers == [False, False, True, True, False, True]
    assert why_refused({name: "highest"}) == (
        "fairlog.transactional.offsets=highest is not a value of this config: one of none, lowest is needed"
    )


def test_topic_is_made_with_the_nodes_mode_unless_it_names_one() -> None:
    """What the node's setting is later does not matter to it."""
    settings = Settings(topics=TopicSettings(transactions="markers"))
    assert topic_configs.with_fixed({"retention.ms": "5"}, settings) == {**MARKERS, "retention.ms": "5"}
    assert topic_configs.with_fixed({"fairlog.transactions": "journal"}, settings) == {
        "fairlog.transactions": "journal"
    }
    assert topic_configs.with_fixed({"retention.ms": "5"}, SETTINGS) == {"retention.ms": "5"}


names = st.sampled_from([*list(TOPIC_CONFIGS), "no.such.config"])
values = st.sampled_from(["delete", "compact", "0", "1", "-1", "0.5", "true", "x", None])
some_changes = st.lists(st.builds(Change, st.sampled_from(list(Operation)), names, values), max_size=4)


@given(steps=st.lists(some_changes, max_size=5))
def test_changes_never_lead_to_configs_that_are_refused(steps: list[list[Change]]) -> None:
    """Whatever is asked for in whatever order, a topic's configs stay such that it could be created with them."""
    own: dict[str, str] = {}
    for step in steps:
        try:
            own = changed(own, step, SETTINGS)
        except BadChange:
            continue
        assert why_refused(own) is None
        assert replaced(own, list(own.items())) == own


def test_compatibility_page_has_the_table_of_configs() -> None:
    """Which config acts and which is only kept is told to users as the code knows it."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "compatibility.md").read_text(encoding="utf-8")
    rows = [
        f"| `{row.name}` | {row.values.type.value} "
        f"| {f'`{row.default}`' if row.setting is None else f'the setting `{row.setting}`'} "
        f"| {'acts' if row.acts else 'kept'} | {row.doc} |"
        for row in TOPIC_CONFIGS.values()
    ]
    table = page.partition("| config | type | default | | |\n|---|---|---|---|---|\n")[2].partition("\n\n")[0]
    assert table.splitlines() == rows
