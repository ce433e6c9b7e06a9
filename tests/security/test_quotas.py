"""Quotas: which entities there are, which one counts, how changes and filters are judged, and what the store keeps."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.security.quota_changes import (
    Change,
    Refusal,
    UnknownEntityType,
    apply,
    change_untrusted,
    filter_untrusted,
    found,
)
from fairlog.security.quotas import (
    QUOTAS,
    BadQuota,
    Entity,
    Limits,
    QuotaKey,
    Quotas,
    entity_untrusted,
    name_of,
)

PRODUCER, CONSUMER, CONNECTIONS = QuotaKey.PRODUCER, QuotaKey.CONSUMER, QuotaKey.CONNECTIONS


def entity(**names: str | None) -> Entity:
    return entity_untrusted({of_type.replace("_", "-"): name for of_type, name in names.items()})


LEVELS = [
    (entity(user="u", client_id="c"), ("u", "c")),
    (entity(user="u", client_id=None), ("u", "c")),
    (entity(user="u"), ("u", None)),
    (entity(user=None, client_id="c"), ("u", "c")),
    (entity(user=None, client_id=None), ("u", "c")),
    (entity(user=None), ("u", None)),
    (entity(client_id="c"), (None, "c")),
    (entity(client_id=None), (None, "c")),
]
"""In Kafka's order, with what is counted together for the client c of the user u."""


def table(*quotas: Quotas) -> dict[str, Quotas]:
    return {name_of(each.entity): each for each in quotas}


# --- which one counts -----------------------------------------------------------------------------


@given(st.sets(st.integers(0, 7)))
def test_first_level_that_has_the_quota_counts(levels: set[int]) -> None:
    """Whatever others there are, of other users, other clients and of the other key."""
    noise = [
        Quotas(entity(user="other"), {PRODUCER: 1}),
        Quotas(entity(client_id="other"), {PRODUCER: 2}),
        Quotas(entity(user="u", client_id="other"), {PRODUCER: 3}),
        Quotas(entity(ip=None), {CONNECTIONS: 4}),
    ]
    others = [Quotas(of, {CONSUMER: 5}) for number, (of, _) in enumerate(LEVELS) if number not in levels]
    quotas = [Quotas(LEVELS[number][0], {PRODUCER: 100 + number}) for number in levels]
    limit = Limits([*noise, *others, *quotas], PRODUCER).of_client("u", "c")
    if not levels:
        assert limit is None
        return
    first = min(levels)
    assert limit is not None
    assert (limit.rate, limit.entity, limit.counted) == (100 + first, *LEVELS[first])


def test_address_has_its_own_quota_or_the_default() -> None:
    limits = Limits(
        [Quotas(entity(ip="10.0.0.1"), {CONNECTIONS: 5}), Quotas(entity(ip=None), {CONNECTIONS: 7})], CONNECTIONS
    )
    own, default = limits.of_address("10.0.0.1"), limits.of_address("10.0.0.2")
    assert own is not None
    assert default is not None
    assert (own.rate, own.counted) == (5, ("10.0.0.1", None))
    assert (default.rate, default.counted) == (7, ("10.0.0.2", None))
    assert not Limits([Quotas(entity(user="u"), {PRODUCER: 1})], CONNECTIONS)


# --- what may be set ------------------------------------------------------------------------------

ALICE = (("user", "alice"),)
LONG = "x" * 256


