"""DescribeUserScramCredentials and AlterUserScramCredentials, with Kafka's codes; and what is kept of users."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import trio

from fairlog.cluster import records
from fairlog.inspection.cluster_stores import show_record
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.handlers import api_51_alter_user_scram_credentials as api
from fairlog.security.made_up import SECRETS, made_up
from fairlog.security.user_changes import is_name
from fairlog.security.users import (
    USERS,
    Credential,
    ScramMechanism,
    User,
    credential_of,
    is_password_of,
    salted,
)
from fairlog_types import StorageFailure
from tests.kafka.asking import Asker
from tests.kafka.in_memory import Memory
from tests.security.signing_in import admin

NONE, STORAGE, UNSUPPORTED = 0, 56, 33
POLICY_VIOLATION = 44
NOT_FOUND, DUPLICATE, UNACCEPTABLE = 91, 92, 93
SHA_256, SHA_512 = ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512
DELETION = admin.AlterUserScramCredentialsRequest.ScramCredentialDeletion
UPSERTION = admin.AlterUserScramCredentialsRequest.ScramCredentialUpsertion
USER_NAME = admin.DescribeUserScramCredentialsRequest.UserName
SALT = b"s" * 32


@pytest.fixture
def memory() -> Memory:
    return Memory()


@pytest.fixture
def ask(memory: Memory) -> Asker:
    return Asker(memory)


def upsertion(name: str = "alice", mechanism: int = 1, **changes: object) -> object:
    fields = {"iterations": 4096, "salt": SALT, "salted_password": b"p" * (64 if mechanism == 2 else 32), **changes}
    return UPSERTION(name=name, mechanism=mechanism, **fields)


async def alter(ask: Asker, *, deletions: list[object] = (), upsertions: list[object] = ()) -> dict[str, int]:
    answer = await ask(51, 0, deletions=list(deletions), upsertions=list(upsertions))
    return {each.user: each.error_code for each in answer.results}


async def describe(ask: Asker, *names: str) -> dict[str, object]:
    answer = await ask(50, 0, users=[USER_NAME(name=name) for name in names] or None)
    assert answer.error_code == NONE
    return {
        each.user: each.error_code or [(info.mechanism, info.iterations) for info in each.credential_infos]
        for each in answer.results
    }


async def test_users_are_made_described_changed_and_deleted(ask, memory):
    assert await alter(ask, upsertions=[upsertion(), upsertion(mechanism=2, iterations=16384), upsertion("bob")]) == {
        "alice": NONE,
        "bob": NONE,
    }
    assert await describe(ask) == {"alice": [(1, 4096), (2, 16384)], "bob": [(1, 4096)]}
    assert await describe(ask, "bob", "nobody") == {"bob": [(1, 4096)], "nobody": NOT_FOUND}
    assert await describe(ask, "bob", "bob") == {"bob": DUPLICATE}
    assert await alter(ask, deletions=[DELETION(name="alice", mechanism=1)], upsertions=[upsertion("bob")]) == {
        "alice": NONE,
        "bob": NONE,
    }
    assert await alter(ask, deletions=[DELETION(name="alice", mechanism=2)]) == {"alice": NONE}
    assert list(memory.cluster.access(USERS)) == ["bob"]
    assert len(memory.cluster.access(SECRETS)) == 1


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"mechanism": 0}, UNSUPPORTED),
        ({"mechanism": 3}, UNSUPPORTED),
        ({"iterations": 4095}, UNACCEPTABLE),
        ({"iterations": 16385}, UNACCEPTABLE),
        ({"salt": b""}, UNACCEPTABLE),
        ({"salt": bytes(256)}, UNACCEPTABLE),
        ({"salted_password": b"p" * 31}, UNACCEPTABLE),
        ({"name": ""}, UNACCEPTABLE),
        ({"name": "a" * 256}, UNACCEPTABLE),
        ({"name": "a\x00b"}, UNACCEPTABLE),
        ({"name": "\u2168"}, UNACCEPTABLE),
    ],
)
async def test_bad_credential_is_refused_and_others_in_the_request_are_not(ask, memory, changes, code):
    name = changes.get("name", "alice")
    assert await alter(ask, upsertions=[upsertion(**changes), upsertion("bob")]) == {name: code, "bob": NONE}
    assert list(memory.cluster.access(USERS)) == ["bob"]


async def test_user_is_changed_as_a_whole_or_not_at_all(ask, memory):
    twice = [upsertion(), upsertion(mechanism=2), upsertion(iterations=5000)]
    assert await alter(ask, upsertions=twice) == {"alice": DUPLICATE}
    assert await alter(ask, deletions=[DELETION(name="alice", mechanism=1)], upsertions=[upsertion(mechanism=2)]) == {
        "alice": NOT_FOUND
    }
    assert memory.cluster.access(USERS) == {}
    assert memory.cluster.access(SECRETS) == {}  # what changes nothing leaves the store's format alone


async def test_too_many_changes_are_refused_together_and_others_are_served_meanwhile(ask, memory):
    """And a name is normalized once, however often its change is applied."""
    names = [f"{number:04}" + "\u00e4" * 250 for number in range(api.CHANGES_MAX)]
    assert set((await alter(ask, upsertions=[*map(upsertion, names), upsertion()])).values()) == {POLICY_VIOLATION}
    deletions = [DELETION(name=name, mechanism=1) for name in names]
    assert set((await alter(ask, deletions=[*deletions, deletions[0]])).values()) == {POLICY_VIOLATION}
    assert memory.cluster.access(USERS) == {}
    steps, is_done = 0, False

    async def watch() -> None:
        nonlocal steps
        while not is_done:
            steps += 1
            await trio.lowlevel.checkpoint()

    with patch("fairlog.security.user_changes.prepared", side_effect=lambda name: name) as prepared:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch)
            assert set((await alter(ask, upsertions=[*map(upsertion, names)])).values()) == {NONE}
            is_done = True
    assert prepared.call_count == len(names)
    assert steps > 2 * len(names) // 64


async def test_nothing_is_computed_for_who_may_not(ask, memory, monkeypatch):
    monkeypatch.setattr(api, "denied", lambda *_: ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    monkeypatch.setattr(api, "credential_of", None)
    assert await alter(ask, upsertions=[upsertion(), upsertion("bob")]) == {"alice": 31, "bob": 31}


async def test_users_have_a_maximum(ask, memory, monkeypatch):
    """Those that there are may be changed, and another may come when one goes."""
    monkeypatch.setattr("fairlog.security.user_changes.USERS_MAX", 2)
    assert await alter(ask, upsertions=[upsertion(name) for name in ("a", "b", "c")]) == {
        "a": NONE,
        "b": NONE,
        "c": POLICY_VIOLATION,
    }
    assert await alter(ask, upsertions=[upsertion("a"), upsertion("a", 2)]) == {"a": NONE}
    assert await alter(ask, deletions=[DELETION(name="b", mechanism=1)], upsertions=[upsertion("c")]) == {
        "b": NONE,
        "c": NONE,
    }
    assert list(memory.cluster.access(USERS)) == ["a", "c"]


async def test_disk_that_refuses_is_told(ask, memory):
    memory.cluster.failure = StorageFailure("the disk is full")
    assert await alter(ask, upsertions=[upsertion()]) == {"alice": STORAGE}


def test_password_is_told_from_others_by_what_is_kept():
    """RFC 7677's example: the keys of `pencil` with this salt and 4096 iterations."""
    import base64

    salt = base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ==")
    kept = credential_of(SHA_256, salted(SHA_256, "pencil", salt, 4096), salt, 4096)
    assert base64.b64encode(kept.stored_key) == b"WG5d8oPm3OtcPnkdi4Uo7BkeZkBFzpcXkuLmtbsT4qY="
    assert base64.b64encode(kept.server_key) == b"wfPLwcE6nTWhTAmQ7tl2KeoiWGPlZqQxSrmfPwDl2dU="
    assert is_password_of(SHA_256, kept, "pencil")
    assert not is_password_of(SHA_256, kept, "Pencil")


