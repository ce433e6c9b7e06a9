"""Who may do what by which ACLs, as Kafka's StandardAuthorizer has it."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlog.security import authorizer
from fairlog.security.acls import OPERATIONS, Acl, Operation, PatternType, Permission, ResourceType
from fairlog.security.authorizer import Authorizer
from fairlog.security.principal import ANONYMOUS, Principal

ALICE = Principal("User", "alice")
HOST = "10.0.0.1"
TOPIC, GROUP, CLUSTER = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER


def acl(text: str) -> Acl:
    """`allow READ t User:alice *`: a name that ends with … is a prefix."""
    permission, operation, name, principal, host = text.split()
    pattern = PatternType.PREFIXED if name.endswith("…") else PatternType.LITERAL
    return Acl(TOPIC, name.rstrip("…"), pattern, principal, host, Operation[operation], Permission[permission.upper()])


def rights_by(*acls: str, principal: Principal = ALICE, host: str = HOST, allow: bool = False, super_users: str = ""):
    made = Authorizer([acl(each) for each in acls], super_users.split(), allow_if_no_acl=allow)
    return made.rights(principal, host)


@pytest.mark.parametrize(
    ("acls", "operation", "allowed"),
    [
        ((), "READ", False),
        (("allow READ t User:alice *",), "READ", True),
        (("allow READ t User:alice *",), "WRITE", False),
        (("allow READ u User:alice *",), "READ", False),
        (("allow READ t User:bob *",), "READ", False),
        (("allow READ t Group:alice *",), "READ", False),
        (("allow READ t User:* *",), "READ", True),
        (("allow READ * User:alice *",), "READ", True),
        (("allow READ t… User:alice *",), "READ", True),
        (("allow READ tt… User:alice *",), "READ", False),
        (("allow READ t User:alice 10.0.0.1",), "READ", True),
        (("allow READ t User:alice ::ffff:10.0.0.1",), "READ", True),
        (("allow READ t User:alice 10.0.0.2",), "READ", False),
        (("allow ALL t User:alice *",), "DELETE", True),
        # DESCRIBE comes with others, but is denied alone.
        (("allow READ t User:alice *",), "DESCRIBE", True),
        (("allow WRITE t User:alice *",), "DESCRIBE", True),
        (("allow DELETE t User:alice *",), "DESCRIBE", True),
        (("allow ALTER t User:alice *",), "DESCRIBE", True),
        (("allow CREATE t User:alice *",), "DESCRIBE", False),
        (("allow ALTER_CONFIGS t User:alice *",), "DESCRIBE_CONFIGS", True),
        (("allow ALTER_CONFIGS t User:alice *",), "DESCRIBE", False),
        (("allow READ t User:alice *", "deny DESCRIBE t User:alice *"), "READ", True),
        (("allow READ t User:alice *", "deny DESCRIBE t User:alice *"), "DESCRIBE", False),
        (("allow DESCRIBE t User:alice *", "deny READ t User:alice *"), "DESCRIBE", True),
        # What denies comes first, wherever it stands.
        (("allow READ t User:alice *", "deny READ t User:alice *"), "READ", False),
        (("allow READ t User:alice *", "deny READ * User:* *"), "READ", False),
        (("allow READ t User:alice *", "deny ALL t… User:* 10.0.0.1"), "READ", False),
        (("allow READ t User:alice *", "deny READ t User:alice 10.0.0.2"), "READ", True),
    ],
)
def test_acls_together(acls: tuple[str, ...], operation: str, allowed: bool) -> None:
    rights = rights_by(*acls)
    for _ in range(2):  # also when it is known
        assert rights.allows(Operation[operation], TOPIC, "t") is allowed


def test_super_user_may_do_what_is_denied() -> None:
    rights = rights_by("deny ALL * User:* *", super_users="User:bob User:alice")
    assert rights.allows(Operation.READ, TOPIC, "t")
    assert rights.allows(Operation.ALTER, CLUSTER)
    assert rights.allows_any(Operation.WRITE, TOPIC)


def test_resource_without_acls_is_everyones_if_the_node_says_so() -> None:
    """One ACL for somebody else takes it from everyone."""
    rights = rights_by("allow READ t User:bob *", "allow READ p… User:bob *", allow=True)
    assert [rights.allows(Operation.READ, TOPIC, name) for name in ("t", "pp", "u")] == [False, False, True]
    assert rights.allows(Operation.READ, GROUP, "t")


@pytest.mark.parametrize(
    ("acls", "allowed"),
    [
        ((), False),
        (("allow WRITE t User:alice *",), True),
        (("allow ALL t User:* *",), True),
        (("allow READ t User:alice *",), False),
        (("allow WRITE t User:bob *",), False),
        (("allow WRITE t User:alice 10.0.0.2",), False),
        (("allow WRITE t User:alice *", "deny WRITE * User:* *"), False),
        (("allow WRITE t User:alice *", "deny WRITE t User:alice *"), False),
        (("allow WRITE tt User:alice *", "deny WRITE t… User:alice *"), False),
        (("allow WRITE tt… User:alice *", "deny WRITE t… User:alice *"), False),
        (("allow WRITE t… User:alice *", "deny WRITE tt… User:alice *"), True),
        (("allow WRITE t… User:alice *", "deny WRITE t User:alice *"), True),
        (("allow WRITE t User:alice *", "allow WRITE u User:alice *", "deny WRITE t User:alice *"), True),
        (("allow WRITE * User:alice *", "deny WRITE t… User:alice *"), True),
    ],
)
def test_some_topic_can_be_written(acls: tuple[str, ...], allowed: bool) -> None:
    """KIP-679: whoever may write to one topic may do so idempotently."""
    rights = rights_by(*acls)
    for _ in range(2):
        assert rights.allows_any(Operation.WRITE, TOPIC) is allowed


def test_operations_are_those_of_the_type() -> None:
    rights = rights_by("allow WRITE t User:alice *", "allow IDEMPOTENT_WRITE t User:alice *")
    assert rights.operations(TOPIC, "t") == {Operation.WRITE, Operation.DESCRIBE}
    assert rights_by("allow ALL t User:alice *").operations(TOPIC, "t") == set(OPERATIONS[TOPIC])


_names = st.text("ab", max_size=3)
_acls = st.builds(
    Acl,
    st.sampled_from([TOPIC, GROUP]),
    _names.map(lambda name: name or "*"),
    st.sampled_from([PatternType.LITERAL, PatternType.PREFIXED]),
    st.sampled_from(["User:alice", "User:ANONYMOUS", "User:*"]),
    st.sampled_from(["*", HOST, "10.0.0.2"]),
    st.sampled_from([Operation.READ, Operation.DESCRIBE, Operation.ALL]),
    st.sampled_from([Permission.DENY, Permission.ALLOW]),
)


@given(
    st.lists(_acls, max_size=6),
    _names,
    st.sampled_from([ALICE, ANONYMOUS]),
    st.sampled_from([HOST, "10.0.0.2"]),
    st.booleans(),
)
@settings(max_examples=300)
def test_index_says_what_the_list_says(acls: list[Acl], name: str, who: Principal, host: str, allow: bool) -> None:
    """The rule, written down as plainly as it can be."""
    for operation in (Operation.READ, Operation.DESCRIBE):
        matching = [
            each
            for each in acls
            if each.resource_type is TOPIC
            and (
                name.startswith(each.resource_name)
                if each.pattern_type is PatternType.PREFIXED
                else each.resource_name in (name, "*")
            )
        ]
        about = [each for each in matching if each.principal in (str(who), "User:*") and each.host in ("*", host)]
        exact = (operation, Operation.ALL)
        denied = any(each.permission is Permission.DENY and each.operation in exact for each in about)
        implied = (Operation.READ,) if operation is Operation.DESCRIBE else ()
        allowed = any(each.permission is Permission.ALLOW and each.operation in (*exact, *implied) for each in about)
        expected = not denied and (allowed if matching else allow)
        made = Authorizer(acls, (), allow_if_no_acl=allow)
        assert made.rights(who, host).allows(operation, TOPIC, name) is expected


def test_decisions_are_kept_in_bounded_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients choose what is asked."""
    monkeypatch.setattr(authorizer, "DECISIONS_MAX", 10)
    monkeypatch.setattr(authorizer, "RIGHTS_MAX", 5)
    made = Authorizer([acl("allow READ t… User:alice *")], (), allow_if_no_acl=False)
    for number in range(100):
        rights = made.rights(ALICE, f"10.0.0.{number}")
        assert rights.allows(Operation.READ, TOPIC, f"t{number}")
        assert not rights.allows(Operation.READ, TOPIC, "x" * 30_000)
        assert not rights.allows_any(Operation.WRITE, TOPIC)
        assert len(made.decided) <= 10
        assert all(name is None or len(name) <= 300 for *_, name in made.decided)
        assert len(made._rights) <= 5


