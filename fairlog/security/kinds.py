"""The tables that the cluster's store keeps for security, by name. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fairlog.security.access_kind import AccessKind
from fairlog.security.acls import ACLS

KINDS: Mapping[str, AccessKind[Any]] = {kind.name: kind for kind in (ACLS,)}
