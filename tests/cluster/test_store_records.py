"""The embedded store's bytes: what they are today, they stay."""

from __future__ import annotations

import contextlib
from pathlib import Path
from uuid import UUID

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.interface import Topic
from fairlog_types import CorruptStorage

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = {version: REPOSITORY / "tests" / "golden" / f"cluster-store-{version}.txt" for version in (1, 2, 3)}

ORDERS = Topic(
    "orders",
    UUID("00112233-4455-6677-8899-aabbccddeeff"),
    3,
    {"fairlog.transactions": "journal", "max.message.bytes": "1000"},
    1_760_000_000_000,
)
OLD = Topic("old", UUID("ffeeddcc-bbaa-9988-7766-554433221100"), 1, {}, 1_759_999_999_999)


def golden_records(version: int) -> dict[bytes, bytes]:
    lines = (line.split() for line in GOLDEN[version].read_text().splitlines())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in lines}


def test_records_written_are_those_of_the_golden_file() -> None:
    """The bytes of format 3 do not change."""
    written = {
        records.FORMAT_KEY: records.encode_format(),
        records.NODE_KEY: records.encode_node(records.NodeRecord("AAECAwQFBgcICQoLDA0ODw", 1, 16)),
        records.STARTS_KEY: records.encode_count(3),
        records.PRODUCER_IDS_KEY: records.encode_count(2000),
        records.OFFSETS_LOGS_KEY: records.encode_count(4),
        records.topic_key(ORDERS.topic_id): records.encode_topic(records.TopicRecord(ORDERS, deleting=False)),
        records.topic_key(OLD.topic_id): records.encode_topic(records.TopicRecord(OLD, deleting=True)),
    }
    assert written == golden_records(3)


@pytest.mark.parametrize("version", GOLDEN)
def test_store_opened_on_the_golden_records_has_what_they_say(tmp_path: Path, version: int) -> None:
    """A store of any format can be read for ever; the first start brings it to format 3, which stays so."""
    directory = tmp_path / "cluster"
    directory.mkdir()
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        for key, value in golden_records(version).items():
            transaction.put(key, value)
    for leader_epoch in (4, 5):
        store = EmbeddedStore.open(directory, node_id=1, group_journal_count=99)
        try:
            identity = store.cluster_id, store.starts, store.group_journal_count, store.offsets_log_count
            assert identity == ("AAECAwQFBgcICQoLDA0ODw", leader_epoch, 16, 4)
            assert (list(store.topics()), list(store.deleting())) == ([ORDERS], [OLD])
        finally:
            store.close()
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        kept = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    assert kept == golden_records(3) | {records.STARTS_KEY: records.encode_count(5)}


def test_format_page_shows_the_golden_file() -> None:
    """The page's dump is the file that the tests read."""
    assert GOLDEN[3].read_text() in (REPOSITORY / "docs" / "formats" / "cluster-store.md").read_text(encoding="utf-8")


@given(
    topic=st.builds(
        Topic,
        name=st.text(min_size=1),
        topic_id=st.uuids(),
        partitions=st.integers(1, 2**31 - 1),
        configs=st.dictionaries(st.text(), st.text()),
        created_ms=st.integers(0, 2**63 - 1),
    ),
    deleting=st.booleans(),
)
def test_topic_record_of_any_topic_reads_back_as_it_was(topic: Topic, deleting: bool) -> None:
    """Encoding loses nothing."""
    record = records.TopicRecord(topic, deleting)
    assert records.decode_topic(records.topic_key(topic.topic_id), records.encode_topic(record)) == record


@given(value=st.binary(max_size=60))
def test_topic_record_of_arbitrary_bytes_is_read_or_corrupt(value: bytes) -> None:
    """Whatever the disk holds, the reader answers a topic or CorruptStorage, never anything else."""
    with contextlib.suppress(CorruptStorage):
        records.decode_topic(records.topic_key(OLD.topic_id), value)


@given(
    by_resource=st.dictionaries(
        st.sampled_from(["", "1", "2147483647"]), st.dictionaries(st.text(max_size=9), st.text(max_size=9))
    )
)
def test_configs_of_brokers_read_back_as_they_were(by_resource: dict[str, dict[str, str]]) -> None:
    """Encoding loses nothing, and what belongs to others is left alone."""
    content = {records.broker_key(each): records.encode_broker_configs(by_resource[each]) for each in by_resource}
    assert records.decode_broker_configs(content | {b"starts": b"\x01", b"brokers": b"\xff"}) == by_resource


@given(value=st.binary(max_size=60))
def test_configs_of_brokers_of_arbitrary_bytes_are_read_or_corrupt(value: bytes) -> None:
    """As with topics."""
    with contextlib.suppress(CorruptStorage):
        records.decode_broker_configs({records.broker_key("1"): value})


@given(
    by_group=st.dictionaries(
        st.text(min_size=1, max_size=9), st.dictionaries(st.text(max_size=9), st.text(max_size=9), min_size=1)
    )
)
def test_configs_of_groups_read_back_as_they_were(by_group: dict[str, dict[str, str]]) -> None:
    """Encoding loses nothing, and what belongs to others is left alone."""
    content = {records.group_configs_key(each): records.encode_group_configs(each, by_group[each]) for each in by_group}
    assert records.decode_group_configs(content | {records.GROUP_JOURNALS_BEGUN_KEY: b"\x10"}) == by_group


@given(value=st.binary(max_size=60))
def test_configs_of_groups_of_arbitrary_bytes_are_read_or_corrupt(value: bytes) -> None:
    """As with topics."""
    with contextlib.suppress(CorruptStorage):
        records.decode_group_configs({records.group_configs_key("g"): value})


def test_configs_of_a_group_under_another_groups_key_are_corrupt() -> None:
    """The key tells whose they are, and the value has to agree."""
    with pytest.raises(CorruptStorage, match="group-config"):
        records.decode_group_configs({records.group_configs_key("g"): records.encode_group_configs("h", {"a": "b"})})


@pytest.mark.parametrize("value", [b"", b"\xff", b"\x80", b"\x20", b"\x61a"])
def test_count_that_is_none_is_corrupt(value: bytes) -> None:
    """A count that cannot be read is never taken for 0."""
    with pytest.raises(CorruptStorage):
        records.decode_count(value, "starts")
