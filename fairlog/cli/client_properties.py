"""How the commands' clients show who they are: `fairlog --client-properties FILE …`.

The file has librdkafka's names, or those of Kafka's Java clients that say the same (`fairlog_client_security.py` has
all of them). confluent-kafka, with which records are written and read, gets all that is in it. The commands' own
clients, of Kafka's protocol and the native one, refuse what they do not understand of sasl.*, security.* and ssl.*.
Passwords are in the file, which is for its owner only, and in no message. An admin listener with TLS
(https://HOST:PORT) is asked in the same way (`fairlog.cli.admin_client`).
"""

from __future__ import annotations

import re
import socket
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fairlog.cli.errors import ClientError
from fairlog.config_values import Address
from fairlog_client_security import (
    ClientSecurity,
    Exchange,
    SecurityRefused,
    by_librdkafkas_names,
    for_librdkafka,
    refuse_idle,
)

if TYPE_CHECKING:
    import ssl


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What the file says, by librdkafka's names."""

    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def security(self) -> ClientSecurity:
        """What our own clients show and ask for. Raises ClientError."""
        with _as_client_error():
            return ClientSecurity.of(self.values)

    @property
    def for_librdkafka(self) -> Mapping[str, Any]:
        """All of it, as confluent-kafka takes it."""
        return for_librdkafka(self.values)

    @property
    def mechanism(self) -> str | None:
        """The mechanism by which to sign in; None: not at all. Raises ClientError."""
        return self.security.mechanism

    @property
    def user(self) -> tuple[str, str]:
        """Name and password, where `mechanism` has them."""
        return self.values["sasl.username"], self.values["sasl.password"]

    def tls(self) -> ssl.SSLContext:
        """How servers are known, and what is shown to them. Raises ClientError."""
        with _as_client_error():
            return self.security.tls()

    def secured(self, stream: socket.socket, address: Address) -> socket.socket:
        """The connection, with TLS if there is to be any. Raises ClientError."""
        security = self.security
        try:
            return security.secured(stream, address.host)
        except (OSError, SecurityRefused) as error:
            raise ClientError(f"no TLS with the broker at {address}: {error}") from error

    def sign_in(self, exchange: Exchange) -> None:
        """Sign in by a SASL exchange. Raises ClientError, also if the broker does not show that it knows the user."""
        security = self.security
        with _as_client_error():
            security.sign_in(exchange)


@contextmanager
def _as_client_error() -> Generator[None]:
    try:
        yield
    except SecurityRefused as refused:
        raise ClientError(f"{refused} (--client-properties)") from refused


def read(file: Path) -> ClientProperties:
    """Lines of NAME=VALUE or NAME: VALUE. Empty ones, and those that begin with `#` or `!`, are passed over.

    These are the simple forms of Java's properties. Raises ClientError.
    """
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ClientError(f"{file} (--client-properties) cannot be read: {reason}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith(("#", "!")):
            name, *rest = re.split("[=:]", line, maxsplit=1)
            if not rest or not name.strip():
                raise ClientError(f"line {number} of {file} (--client-properties) is not NAME=VALUE")
            values[name.strip()] = rest[0].strip()
    with _as_client_error():
        named = by_librdkafkas_names(values)
        refuse_idle(named)
    return ClientProperties(named)


_CURRENT: ContextVar[ClientProperties] = ContextVar("client properties", default=ClientProperties())  # noqa: B039


def use(file: Path | None) -> None:
    """From now on clients are who the file says; without one they show nothing. Raises ClientError."""
    _CURRENT.set(ClientProperties() if file is None else read(file))


def current() -> ClientProperties:
    """What the command that runs was given."""
    return _CURRENT.get()
