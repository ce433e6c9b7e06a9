"""How the commands' clients show who they are: `fairlog --client-properties FILE …`, by librdkafka's names.

    security.protocol   plaintext, ssl, sasl_plaintext or sasl_ssl
    sasl.mechanism(s)   SCRAM-SHA-256, SCRAM-SHA-512 or PLAIN; sasl.username, sasl.password
    ssl.…               ssl.ca.location, ssl.certificate.location, ssl.key.location, ssl.key.password,
                        enable.ssl.certificate.verification, ssl.endpoint.identification.algorithm

confluent-kafka, with which records are written and read, gets all of it. The commands' own clients, of Kafka's protocol
and the native one, understand the names above, and refuse a file with others of sasl.*, security.* and ssl.*. Passwords
are in the file, which is for its owner only, and in no message. An admin listener with TLS (https://HOST:PORT) is asked
in the same way (`fairlog.cli.admin_client`).
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, cast

from fairlog.cli.errors import ClientError
from fairlog.config_values import Address

if TYPE_CHECKING:
    import ssl

_UNDERSTOOD = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
    }
)
_SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
_PLAIN = "PLAIN"

Exchange = Callable[[bytes], bytes]
"""Sends a message of SASL to the broker; answers the broker's."""


class _ScramClient(Protocol):
    def get_client_first(self) -> str: ...

    def set_server_first(self, message: str) -> None: ...

    def get_client_final(self) -> str: ...

    def set_server_final(self, message: str) -> None: ...


@dataclass(frozen=True, slots=True)
class ClientProperties:
    """What the file says."""

    values: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)

    @property
    def protocol(self) -> str:
        return self.values.get("security.protocol", "plaintext").lower()

    @property
    def mechanism(self) -> str | None:
        """The mechanism by which to sign in; None: not at all. Raises ClientError."""
        if self.protocol not in ("sasl_plaintext", "sasl_ssl"):
            return None
        mechanism = self.values.get("sasl.mechanisms", self.values.get("sasl.mechanism", ""))
        if mechanism not in (*_SCRAM, _PLAIN):
            raise ClientError(f"sasl.mechanism is one of {', '.join((*_SCRAM, _PLAIN))} for this command")
        return mechanism

    @property
    def user(self) -> tuple[str, str]:
        """Name and password. Raises ClientError if one is missing."""
        name, password = self.values.get("sasl.username", ""), self.values.get("sasl.password", "")
        if not name or not password:
            raise ClientError("sasl.username and sasl.password are needed to sign in")
        return name, password

    def secured(self, stream: socket.socket, address: Address) -> socket.socket:
        """The connection, with TLS if there is to be any. Raises ClientError."""
        self._require_understood()
        if self.protocol not in ("ssl", "sasl_ssl"):
            return stream
        try:
            return self.tls().wrap_socket(stream, server_hostname=address.host)
        except (OSError, ValueError) as error:
            raise ClientError(f"no TLS with the broker at {address}: {error}") from error

    def sign_in(self, mechanism: str, exchange: Exchange) -> None:
        """Sign in by a SASL exchange. Raises ClientError, also if the broker does not show that it knows the user."""
        name, password = self.user
        if mechanism == _PLAIN:
            exchange(f"\0{name}\0{password}".encode())
            return
        from scramp import ScramClient, ScramException  # pyright: ignore[reportMissingTypeStubs]

        from fairlog.security.scram_messages import prepared

        if prepared(name) != name or prepared(password) != password:
            raise ClientError(
                "sasl.username or sasl.password has characters that SASLprep (RFC 4013) forbids or changes: this "
                "command's client cannot sign in by SCRAM with them"
            )
        client = cast("_ScramClient", ScramClient([mechanism], name, password))
        try:
            client.set_server_first(exchange(client.get_client_first().encode()).decode())
            client.set_server_final(exchange(client.get_client_final().encode()).decode())
        except (ScramException, UnicodeDecodeError) as error:
            raise ClientError("the broker's side of SCRAM is wrong: it does not know the user") from error

    def _require_understood(self) -> None:
        if self.protocol not in ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl"):
            raise ClientError("security.protocol is plaintext, ssl, sasl_plaintext or sasl_ssl")
        for name in self.values:
            if name.startswith(("sasl.", "security.", "ssl.")) and name not in _UNDERSTOOD:
                raise ClientError(f"this command's client does not understand {name} (--client-properties)")

    def tls(self) -> ssl.SSLContext:
        """How servers are known, and what is shown to them. Raises OSError, ClientError."""
        import ssl

        self._require_understood()
        values = self.values
        context = ssl.create_default_context(cafile=values.get("ssl.ca.location"))
        if values.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl.certificate.location" in values:
            context.load_cert_chain(
                values["ssl.certificate.location"], values.get("ssl.key.location"), values.get("ssl.key.password")
            )
        return context


def read(file: Path) -> ClientProperties:
    """NAME=VALUE lines; empty ones, and those that begin with `#`, are passed over. Raises ClientError."""
    try:
        text = file.read_text(encoding="utf-8-sig")  # some editors of Windows begin a file with a mark
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise ClientError(f"{file} (--client-properties) cannot be read: {reason}") from error
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            name, equals, value = line.partition("=")
            if not equals or not name.strip():
                raise ClientError(f"line {number} of {file} (--client-properties) is not NAME=VALUE")
            values[name.strip()] = value.strip()
    return ClientProperties(values)


_CURRENT: ContextVar[ClientProperties] = ContextVar("client properties", default=ClientProperties())  # noqa: B039


def use(file: Path | None) -> None:
    """From now on clients are who the file says; without one they show nothing. Raises ClientError."""
    _CURRENT.set(ClientProperties() if file is None else read(file))


def current() -> ClientProperties:
    """What the command that runs was given."""
    return _CURRENT.get()
