"""The tables of who may do what, in both kinds of stores: kept, told to others, and never guessed."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import cbor2
import lmdb
import pytest

from fairlog.cluster import cluster_records, records
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.cluster.single_store import single_store
from fairlog.inspection.cluster_stores import show_record
from fairlog.security.access_kind import AccessKind
from fairlog_types import CorruptStorage
from tests.cluster.replicated_nodes import Nodes
from tests.stream.model_engine import open_model

OpenStore = Callable[..., EmbeddedStore]


def _decode(name: str, value: object) -> int:
    if type(value) is not int:
        raise ValueError(f"{name} is no number")
    return value


NUMBERS: AccessKind[int] = AccessKind("number", lambda value: value, _decode)


@pytest.fixture(autouse=True)
def kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(records, "KINDS", {NUMBERS.name: NUMBERS})


async def test_what_was_set_is_there_after_a_restart_and_what_was_removed_is_not(open_store: OpenStore) -> None:
    store = open_store()
    generation = store.generation
    assert await store.alter_access(NUMBERS, lambda _: {"one": 1, "two": 2, "x" * 1000: 3})
    assert store.generation == generation + 1
    assert await store.alter_access(NUMBERS, lambda known: {"two": None, "one": known["one"] + 10})
    assert not await store.alter_access(NUMBERS, lambda _: {"two": None, "one": 11})
    assert store.access(NUMBERS) == {"one": 11, "x" * 1000: 3}
    store.close()
    assert open_store().access(NUMBERS) == {"one": 11, "x" * 1000: 3}


async def test_what_a_change_raises_changes_nothing(open_store: OpenStore) -> None:
    def refuse(_known: object) -> dict[str, int | None]:
        raise ZeroDivisionError

    store = open_store()
    with pytest.raises(ZeroDivisionError):
        await store.alter_access(NUMBERS, refuse)
    assert store.access(NUMBERS) == {}


async def test_store_has_format_5_from_the_first_record_on(open_store: OpenStore, tmp_path: Path) -> None:
    """So that no older program serves everybody: also when all were removed again."""
    store = open_store()
    store.close()
    assert _version(tmp_path) == records.VERSION
    store = open_store()
    await store.alter_access(NUMBERS, lambda _: {"one": 1})
    await store.alter_access(NUMBERS, lambda _: {"one": None})
    store.close()
    assert _version(tmp_path) == records.LOCKED_VERSION
    open_store().close()
    assert _version(tmp_path) == records.LOCKED_VERSION


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (records.access_key("number", "one"), ["one", "secret"], "of 'one' cannot be read: one is no number"),
        (records.access_key("number", "one"), ["two", 2], "is not a name, under its digest"),
        (records.access_key("number", "one"), "secret", "is not a name, under its digest"),
        (records.access_key("letter", "a"), ["a", 1], "access/letter/.* is of no kind that this program knows"),
    ],
)
def test_damaged_record_refuses_the_start_and_is_not_shown(
    open_store: OpenStore, tmp_path: Path, key: bytes, value: object, message: str
) -> None:
    open_store().close()
    with lmdb.open(str(tmp_path / "cluster")) as environment, environment.begin(write=True) as transaction:
        transaction.put(key, cbor2.dumps(value))
    with pytest.raises(CorruptStorage, match=message) as refusal:
        open_store()
    assert "secret" not in str(refusal.value)


def test_inspection_shows_a_name_and_no_value() -> None:
    line = show_record(records.access_key("number", "one"), records.encode_access(NUMBERS, "one", 4711))
    assert (line.what, dict(line.fields)) == ("number", {"name": "one"})


async def test_nodes_of_a_cluster_tell_each_other(tmp_path: Path) -> None:
    async with (
        open_model(random.Random(1)) as engine,
        Nodes(tmp_path, engine).store(1) as one,
        Nodes(tmp_path, engine).store(2) as two,
    ):
        assert await one.alter_access(NUMBERS, lambda _: {"one": 1})
        await two.catch_up()
        assert two.access(NUMBERS) == {"one": 1}
        assert _cluster_version(one) == _cluster_version(two) == cluster_records.LOCKED_VERSION
        assert await two.alter_access(NUMBERS, lambda _: {"one": None})
        await one.catch_up()
        assert one.access(NUMBERS) == {}


def test_backup_of_a_cluster_with_one_shard_keeps_its_tables() -> None:
    """And has the format of a store that says who may do what: a node that starts from it stays locked."""
    cluster = ClusterRecord("AAECAwQFBgcICQoLDA0ODw", 4, bytes(32))
    metadata = {
        **cluster_records.first_records(cluster, shards=1, offsets_logs=4, group_separator=""),
        records.access_key("number", "one"): records.encode_access(NUMBERS, "one", 1),
    }
    kept = single_store(metadata, 1)
    assert records.decode_access(kept) == [("number", "one", 1)]
    assert records.decode_format(kept[records.FORMAT_KEY]) == records.LOCKED_VERSION


def _version(directory: Path) -> int:
    with lmdb.open(str(directory / "cluster")) as environment, environment.begin() as transaction:
        return records.decode_format(bytes(transaction.get(records.FORMAT_KEY)))


def _cluster_version(store: ReplicatedStore) -> int:
    return cluster_records.decode_version(store._common.raw[records.FORMAT_KEY])
