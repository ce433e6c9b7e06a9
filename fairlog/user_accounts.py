"""Users in the cluster's store: all change them here, clients as well as operators and tools that open the files.

Before the first user there is a secret (`fairlog.security.made_up`), so that a user who does not exist can never be
told from those that do.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import structlog

from fairlog.cluster import at_rest
from fairlog.cluster.interface import ClusterStore
from fairlog.live_access import LiveAccess
from fairlog.security.authorizer import Rights
from fairlog.security.made_up import MADE_UP_SALTS, SECRET_BYTES, SECRETS
from fairlog.security.principal import Principal
from fairlog.security.user_changes import Change, Outcome, apply
from fairlog.security.users import USERS, User

log = structlog.get_logger()

Changes = Callable[[Mapping[str, User]], Sequence[Change]]
"""Which changes, of the users as they are. Pure, for it may be asked again."""


class StoreAccounts:
    """The users of a node that runs. Implements `fairlog.admin_http.accounts.Accounts`."""

    def __init__(self, cluster: ClusterStore, access: LiveAccess | None = None) -> None:
        """`access` is the authorizer; None if everyone may do everything."""
        self._cluster = cluster
        self._access = access

    def users(self) -> Mapping[str, User]:
        """By name."""
        return self._cluster.access(USERS)

    def secret(self) -> bytes | None:
        """That of made-up credentials; None if there is none yet."""
        return self._cluster.access(SECRETS).get(MADE_UP_SALTS)

    def rights(self, principal: Principal, address: str) -> Rights | None:
        """What somebody may do from an address; None if everyone may do everything."""
        return None if self._access is None else self._access.rights(principal, address)

    async def change(self, changes: Changes, *, by: str) -> Outcome:
        """Make the changes; what comes of each user. Durable when it returns.

        `by` is who asked, for the log. Raises StorageFailure.
        """
        if not self._cluster.access(SECRETS) and apply(self.users(), changes(self.users())).changed:
            await self._cluster.alter_access(SECRETS, _with_a_secret)
        applying = _Applying(changes)
        await self._cluster.alter_access(USERS, applying.change)
        assert applying.outcome is not None
        _log(applying.outcome, by)
        return applying.outcome


def change_at_rest(directory: Path, node_id: int, changes: Changes) -> Outcome:
    """The same of a cluster store that no process has open, in `directory`. Blocking.

    Raises as `fairlog.cluster.at_rest.alter_access`.
    """
    looked = _Applying(changes)
    at_rest.alter_access(directory, node_id, USERS, looked.look)
    assert looked.outcome is not None
    if not looked.outcome.changed:
        return looked.outcome
    at_rest.alter_access(directory, node_id, SECRETS, _with_a_secret)
    applying = _Applying(changes)
    at_rest.alter_access(directory, node_id, USERS, applying.change)
    assert applying.outcome is not None
    return applying.outcome


def _with_a_secret(known: Mapping[str, bytes]) -> Mapping[str, bytes | None]:
    return {} if known else {MADE_UP_SALTS: secrets.token_bytes(SECRET_BYTES)}


class _Applying:
    """Applies changes, and keeps what has come of them the last time that it was asked."""

    def __init__(self, changes: Changes) -> None:
        self._changes = changes
        self.outcome: Outcome | None = None

    def change(self, users: Mapping[str, User]) -> Mapping[str, User | None]:
        self.outcome = apply(users, self._changes(users))
        return self.outcome.changed

    def look(self, users: Mapping[str, User]) -> Mapping[str, User | None]:
        self.change(users)
        return {}


def _log(outcome: Outcome, by: str) -> None:
    for name, user in outcome.changed.items():
        if user is None:
            log.info("user deleted", user=name, by=by)
        else:
            log.info("user changed", user=name, mechanisms=sorted(each.text for each in user.credentials), by=by)