def test_user_reads_back_and_is_not_shown():
    user = User({SHA_512: made_up(bytes(32), SHA_512, "x"), SHA_256: made_up(bytes(32), SHA_256, "x")})
    assert USERS.decode("alice", USERS.encode(user)) == user
    assert "salt" not in repr(user)
    assert "key" not in repr(user)
    line = show_record(records.access_key("user", "alice"), records.encode_access(USERS, "alice", user))
    assert (line.what, dict(line.fields)) == ("user", {"name": "alice"})


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        [[1, 4096, SALT, b"k" * 32]],
        [[3, 4096, SALT, b"k" * 32, b"k" * 32]],
        [[1, 4095, SALT, b"k" * 32, b"k" * 32]],
        [[1, 4096, b"", b"k" * 32, b"k" * 32]],
        [[2, 4096, SALT, b"k" * 32, b"k" * 32]],
        [[1, 4096, SALT, b"k" * 32, b"k" * 32]] * 2,
    ],
)
def test_damaged_user_is_refused_and_not_quoted(value):
    with pytest.raises(ValueError, match=r"a (user|credential) ") as refusal:
        USERS.decode("alice", value)
    assert "kkk" not in str(refusal.value)


def test_made_up_credentials_differ_by_name_mechanism_and_secret():
    found = {
        made_up(secret, mechanism, name).salt
        for secret in (bytes(32), b"s" * 32)
        for mechanism in ScramMechanism
        for name in ("a", "b")
    }
    assert len(found) == 8
    assert isinstance(made_up(bytes(32), SHA_256, "a"), Credential)


def test_names_have_one_spelling():
    assert is_name("alice")
    assert is_name("Ünal=,x")
    assert not any(map(is_name, ("", "a" * 256, "a\n", "\u00aa", "\ue000", "a\u00ad")))