@pytest.mark.parametrize(
    ("parts", "rates", "reason"),
    [
        ((), [], "a user, a client-id, both, or an ip"),
        ((("group", "g"),), [], "no quotas of 'group'"),
        ((("", "g"),), [], "no quotas of ''"),
        ((("user", ""),), [], "1 to 255 characters"),
        ((("client-id", LONG),), [], "1 to 255 characters"),
        ((("user", "\U0001f600" * 255), ("client-id", "\U0001f600" * 255)), [], "1900 bytes"),
        ((("user", "a"), ("user", "b")), [], "a type twice"),
        ((("user", "a"), ("ip", "10.0.0.1")), [], "no user and no client-id"),
        ((("ip", "host.example"),), [], "no IP address"),
        (ALICE, [("producer_byte_rate", 0.0)], "whole number from 1"),
        (ALICE, [("producer_byte_rate", -1.0)], "whole number from 1"),
        (ALICE, [("producer_byte_rate", 1.5)], "whole number from 1"),
        (ALICE, [("producer_byte_rate", float("nan"))], "whole number from 1"),
        (ALICE, [("producer_byte_rate", float("inf"))], "whole number from 1"),
        (ALICE, [("producer_byte_rate", 1e300)], "whole number from 1"),
        (ALICE, [("producer_byte_rate", 1.0), ("producer_byte_rate", None)], "named twice"),
        (ALICE, [("connection_creation_rate", 1.0)], "no quota of a user"),
        ((("ip", None),), [("producer_byte_rate", 1.0)], "no quota of a ip"),
        ((("ip", None),), [("connection_creation_rate", 2.0**31)], "whole number from 1"),
        (ALICE, [("request_percentage", 10.0)], "not enforced here"),
        (ALICE, [("controller_mutation_rate", 10.0)], "not enforced here"),
        (ALICE, [("nonsense", 10.0)], "no quota of a user"),
        (ALICE, [("nonsense", None)], "no quota of a user"),
    ],
)
def test_bad_change_is_refused_with_a_sentence(parts, rates, reason) -> None:
    with pytest.raises(BadQuota) as refusal:
        change_untrusted(parts, rates)
    assert reason in str(refusal.value)


def test_address_has_one_spelling() -> None:
    assert entity(ip="::ffff:10.0.0.1") == entity(ip="10.0.0.1")
    assert entity(ip="2001:DB8:0:0::1") == entity(ip="2001:db8::1")
    assert filter_untrusted([("ip", 0, "2001:DB8::1")], strict=True).matches(entity(ip="2001:db8::1"))


def test_changes_merge_into_what_there_is_and_the_last_quota_takes_the_entity_along() -> None:
    before = table(Quotas(entity(user="a"), {PRODUCER: 1, CONSUMER: 2}), Quotas(entity(user="b"), {PRODUCER: 3}))
    changes = [
        Change(entity(user="a"), {PRODUCER: 9}),
        Change(entity(user="b"), {PRODUCER: None}),
        Change(entity(user="c"), {CONSUMER: None}),
        Change(entity(user="d"), {CONSUMER: 4}),
    ]
    outcome = apply(before, changes)
    assert outcome.changed == {
        name_of(entity(user="a")): Quotas(entity(user="a"), {PRODUCER: 9, CONSUMER: 2}),
        name_of(entity(user="b")): None,
        name_of(entity(user="d")): Quotas(entity(user="d"), {CONSUMER: 4}),
    }
    assert not outcome.refused
    assert apply(before, [Change(entity(user="a"), {PRODUCER: 1})]).changed == {}


def test_entity_twice_and_too_many_are_refused_and_others_are_changed(monkeypatch) -> None:
    monkeypatch.setattr("fairlog.security.quota_changes.QUOTAS_MAX", 2)
    a, b, c, d = (entity(user=name) for name in "abcd")
    before = table(Quotas(a, {PRODUCER: 1}))
    twice = apply(before, [Change(a, {PRODUCER: 5}), Change(a, {PRODUCER: None}), Change(b, {PRODUCER: 2})])
    assert (twice.refused, list(twice.changed)) == ({name_of(a): Refusal.TWICE}, [name_of(b)])
    many = apply(before, [Change(b, {PRODUCER: 2}), Change(c, {PRODUCER: 2}), Change(a, {PRODUCER: 7})])
    assert (many.refused, set(many.changed)) == ({name_of(c): Refusal.TOO_MANY}, {name_of(b), name_of(a)})
    room = apply(before, [Change(a, {PRODUCER: None}), Change(c, {PRODUCER: 2}), Change(d, {PRODUCER: 2})])
    assert not room.refused


# --- filters --------------------------------------------------------------------------------------

ALL = [of for of, _ in LEVELS] + [entity(ip="10.0.0.1"), entity(ip=None)]


