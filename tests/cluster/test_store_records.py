"""The embedded store's bytes: what they are today, they stay."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path
from uuid import UUID

import lmdb
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.cluster.content import read_content
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.growing import add_shard
from fairlog.cluster.interface import Topic
from fairlog.security.acls import ACLS, Acl, Operation, PatternType, Permission, ResourceType, name_of
from fairlog.security.made_up import MADE_UP_SALTS, SECRETS
from fairlog.security.quotas import QUOTAS, QuotaKey, Quotas, entity_untrusted
from fairlog.security.users import USERS, Credential, ScramMechanism, User
from fairlog_types import CorruptStorage, ShardNumber
from shard.placement import Placement

REPOSITORY = Path(__file__).resolve().parents[2]
GOLDEN = {version: REPOSITORY / "tests" / "golden" / f"cluster-store-{version}.txt" for version in (1, 2, 3)}

ORDERS = Topic(
    "orders",
    UUID("00112233-4455-6677-8899-aabbccddeeff"),
    3,
    {"fairlog.transactions": "journal", "max.message.bytes": "1000"},
    1_760_000_000_000,
)
ADDRESS = records.AddressRecord("a.example", 9092, ("10.0.0.1", 19092))
OLD = Topic("old", UUID("ffeeddcc-bbaa-9988-7766-554433221100"), 1, {}, 1_759_999_999_999)


GOLDEN_SHARDS = REPOSITORY / "tests" / "golden" / "cluster-store-3-shards.txt"
GOLDEN_GROWN = REPOSITORY / "tests" / "golden" / "cluster-store-4.txt"
GOLDEN_LOCKED = REPOSITORY / "tests" / "golden" / "cluster-store-5.txt"


def golden_records(version: int) -> dict[bytes, bytes]:
    return records_of(GOLDEN[version])


def records_of(path: Path) -> dict[bytes, bytes]:
    lines = (line.split() for line in path.read_text().splitlines())
    return {bytes.fromhex(key): bytes.fromhex(value) for key, value in lines}


def make_store(directory: Path, content: dict[bytes, bytes]) -> None:
    directory.mkdir()
    with lmdb.open(str(directory)) as environment, environment.begin(write=True) as transaction:
        for key, value in content.items():
            transaction.put(key, value)


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
    make_store(directory, golden_records(version))
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


def test_records_written_of_several_shards_are_those_of_the_golden_file() -> None:
    """What is new in such a store, beside the records of any."""
    written = {
        records.FORMAT_KEY: records.encode_format(),
        records.NODE_KEY: records.encode_node(records.NodeRecord("AAECAwQFBgcICQoLDA0ODw", 1, 16)),
        records.STARTS_KEY: records.encode_count(4),
        records.PRODUCER_IDS_KEY: records.encode_count(2000),
        records.OFFSETS_LOGS_KEY: records.encode_count(4),
        records.SHARDS_KEY: records.encode_count(3),
        records.GROUP_SEPARATOR_KEY: records.encode_group_separator("::"),
        records.shard_key(ShardNumber(0)): records.encode_shard(records.ShardRecord(2, True)),
        records.shard_key(ShardNumber(1)): records.encode_shard(records.ShardRecord(1, True)),
        records.shard_key(ShardNumber(2)): records.encode_shard(records.ShardRecord(1, False)),
        records.address_key(1): records.encode_address(ADDRESS),
        records.address_key(2): records.encode_address(records.AddressRecord("b.example", 9093, None)),
        records.topic_key(ORDERS.topic_id): records.encode_topic(records.TopicRecord(ORDERS, deleting=False)),
        records.topic_key(OLD.topic_id): records.encode_topic(records.TopicRecord(OLD, deleting=True)),
        records.dropped_key(OLD.topic_id, ShardNumber(1)): records.encode_dropped(),
    }
    assert written == records_of(GOLDEN_SHARDS)


def test_store_opened_on_the_golden_records_of_several_shards_has_what_they_say(tmp_path: Path) -> None:
    """A shard and its start are this process'; the rest is the same for all."""
    directory = tmp_path / "cluster"
    make_store(directory, records_of(GOLDEN_SHARDS))
    for shard, leader_epoch, begun, deleting in ((0, 3, True, [OLD]), (1, 2, True, []), (2, 2, False, [OLD])):
        store = EmbeddedStore.open(directory, node_id=1, group_journal_count=99, shards=3, shard=ShardNumber(shard))
        try:
            assert (store.node_id, store.starts, store.group_journals_begun) == (shard + 1, leader_epoch, begun)
            assert (list(store.topics()), list(store.deleting())) == ([ORDERS], deleting)
            assert store.brokers("PLAINTEXT") == [(1, "a.example", 9092), (2, "b.example", 9093)]
            internal = [store.internal_address(ShardNumber(each)) for each in range(3)]
            assert internal == [(*ADDRESS.internal, False), None, None]
        finally:
            store.close()


