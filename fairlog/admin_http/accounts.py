"""The users of the node, or of its cluster, as the admin listener sees them: who they are, and what they may do."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from fairlog.security.authorizer import Rights
from fairlog.security.principal import Principal
from fairlog.security.user_changes import Change, Outcome
from fairlog.security.users import User

Changes = Callable[[Mapping[str, User]], Sequence[Change]]


class Accounts(Protocol):
    """`fairlog.user_accounts` has the real ones."""

    def users(self) -> Mapping[str, User]: ...

    def secret(self) -> bytes | None:
        """That of made-up credentials (`fairlog.security.made_up`); None if there is none yet."""
        ...

    def rights(self, principal: Principal, address: str) -> Rights | None:
        """What somebody may do from an address; None if everyone may do everything."""
        ...

    async def change(self, changes: Changes, *, by: str) -> Outcome: ...