def test_the_empty_name_is_a_name() -> None:
    """Not that of any resource."""
    rights = rights_by("allow WRITE t User:alice *")
    assert rights.allows_any(Operation.WRITE, TOPIC)
    assert not rights.allows(Operation.WRITE, TOPIC, "")


def test_decision_is_fast_with_thousands_of_acls() -> None:
    """A microsecond when it is known; the bounds are wide, for machines that are busy."""
    acls = [acl(f"allow READ topic-{number} User:user-{number} *") for number in range(4000)]
    acls += [acl(f"allow READ {'p' * (number % 40)}-{number}… User:* *") for number in range(1000)]
    acls += [acl(f"allow READ * User:user-{number} *") for number in range(3000)]
    made = Authorizer(acls, (), allow_if_no_acl=False)
    rights = made.rights(Principal("User", "user-7"), HOST)
    fresh_s = known_s = 1.0
    for _ in range(5):
        made.decided.clear()
        began = time.perf_counter()
        for number in range(500):
            rights.allows(Operation.READ, TOPIC, f"topic-{number}")
        fresh_s = min(fresh_s, (time.perf_counter() - began) / 500)
        began = time.perf_counter()
        for _ in range(5000):
            rights.allows(Operation.READ, TOPIC, "topic-7")
        known_s = min(known_s, (time.perf_counter() - began) / 5000)
    assert known_s < 5e-6
    assert fresh_s < 200e-6