@pytest.mark.parametrize(
    ("components", "strict", "wanted"),
    [
        ([], False, ALL),
        ([], True, []),
        ([("user", 0, "u")], False, ALL[:3]),
        ([("user", 0, "u")], True, [entity(user="u")]),
        ([("user", 1, None)], True, [entity(user=None)]),
        ([("client-id", 2, None)], True, [entity(client_id="c"), entity(client_id=None)]),
        ([("client-id", 2, None), ("user", 0, "u")], True, ALL[:2]),
        ([("ip", 2, None)], False, [entity(ip="10.0.0.1"), entity(ip=None)]),
        ([("user", 0, "")], False, []),
    ],
)  # fmt: skip
def test_filter_finds_what_kafka_would(components, strict, wanted) -> None:
    quotas = table(*(Quotas(of, {CONNECTIONS: 1}) for of in ALL))
    matched = [each.entity for each in found(quotas, filter_untrusted(components, strict=strict))]
    assert sorted(matched, key=name_of) == sorted(wanted, key=name_of)


@pytest.mark.parametrize(
    ("components", "error"),
    [
        ([("", 2, None)], BadQuota),
        ([("group", 2, None)], UnknownEntityType),
        ([("user", 2, None), ("user", 0, "u")], BadQuota),
        ([("user", 0, None)], BadQuota),
        ([("user", 1, "u")], BadQuota),
        ([("user", 2, "u")], BadQuota),
        ([("user", 3, None)], BadQuota),
        ([("user", -1, None)], BadQuota),
        ([("ip", 2, None), ("user", 2, None)], BadQuota),
    ],
)
def test_filter_that_there_cannot_be_is_refused(components, error) -> None:
    with pytest.raises(error):
        filter_untrusted(components, strict=False)


# --- in the store ---------------------------------------------------------------------------------

EXAMPLE = Quotas(entity(user="alice", client_id=None), {PRODUCER: 1_048_576, CONSUMER: 2_097_152})


def test_quota_is_kept_as_the_page_says() -> None:
    """docs/formats/cluster-store.md has this one as its example."""
    name = '[["user","alice"],["client-id",null]]'
    assert name_of(EXAMPLE.entity) == name
    value = {"consumer_byte_rate": 2097152, "producer_byte_rate": 1048576}
    assert records.encode_access(QUOTAS, name, EXAMPLE) == cbor2.dumps([name, value], canonical=True)


names = st.none() | st.text(min_size=1, max_size=20)


@given(names, names, st.integers(1, 2**53), st.integers(1, 2**53))
def test_quota_reads_back(user, client_id, one, other) -> None:
    kept = Quotas(entity(user=user, client_id=client_id), {PRODUCER: one, CONSUMER: other})
    assert QUOTAS.decode(name_of(kept.entity), cbor2.loads(cbor2.dumps(QUOTAS.encode(kept)))) == kept


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("[]", {"producer_byte_rate": 1}),
        ("x", {"producer_byte_rate": 1}),
        ("[" * 100_000, {"producer_byte_rate": 1}),
        ('[["user"]]', {"producer_byte_rate": 1}),
        ('[["user","a"],["user","a"]]', {"producer_byte_rate": 1}),
        ('[["client-id","c"],["user","a"]]', {"producer_byte_rate": 1}),
        ('[["user", "a"]]', {"producer_byte_rate": 1}),
        ('[["group","a"]]', {"producer_byte_rate": 1}),
        ('[["user","a"]]', {}),
        ('[["user","a"]]', None),
        ('[["user","a"]]', [1]),
        ('[["user","a"]]', {"producer_byte_rate": 0}),
        ('[["user","a"]]', {"producer_byte_rate": 1.0}),
        ('[["user","a"]]', {"producer_byte_rate": True}),
        ('[["user","a"]]', {"request_percentage": 1}),
        ('[["user","a"]]', {"connection_creation_rate": 1}),
        ('[["ip","10.0.0.01"]]', {"connection_creation_rate": 1}),
    ],
)
def test_damaged_quota_is_refused(name, value) -> None:
    with pytest.raises(ValueError, match=r".+"):
        QUOTAS.decode(name, value)