READS_ORDERS = Acl(
    ResourceType.TOPIC,
    "orders",
    PatternType.LITERAL,
    "User:alice",
    "*",
    Operation.READ,
    Permission.ALLOW,
)
ALICE = User(
    {
        ScramMechanism.SCRAM_SHA_256: Credential(
            salt=bytes(range(32)), iterations=4096, stored_key=bytes(range(32, 64)), server_key=bytes(range(64, 96))
        )
    }
)
"""The keys are of no password."""
SALTS = bytes(range(96, 128))
QUOTA_NAME = '[["user","alice"],["client-id",null]]'
QUOTA = Quotas(
    entity_untrusted({"user": "alice", "client-id": None}),
    {QuotaKey.PRODUCER: 1_048_576, QuotaKey.CONSUMER: 2_097_152},
)


def test_records_written_of_a_locked_store_are_those_of_the_golden_file() -> None:
    """The store of one shard, with a user, an ACL, a quota and the secret that made-up salts come of."""
    acl = name_of(READS_ORDERS)
    written = {
        **golden_records(3),
        records.FORMAT_KEY: records.encode_format(records.LOCKED_VERSION),
        records.access_key(USERS.name, "alice"): records.encode_access(USERS, "alice", ALICE),
        records.access_key(ACLS.name, acl): records.encode_access(ACLS, acl, READS_ORDERS),
        records.access_key(SECRETS.name, MADE_UP_SALTS): records.encode_access(SECRETS, MADE_UP_SALTS, SALTS),
        records.access_key(QUOTAS.name, QUOTA_NAME): records.encode_access(QUOTAS, QUOTA_NAME, QUOTA),
    }
    assert written == records_of(GOLDEN_LOCKED)


def test_store_opened_on_the_golden_records_of_a_locked_one_has_its_locks(tmp_path: Path) -> None:
    directory = tmp_path / "cluster"
    make_store(directory, records_of(GOLDEN_LOCKED))
    store = EmbeddedStore.open(directory, node_id=1, group_journal_count=99)
    try:
        assert store.access(USERS) == {"alice": ALICE}
        assert store.access(ACLS) == {name_of(READS_ORDERS): READS_ORDERS}
        assert store.access(SECRETS) == {MADE_UP_SALTS: SALTS}
        assert store.access(QUOTAS) == {QUOTA_NAME: QUOTA}
    finally:
        store.close()


def test_content_of_several_shards_is_what_the_golden_file_says() -> None:
    """For tools, and for a node that starts from a backup."""
    content = read_content(records_of(GOLDEN_SHARDS))
    assert (content.shards, content.starts, content.group_journals_begun) == (3, 4, False)
    assert [(shard, *dataclasses.astuple(record)) for shard, record in sorted(content.started.items())] == [
        (0, 2, True),
        (1, 1, True),
        (2, 1, False),
    ]
    assert content.dropped == {OLD.topic_id: {1}}
    assert content.addresses[1] == ADDRESS


def test_content_of_one_shard_tells_of_it_as_of_others() -> None:
    """A store of one shard has its starts under another key."""
    content = read_content({**golden_records(3), records.GROUP_JOURNALS_BEGUN_KEY: records.encode_count(16)})
    assert (content.shards, content.started) == (1, {0: records.ShardRecord(3, True)})
    assert content.group_journals_begun


