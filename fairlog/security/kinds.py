"""The tables that the cluster's store keeps for security, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlog.security.access_kind import AccessKind
from fairlog.security.acls import ACLS
from fairlog.security.made_up import SECRETS
from fairlog.security.quotas import QUOTAS
from fairlog.security.users import USERS

_ALL: tuple[AccessKind[Any], ...] = (ACLS, USERS, SECRETS, QUOTAS)

KINDS: Mapping[str, AccessKind[Any]] = {kind.name: kind for kind in _ALL}
