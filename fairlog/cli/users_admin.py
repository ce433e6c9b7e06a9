"""The users of a cluster, through any of its brokers (KIP-554)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from kio.schema.alter_user_scram_credentials.v0.request import (
    AlterUserScramCredentialsRequest,
    ScramCredentialDeletion,
    ScramCredentialUpsertion,
)
from kio.schema.alter_user_scram_credentials.v0.response import AlterUserScramCredentialsResponse
from kio.schema.describe_user_scram_credentials.v0.request import DescribeUserScramCredentialsRequest
from kio.schema.describe_user_scram_credentials.v0.response import DescribeUserScramCredentialsResponse
from kio.static.primitive import i8, i32

from fairlog.cli.client import check, connect
from fairlog.cli.errors import ClientError
from fairlog.config_values import Address
from fairlog.security.users import ITERATIONS_MIN, SALT_BYTES, ScramMechanism, salted


@dataclass(frozen=True, slots=True)
class BrokerAccounts:
    """Implements `fairlog.cli.accounts.Accounts`."""

    bootstrap: Address

    def users(self) -> Mapping[str, Mapping[str, int]]:
        """By name: the mechanisms, and the iterations of each. Raises ClientError."""
        with connect(self.bootstrap) as connection:
            answer = connection.request(
                DescribeUserScramCredentialsRequest(users=None), DescribeUserScramCredentialsResponse
            )
        check("listing users", answer.error_code, answer.error_message)
        return {
            each.user: {
                ScramMechanism(info.mechanism).text: info.iterations
                for info in each.credential_infos
                if info.mechanism in _NUMBERS
            }
            for each in answer.results
        }

    def change(self, action: str, name: str, password: str | None) -> None:
        """`action` is add, password or, without one, delete. Raises ClientError.

        A broker is not asked for "only if there is none": that is looked up before.
        """
        known = self.users().get(name)
        if known is None and action != "add":
            raise ClientError(f"there is no user {name!r}")
        if known is not None and action == "add":
            raise ClientError(f"there is a user {name!r} already")
        deletions = [
            ScramCredentialDeletion(name=name, mechanism=i8(mechanism.value))
            for mechanism in ScramMechanism
            if password is None and mechanism.text in (known or {})
        ]
        upsertions = [] if password is None else [_upsertion(name, mechanism, password) for mechanism in ScramMechanism]
        with connect(self.bootstrap) as connection:
            answer = connection.request(
                AlterUserScramCredentialsRequest(deletions=tuple(deletions), upsertions=tuple(upsertions)),
                AlterUserScramCredentialsResponse,
            )
        for each in answer.results:
            check(f"changing user {name!r}", each.error_code, each.error_message)


_NUMBERS = {mechanism.value for mechanism in ScramMechanism}


def _upsertion(name: str, mechanism: ScramMechanism, password: str) -> ScramCredentialUpsertion:
    salt = os.urandom(SALT_BYTES)
    return ScramCredentialUpsertion(
        name=name,
        mechanism=i8(mechanism.value),
        iterations=i32(ITERATIONS_MIN),
        salt=salt,
        salted_password=salted(mechanism, password, salt, ITERATIONS_MIN),
    )
