"""A node with all its locks, with users and what they may do: for the tests of whoever comes in."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
    ScramCredentialInfo,
    ScramMechanism,
    UserScramCredentialUpsertion,
)

from tests.security.conftest import Node

WAIT_S = 15
ADMIN = "admin"
MODULES = {
    "SCRAM-SHA-256": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "SCRAM-SHA-512": "org.apache.kafka.common.security.scram.ScramLoginModule",
    "PLAIN": "org.apache.kafka.common.security.plain.PlainLoginModule",
}


class LockedNode:
    """Started; its one listener is SASL_SSL, its super user `admin`."""

    def __init__(self, directory: Path, *, processes: int = 1, **settings: str) -> None:
        self._directory = directory
        self.node = Node(
            directory,
            "SASL_SSL://127.0.0.1:0",
            processes=processes,
            FAIRLOG_AUTHORIZER_ENABLE="true",
            FAIRLOG_AUTHORIZER_SUPER_USERS=f"User:{ADMIN}",
            FAIRLOG_ADMIN_LISTEN="127.0.0.1:0",
            FAIRLOG_GROUPS_MIN_SESSION_TIMEOUT_MS="500",
            **settings,
        )
        self.certificate = self.node.authority.certificate
        assert self.node.process.console is not None
        at = self.node.process.console[len("http://") : -1]
        added = ["user", "add", ADMIN, "--password-file", "-", "--admin", at]
        subprocess.run(
            [sys.executable, "-m", "fairlog.cli", *added, "--data-dir", str(self.node.process.data_dir)],
            input=f"{self.password(ADMIN)}\n",
            text=True,
            check=True,
            capture_output=True,
        )
        self.admin = AdminClient(self.librdkafka(ADMIN))

    @property
    def addresses(self) -> list[str]:
        """HOST:PORT of each process."""
        return [each["SASL_SSL"] for each in self.node.listeners]

    @property
    def address(self) -> str:
        return self.addresses[0]

    def password(self, user: str) -> str:
        return f"secret-of-{user}"

    def librdkafka(
        self, user: str, *, mechanism: str = "SCRAM-SHA-512", password: str | None = None
    ) -> dict[str, object]:
        """A client's settings by librdkafka's names."""
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.username": user,
            "sasl.password": self.password(user) if password is None else password,
            "ssl.ca.location": str(self.certificate),
            "log_level": 0,
        }

    def java(self, user: str, *, mechanism: str = "SCRAM-SHA-512", password: str | None = None) -> dict[str, str]:
        """A client's settings by the names of the Java clients."""
        password = self.password(user) if password is None else password
        return {
            "security.protocol": "SASL_SSL",
            "sasl.mechanism": mechanism,
            "sasl.jaas.config": f'{MODULES[mechanism]} required username="{user}" password="{password}";',
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self.certificate),
        }

    def file(self, user: str, **changed: str) -> Path:
        """The same as a file for `fairlog --client-properties` and Kafka's own tools."""
        file = self._directory / f"{user}.properties"
        file.write_text("".join(f"{key}={value}\n" for key, value in self.java(user, **changed).items()), "utf-8")
        return file

    def add(self, *users: str) -> None:
        made = [
            UserScramCredentialUpsertion(user, ScramCredentialInfo(mechanism, 4096), self.password(user).encode())
            for user in users
            for mechanism in (ScramMechanism.SCRAM_SHA_256, ScramMechanism.SCRAM_SHA_512)
        ]
        for future in self.admin.alter_user_scram_credentials(made).values():
            future.result(WAIT_S)

    def allow(
        self, user: str, kind: ResourceType, name: str, *operations: AclOperation, prefixed: bool = False
    ) -> None:
        pattern = ResourcePatternType.PREFIXED if prefixed else ResourcePatternType.LITERAL
        bindings = [
            AclBinding(kind, name, pattern, f"User:{user}", "*", operation, AclPermissionType.ALLOW)
            for operation in operations
        ]
        for future in self.admin.create_acls(bindings).values():
            future.result(WAIT_S)


@contextmanager
def locked_node(directory: Path, **more: str) -> Iterator[LockedNode]:
    """Stopped at the end, and its log has no password then."""
    locked = LockedNode(directory, **more)  # type: ignore[arg-type]
    yield locked
    assert locked.node.process.stop() == 0, locked.node.process.log_tail()
    assert "secret-of-" not in locked.node.log
