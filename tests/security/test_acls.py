"""ACLs as values: what there can be, which a filter means, and how the store has them."""

from __future__ import annotations

import cbor2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import records
from fairlog.security.acls import (
    ACLS,
    OPERATIONS,
    Acl,
    AclFilter,
    BadAcl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    acl_untrusted,
    filter_untrusted,
    name_of,
    plain_address,
)

READ_T = Acl(ResourceType.TOPIC, "t", PatternType.LITERAL, "User:alice", "*", Operation.READ, Permission.ALLOW)
EXAMPLE = b'["ALLOW","READ","TOPIC","LITERAL","t","User:alice","*"]'

names = st.text(st.characters(exclude_categories=("Cs",)), min_size=1, max_size=20)
acls = st.builds(
    Acl,
    st.sampled_from([of for of in OPERATIONS if of is not ResourceType.CLUSTER]),
    names,
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    names.map("User:{}".format),
    names,
    st.sampled_from([each for each in Operation if each >= Operation.ALL]),
    st.sampled_from([Permission.DENY, Permission.ALLOW]),
)


def test_record_is_as_the_page_shows_it() -> None:
    """docs/formats/cluster-store.md."""
    assert name_of(READ_T).encode() == EXAMPLE
    assert records.encode_access(ACLS, name_of(READ_T), READ_T) == cbor2.dumps([EXAMPLE.decode(), None])


@given(acls, acls)
def test_acls_are_kept_and_told_apart(one: Acl, other: Acl) -> None:
    """The name in the store is the ACL: the same for the same one only."""
    assert ACLS.decode(name_of(one), None) == one
    assert (name_of(one) == name_of(other)) == (one == other)


@pytest.mark.parametrize(
    "name",
    [
        "",
        "[" * 100_000,
        "[]",
        '["ALLOW","READ","TOPIC","LITERAL","t","User:alice"]',
        '["ALLOW","READ","TOPIC","LITERAL","t","User:alice",1]',
        '["ALLOW","SING","TOPIC","LITERAL","t","User:alice","*"]',
        '["ANY","READ","TOPIC","LITERAL","t","User:alice","*"]',
        '["ALLOW","READ","TOPIC","MATCH","t","User:alice","*"]',
        '["ALLOW", "READ","TOPIC","LITERAL","t","User:alice","*"]',
    ],
)
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        ACLS.decode(name, None)


def test_value_is_refused() -> None:
    with pytest.raises(ValueError, match="without a value"):
        ACLS.decode(name_of(READ_T), 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"resource_type": 0}, "resource type is UNKNOWN"),
        ({"resource_type": 1}, "resource type is ANY"),
        ({"resource_type": 6}, "no resources of type DELEGATION_TOKEN"),
        ({"resource_type": 7}, "no resources of type USER"),
        ({"resource_type": 8}, "no resource type 8"),
        ({"resource_type": 4}, "the only resource of type CLUSTER is kafka-cluster"),
        ({"resource_name": ""}, "name is empty"),
        ({"pattern_type": 0}, "pattern type is UNKNOWN"),
        ({"pattern_type": 1}, "pattern type is ANY"),
        ({"pattern_type": 2}, "MATCH"),
        ({"pattern_type": -1}, "no pattern type -1"),
        ({"operation": 0}, "operation is UNKNOWN"),
        ({"operation": 1}, "operation is ANY"),
        ({"operation": 99}, "no operation 99"),
        ({"permission": 0}, "permission is UNKNOWN"),
        ({"permission": 1}, "permission is ANY"),
        ({"principal": "alice"}, "KIND:NAME"),
        ({"principal": "User:"}, "KIND:NAME"),
        ({"host": ""}, "host is empty"),
    ],
)
def test_impossible_acl_is_refused(changes: dict[str, object], message: str) -> None:
    """As Kafka does, but for the principal, the host, and the types that do not exist here."""
    fields = {
        "resource_type": 2,
        "resource_name": "t",
        "pattern_type": 3,
        "principal": "User:alice",
        "host": "*",
        "operation": 3,
        "permission": 3,
    }
    assert acl_untrusted(**fields) == READ_T  # type: ignore[arg-type]
    with pytest.raises(BadAcl, match=message):
        acl_untrusted(**fields | changes)  # type: ignore[arg-type]


def _filter(
    name: str | None = None,
    pattern: PatternType = PatternType.ANY,
    of: ResourceType = ResourceType.ANY,
    operation: Operation = Operation.ANY,
    permission: Permission = Permission.ANY,
    principal: str | None = None,
    host: str | None = None,
) -> AclFilter:
    return filter_untrusted(of, name, pattern, principal, host, operation, permission)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (_filter(), "literal all prefixed"),
        (_filter("t.x", PatternType.LITERAL), "literal"),
        (_filter("t.", PatternType.PREFIXED), "prefixed"),
        (_filter("t.x", PatternType.MATCH), "literal all prefixed"),
        (_filter("t.y", PatternType.MATCH), "all prefixed"),
        (_filter("u", PatternType.MATCH), "all"),
        (_filter("t.", PatternType.ANY), "prefixed"),
        (_filter(None, PatternType.MATCH), "literal all prefixed"),
        (_filter(None, PatternType.PREFIXED), "prefixed"),
        (_filter(of=ResourceType.TOPIC), "literal all prefixed"),
        (_filter(of=ResourceType.GROUP), ""),
        (_filter(operation=Operation.READ), "literal all prefixed"),
        (_filter(operation=Operation.ALL), ""),
        (_filter(permission=Permission.DENY), ""),
        (_filter(principal="User:alice"), "literal all prefixed"),
        (_filter(principal="User:*"), ""),
        (_filter(host="10.0.0.1"), ""),
    ],
)
def test_filter_means_what_it_means_in_kafka(asked: AclFilter, expected: str) -> None:
    found = {
        "literal": Acl(ResourceType.TOPIC, "t.x", PatternType.LITERAL, *_WHO),
        "all": Acl(ResourceType.TOPIC, "*", PatternType.LITERAL, *_WHO),
        "prefixed": Acl(ResourceType.TOPIC, "t.", PatternType.PREFIXED, *_WHO),
    }
    assert " ".join(name for name, acl in found.items() if asked.matches(acl)) == expected


_WHO = ("User:alice", "*", Operation.READ, Permission.ALLOW)


@pytest.mark.parametrize("at", range(4))
@pytest.mark.parametrize("number", [0, 99])
def test_unknown_filter_is_refused(at: int, number: int) -> None:
    fields: list[int] = [1, 1, 1, 1]
    fields[at] = number
    of, pattern, operation, permission = fields
    with pytest.raises(BadAcl):
        filter_untrusted(of, None, pattern, None, None, operation, permission)


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("10.0.0.1", "10.0.0.1"),
        ("0:0:0:0:0:0:0:1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("broker.example", "broker.example"),
        ("*", "*"),
    ],
)
def test_addresses_are_compared_in_one_form(address: str, plain: str) -> None:
    """Kafka writes IPv6 addresses in full."""
    assert plain_address(address) == plain
