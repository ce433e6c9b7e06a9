"""How users are changed: what Kafka's AlterUserScramCredentials may do, and `fairlog user`. Pure.

Each user's changes are made together, or refused with one reason; other users' changes go on. The rules and their
codes are Kafka's. Ours alone: a name that SASLprep would change is refused, so that nobody has two spellings, and a
salt has 12 to 255 bytes (Kafka takes any).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import lru_cache

from fairlog.security.scram_messages import prepared
from fairlog.security.users import (
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    NAME_CHARACTERS_MAX,
    SALT_BYTES_MAX,
    SALT_BYTES_MIN,
    USERS_MAX,
    Credential,
    ScramMechanism,
    User,
    is_short,
)


class WhyNot(Enum):
    """Why a user is not changed."""

    UNKNOWN_MECHANISM = "there is no such SCRAM mechanism"
    NO_SUCH_CREDENTIAL = "the user has no such credential"
    NO_SUCH_USER = "there is no such user"
    EXISTS = "there is such a user already"
    TWICE = "a credential is changed twice by one request"
    BAD_NAME = (
        f"a user's name has 1 to {NAME_CHARACTERS_MAX} characters, none of which SASLprep (RFC 4013) would forbid or "
        "change"
    )
    BAD_ITERATIONS = f"iterations are {ITERATIONS_MIN} to {ITERATIONS_MAX}"
    BAD_SALT = f"a salt has {SALT_BYTES_MIN} to {SALT_BYTES_MAX} bytes"
    TOO_MANY_USERS = f"there are {USERS_MAX} users already: delete some, or let clients sign in with tokens"
    BAD_KEYS = "the keys, or the salted password, are of another length than the mechanism's hash"


@dataclass(frozen=True, slots=True)
class Change:
    """One credential of one user."""

    name: str
    mechanism: ScramMechanism | None
    """None: one that there is not."""
    credential: Credential | None
    """What it becomes; None: it goes."""
    must: Callable[[User | None], WhyNot | None] = field(default=lambda _: None)
    """What else has to hold of the user as it is."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What comes of changes."""

    changed: Mapping[str, User | None]
    """By name; None for a user who has no credential any more, and goes."""
    refused: Mapping[str, WhyNot]


def apply(users: Mapping[str, User], changes: Sequence[Change]) -> Outcome:
    """What the changes make of the table."""
    changed: dict[str, User | None] = {}
    refused: dict[str, WhyNot] = {}
    by_name: dict[str, list[Change]] = {}
    for change in changes:
        by_name.setdefault(change.name, []).append(change)
    count = len(users)
    for name, of_user in by_name.items():
        outcome = _applied(users.get(name), of_user)
        if not isinstance(outcome, WhyNot) and name not in users and count >= USERS_MAX:
            outcome = WhyNot.TOO_MANY_USERS
        if isinstance(outcome, WhyNot):
            refused[name] = outcome
        else:
            changed[name] = User(outcome) if outcome else None
            count += bool(outcome) - (name in users)
    return Outcome(changed, refused)


def deletion(users: Mapping[str, User], name: str) -> Sequence[Change]:
    """What deletes a user, whatever credentials it has."""
    user = users.get(name)
    if user is None:
        return [Change(name, ScramMechanism.SCRAM_SHA_512, None, lambda _: WhyNot.NO_SUCH_USER)]
    return [Change(name, mechanism, None) for mechanism in user.credentials]


def must_be_new(user: User | None) -> WhyNot | None:
    """For `Change.must`."""
    return None if user is None else WhyNot.EXISTS


def must_be_known(user: User | None) -> WhyNot | None:
    """For `Change.must`."""
    return WhyNot.NO_SUCH_USER if user is None else None


def _applied(user: User | None, changes: Sequence[Change]) -> Mapping[ScramMechanism, Credential] | WhyNot:
    credentials = dict(user.credentials) if user is not None else {}
    if not _distinct(change.mechanism for change in changes):
        return WhyNot.TWICE
    for change in changes:
        why_not = change.must(user) or _why_not(change, credentials)
        if why_not is not None:
            return why_not
        assert change.mechanism is not None
        if change.credential is None:
            del credentials[change.mechanism]
        else:
            credentials[change.mechanism] = change.credential
    return credentials


def _distinct(items: Iterable[object]) -> bool:
    seen = list(items)
    return len(set(seen)) == len(seen)


def _why_not(change: Change, credentials: Collection[ScramMechanism]) -> WhyNot | None:
    mechanism, credential = change.mechanism, change.credential
    if mechanism is None:
        return WhyNot.UNKNOWN_MECHANISM
    if credential is None:
        return None if mechanism in credentials else WhyNot.NO_SUCH_CREDENTIAL
    if not is_name(change.name):
        return WhyNot.BAD_NAME
    if not ITERATIONS_MIN <= credential.iterations <= ITERATIONS_MAX:
        return WhyNot.BAD_ITERATIONS
    if not SALT_BYTES_MIN <= len(credential.salt) <= SALT_BYTES_MAX:
        return WhyNot.BAD_SALT
    if not len(credential.stored_key) == len(credential.server_key) == mechanism.key_bytes:
        return WhyNot.BAD_KEYS
    return None


def is_name(name: str) -> bool:
    """Whether a user may be called so."""
    return bool(name) and is_short(name) and _is_prepared(name)


@lru_cache(maxsize=2048)
def _is_prepared(name: str) -> bool:
    """Kept, because a change is applied several times; of short names."""
    return prepared(name) == name
