"""Where `fairlog user` finds and changes users: at a broker, an admin listener, or in the files of a node at rest."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from fairlog.cli.errors import ClientError
from fairlog.cli.sentences import in_sentences
from fairlog.config import Settings
from fairlog.config_values import Address
from fairlog.security.users import ITERATIONS_MIN, SALT_BYTES, Credential, ScramMechanism, credential_of, salted

Users = Mapping[str, Mapping[str, int]]
"""By name: the mechanisms, and the iterations of each."""


class Accounts(Protocol):
    """The users of a node, or of a cluster."""

    def users(self) -> Users:
        """Raises ClientError."""
        ...

    def change(self, action: str, name: str, password: str | None) -> None:
        """`action` is add, password or, without one, delete. Raises ClientError."""
        ...


def accounts_of(
    bootstrap: Address | None, data_dir: Path | None = None, admin: str | None = None, config: Path | None = None
) -> Accounts:
    """Those of a broker's cluster, or of the node that has the data directory. Raises ClientError, ConfigError.

    `config` is the node's file with settings.
    """
    if bootstrap is not None:
        from fairlog.cli.users_admin import BrokerAccounts

        return BrokerAccounts(bootstrap)
    from fairlog.config_sources import load

    settings = load(flags={"data_dir": data_dir}, file=config)
    if admin is None and not _runs(settings):
        return _FileAccounts(settings)
    return _AdminAccounts(settings, admin, is_own=admin is None or data_dir is not None)


def _runs(settings: Settings) -> bool:
    from fairlog.data_directory import CLUSTER_STORE, is_of_several_machines
    from fairlog.directory import DirectoryUnusable, is_in_use

    try:
        if is_of_several_machines(settings.data_dir):
            return True
        if not (settings.data_dir / CLUSTER_STORE).exists():
            raise ClientError(
                f"{settings.data_dir} is no data directory of a node: name one with --data-dir, start the node first, "
                "or name a broker with --bootstrap"
            )
        return is_in_use(settings.data_dir)
    except (OSError, DirectoryUnusable) as error:
        raise ClientError(f"cannot look into {settings.data_dir}: {error}; run this as the node's user") from error


@dataclass(frozen=True, slots=True)
class _AdminAccounts:
    """Those of a node that runs."""

    settings: Settings
    admin: str | None
    """Where it is asked, if that is said."""
    is_own: bool
    """Whether the data directory is said to be that of this node."""

    def users(self) -> Users:
        return {each["name"]: each["mechanisms"] for each in self._ask("list", {})["users"]}

    def change(self, action: str, name: str, password: str | None) -> None:
        from fairlog.admin_http.users import change_document

        self._ask("change", change_document(action, name, _hashed(password)))

    def _ask(self, what: str, document: Mapping[str, object]) -> dict[str, Any]:
        from fairlog.cli import admin_client
        from fairlog.cli.admin_token import token_or_user

        admin = admin_client.of_settings(self.settings) if self.admin is None else admin_client.at(self.admin)
        if admin is None:
            raise ClientError(
                "the node runs without an admin listener (admin.listen): stop it for this, or name a broker with "
                "--bootstrap"
            )
        token = token_or_user(self.settings, admin, "a change of users", is_own=self.is_own)
        return admin_client.post(admin, f"/api/users/{what}", document, token)


@dataclass(frozen=True, slots=True)
class _FileAccounts:
    """Those of a node that does not run."""

    settings: Settings

    def users(self) -> Users:
        from fairlog.data_directory import read_cluster_store
        from fairlog.directory import locked_directory

        def read() -> Users:
            with locked_directory(self.settings.data_dir):
                users = read_cluster_store(self.settings.data_dir).users
                return {
                    name: {each.text: kept.iterations for each, kept in users[name].credentials.items()}
                    for name in sorted(users)
                }

        return in_sentences(read)

    def change(self, action: str, name: str, password: str | None) -> None:
        from fairlog.admin_http.users import changes_of
        from fairlog.cli.trail_at_rest import noted
        from fairlog.data_directory import CLUSTER, MANIFEST, RESTORING, read_cluster_store
        from fairlog.directory import locked_directory
        from fairlog.trail import Action
        from fairlog.user_accounts import change_at_rest

        data_dir, credentials = self.settings.data_dir, _hashed(password)

        def change() -> None:
            with locked_directory(data_dir):
                if any((data_dir / note).exists() for note in (MANIFEST, RESTORING)):
                    raise ClientError(f"{data_dir} is a backup: start a node in it first")
                node_id = read_cluster_store(data_dir).node.node_id
                outcome = change_at_rest(data_dir / CLUSTER, node_id, changes_of(action, name, credentials))
            if name in outcome.refused:
                raise ClientError(f"user {name!r}: {outcome.refused[name].value}")

        with noted(self.settings, Action.DELETE_USER if action == "delete" else Action.ALTER_USER, name):
            in_sentences(change)


def _hashed(password: str | None) -> Mapping[ScramMechanism, Credential]:
    """What is kept of a password, for each mechanism; of none nothing."""
    if password is None:
        return {}
    found: dict[ScramMechanism, Credential] = {}
    for mechanism in ScramMechanism:
        salt = os.urandom(SALT_BYTES)
        salted_password = salted(mechanism, password, salt, ITERATIONS_MIN)
        found[mechanism] = credential_of(mechanism, salted_password, salt, ITERATIONS_MIN)
    return found