@pytest.mark.parametrize(
    ("key", "value"),
    [
        (b"shards", b"\x01"),
        (b"shard/", b"\x82\x01\xf4"),
        (b"shard/3", b"\x82\x01\xf4"),
        (b"shard/01", b"\x82\x01\xf4"),
        (b"shard/1", b"\x82\x01\x00"),
        (b"shard/1", b"\x82\x20\xf4"),
        (b"node/x", b"\x82\x61a\x01"),
        (b"node/" + b"9" * 5000, b"\x82\x61a\x01"),
        (b"node/1", b"\x82\x61a\x1a\x00\x01\x00\x00"),
        (b"node/1", b"\x84\x61a\x01\x61b\x20"),
        (b"dropped/1/0", b"\xf5"),
        (b"dropped/" + bytes(16) + b"/3", b"\xf5"),
        (b"dropped/" + bytes(16), b"\xf5"),
    ],
)
def test_record_of_several_shards_that_is_none_is_corrupt(key: bytes, value: bytes) -> None:
    """Never taken for another shard's, or for nothing."""
    with pytest.raises(CorruptStorage):
        read_content({**records_of(GOLDEN_SHARDS), key: value})


def test_records_of_a_store_that_grew_are_those_of_the_golden_file(tmp_path: Path) -> None:
    """The one of format 3 that has begun its journals, with two shards added and a topic made after that."""
    directory = tmp_path / "cluster"
    begun = {records.GROUP_JOURNALS_BEGUN_KEY: records.encode_count(16)}
    make_store(directory, golden_records(3) | begun)
    assert [add_shard(directory, node_id=1, move_note=lambda: None) for _ in range(2)] == [2, 3]
    EmbeddedStore.prepare(directory, node_id=1, group_journal_count=16, shards=3, group_separator="::")
    with lmdb.open(str(directory)) as environment, environment.begin() as transaction:
        grown = {bytes(key): bytes(value) for key, value in transaction.cursor()}
    later = dataclasses.replace(OLD, name="later", topic_id=UUID(int=1), partitions=6, spread_over=3)
    grown[records.topic_key(later.topic_id)] = records.encode_topic(records.TopicRecord(later, False))
    assert grown == records_of(GOLDEN_GROWN)
    content = read_content(grown)
    assert (content.placement, content.started[ShardNumber(0)]) == (Placement(3, 1), records.ShardRecord(3, True))
    assert content.served == [ORDERS, later]


@pytest.mark.parametrize(("key", "value"), [(b"first-shards", b"\x00"), (b"first-shards", b"\x03")])
def test_first_shards_that_cannot_be_are_corrupt(key: bytes, value: bytes) -> None:
    """None, or as many as there are now."""
    with pytest.raises(CorruptStorage):
        read_content({**records_of(GOLDEN_GROWN), key: value})


def test_format_page_shows_the_golden_files() -> None:
    """The page's dumps are the files that the tests read."""
    page = (REPOSITORY / "docs" / "formats" / "cluster-store.md").read_text(encoding="utf-8")
    assert all(path.read_text() in page for path in (GOLDEN[3], GOLDEN_SHARDS, GOLDEN_GROWN))


@given(
    topic=st.builds(
        Topic,
        name=st.text(min_size=1),
        topic_id=st.uuids(),
        partitions=st.integers(1, 2**31 - 1),
        configs=st.dictionaries(st.text(), st.text()),
        created_ms=st.integers(0, 2**63 - 1),
        spread_over=st.none() | st.integers(1, 3),
    ),
    deleting=st.booleans(),
)
def test_topic_record_of_any_topic_reads_back_as_it_was(topic: Topic, deleting: bool) -> None:
    """Encoding loses nothing."""
    record = records.TopicRecord(topic, deleting)
    assert records.decode_topic(records.topic_key(topic.topic_id), records.encode_topic(record), 3) == record


@given(value=st.binary(max_size=60))
def test_topic_record_of_arbitrary_bytes_is_read_or_corrupt(value: bytes) -> None:
    """Whatever the disk holds, the reader answers a topic or CorruptStorage, never anything else."""
    with contextlib.suppress(CorruptStorage):
        records.decode_topic(records.topic_key(OLD.topic_id), value, 3)


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
