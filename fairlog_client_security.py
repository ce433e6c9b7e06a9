"""How a client shows a broker who it is, and asks the same of it: settings by the names that Kafka's clients have.

    what the user has set ──by_librdkafkas_names()──▶ librdkafka's names ──for_librdkafka()──▶ confluent-kafka
                                                              └──ClientSecurity.of()──▶ our own clients

How it works. `fairlog` commands and `format("fairlog")` write and read records by confluent-kafka, and ask for the rest
over connections of their own, so one set of settings goes two ways. Names are librdkafka's; those of the Java clients
that say the same, in a form that needs no Java (PEM files, the login modules of SCRAM and PLAIN), are translated first.
`ClientSecurity` checks the settings, makes the connection one of TLS, and signs in by a SASL exchange, whichever
protocol carries it. What our own clients cannot do is refused by name, so that no half of a client goes unprotected.

A single module outside of the packages, because both the node's commands and Spark's executors need it, and neither
may need the other. It stands on the standard library; SCRAM needs scramp, which is loaded when somebody signs in so.

Invariant: no message has a value of a setting in it but a path of a file, a mechanism or a protocol, and no `repr` has
any.

What it does not do: Kerberos, tokens that are fetched over the network, Java's key stores, delegation tokens.
"""

from __future__ import annotations

import base64
import binascii
import json
import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol, cast
from urllib.parse import unquote, urlsplit

if TYPE_CHECKING:
    import socket
    import ssl

PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")
_WITH_TLS = ("ssl", "sasl_ssl")
SCRAM = ("SCRAM-SHA-256", "SCRAM-SHA-512")
PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"
MECHANISMS = (*SCRAM, PLAIN, OAUTHBEARER)

PREFIXES = ("sasl.", "security.", "ssl.")
"""Of names that are about security. All of these are understood, or refused."""

_TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
_UNDERSTOOD = frozenset(
    {
        "security.protocol",
        "sasl.mechanism",
        "sasl.mechanisms",
        "sasl.username",
        "sasl.password",
        _TOKEN_URL,
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "enable.ssl.certificate.verification",
        "ssl.endpoint.identification.algorithm",
    }
)
_OF_TLS = frozenset({"ssl.ca.location", "ssl.certificate.location", "ssl.key.location", "ssl.key.password"})
_LOGIN_MODULES = {
    "org.apache.kafka.common.security.scram.ScramLoginModule": SCRAM,
    "org.apache.kafka.common.security.plain.PlainLoginModule": (PLAIN,),
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule": (OAUTHBEARER,),
}
_QUOTED_OR_BARE = r'"(?:[^"\\]|\\["\\])*"|[^\s;"\\]+'
_JAAS = re.compile(rf"\s*([\w.$]+)\s+required((?:\s+\w+\s*=\s*(?:{_QUOTED_OR_BARE}))*)\s*;\s*")
_JAAS_OPTION = re.compile(rf"\s+(\w+)\s*=\s*({_QUOTED_OR_BARE})")
_JAAS_FORM = '`org.apache.kafka.common.security.scram.ScramLoginModule required username="…" password="…";`'
_PEM_FILES = {"truststore": ("ssl.ca.location",), "keystore": ("ssl.certificate.location", "ssl.key.location")}
"""What a file of Java's becomes; its key store, as PEM, has the key and the certificates in one file."""

Exchange = Callable[[bytes], bytes]
"""Sends a message of SASL to the broker; answers the broker's."""


class SecurityRefused(Exception):
    """Settings that cannot be used, or a broker that does not show who it is. One sentence, without a secret."""


class _ScramClient(Protocol):
    def get_client_first(self) -> str: ...

    def set_server_first(self, message: str) -> None: ...

    def get_client_final(self) -> str: ...

    def set_server_final(self, message: str) -> None: ...


def by_librdkafkas_names(settings: Mapping[str, str], *, prefix: str = "") -> dict[str, str]:
    """The settings with librdkafka's names in place of the Java clients', those that are not about security as well.

    `prefix` is what names begin with where the user has written them. Raises SecurityRefused for a value in a form that
    only Java reads.
    """
    named = {name: value for name, value in settings.items() if not _is_javas(name)}

    def refuse_if_named(name: str, by: str) -> None:
        if name in named:
            raise SecurityRefused(f"{prefix}{by} says the same as {prefix}{name}: give one of them")

    def set_one(name: str, value: str, by: str) -> None:
        refuse_if_named(name, by)
        named[name] = value

    if "sasl.mechanisms" in named:
        refuse_if_named("sasl.mechanism", "sasl.mechanisms")
    if (jaas := settings.get("sasl.jaas.config")) is not None:
        mechanism = named.get("sasl.mechanisms", named.get("sasl.mechanism", ""))
        for name, value in _logged_in(jaas, mechanism, prefix).items():
            set_one(name, value, "sasl.jaas.config")
    for store, ours in _PEM_FILES.items():
        location, kind = settings.get(f"ssl.{store}.location"), settings.get(f"ssl.{store}.type", "")
        if kind and kind.upper() != "PEM":
            raise SecurityRefused(f"{prefix}ssl.{store}.type can only be PEM: Java's key stores need Java")
        if location is not None:
            if not kind:
                raise SecurityRefused(
                    f"{prefix}ssl.{store}.location is one of Java's key stores unless {prefix}ssl.{store}.type is PEM: "
                    f"give a PEM file, and say so, or {' and '.join(prefix + name for name in ours)}"
                )
            for name in ours:
                set_one(name, location, f"ssl.{store}.location")
    if "ssl.endpoint.identification.algorithm" in named and not named["ssl.endpoint.identification.algorithm"]:
        named["ssl.endpoint.identification.algorithm"] = "none"  # Java's word for it is the empty one
    return named


def refuse_idle(settings: Mapping[str, str], *, prefix: str = "") -> None:
    """Raises SecurityRefused if a setting, by librdkafka's name, would not be used for want of a protocol that asks it.

    Kafka's clients pass over it: whoever forgets `security.protocol` is nobody, without TLS, and is not told.
    """
    protocol = settings.get("security.protocol")
    for name in settings:
        if protocol is None and (name.startswith("sasl.") or name in _OF_TLS):
            why = "is not"
        elif protocol is not None and name in _OF_TLS and protocol.lower() not in _WITH_TLS:
            why = f"is {protocol}, without TLS"
        else:
            continue
        raise SecurityRefused(f"{prefix}{name} is set, and {prefix}security.protocol {why}: it would not be used")


def _is_javas(name: str) -> bool:
    return name == "sasl.jaas.config" or re.fullmatch(r"ssl\.(trust|key)store\.(location|type)", name) is not None


def _logged_in(jaas: str, mechanism: str, prefix: str) -> dict[str, str]:
    """What a login module of Java's is told, by librdkafka's names."""

    def refuse(why: str) -> NoReturn:
        raise SecurityRefused(f"{prefix}sasl.jaas.config {why}; it has the form {_JAAS_FORM}")

    matched = _JAAS.fullmatch(jaas)
    if matched is None:
        refuse("cannot be read")
    mechanisms = _LOGIN_MODULES.get(matched[1])
    if mechanisms is None:
        refuse("names a login module that is not understood")
    if mechanism not in mechanisms:
        refuse(f"has the login module of {' or '.join(mechanisms)}, which {prefix}sasl.mechanism does not name")
    options = _JAAS_OPTION.findall(matched[2])
    wanted = {"username", "password"} if mechanism != OAUTHBEARER else set[str]()
    if len(options) != len(wanted) or {name for name, _ in options} != wanted:
        refuse(f"has other options than {' and '.join(sorted(wanted, reverse=True)) or 'none'}")
    return {
        f"sasl.{name}": re.sub(r'\\(["\\])', r"\1", value[1:-1]) if value.startswith('"') else value
        for name, value in options
    }


def for_librdkafka(settings: Mapping[str, str]) -> dict[str, Any]:
    """These settings, which have librdkafka's names, as confluent-kafka takes them: a file of a token is a callback."""
    taken: dict[str, Any] = dict(settings)
    if settings.get(_TOKEN_URL, "").startswith("file:"):
        file = _file_of(taken.pop(_TOKEN_URL))

        def token(_config: str) -> tuple[str, float]:
            return _token_in(file)

        taken["oauth_cb"] = token
    return taken


@dataclass(frozen=True, slots=True)
class ClientSecurity:
    """What a client of ours shows, and asks for. It can be compared, hashed and pickled."""

    _settings: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    prefix: str = field(default="", compare=False, repr=False)
    """What the settings' names begin with where the user has written them."""

    @classmethod
    def of(cls, settings: Mapping[str, str], *, prefix: str = "") -> ClientSecurity:
        """What the settings, which have librdkafka's names, say about security. Raises SecurityRefused."""
        ours = {name: value for name, value in settings.items() if name.startswith(PREFIXES) or name in _UNDERSTOOD}
        for name in sorted(ours):
            if name not in _UNDERSTOOD:
                raise SecurityRefused(f"{prefix}{name} is not understood by Fairlog's own client")
        made = cls(tuple(sorted(ours.items())), prefix)
        made._check()
        return made

    def _check(self) -> None:
        if self.protocol not in PROTOCOLS:
            raise SecurityRefused(f"{self.prefix}security.protocol is one of {', '.join(PROTOCOLS)}")
        refuse_idle(self.settings, prefix=self.prefix)
        if "ssl.key.location" in self.settings and "ssl.certificate.location" not in self.settings:
            certificate = f"{self.prefix}ssl.certificate.location"
            raise SecurityRefused(f"{self.prefix}ssl.key.location is the key of a certificate: give {certificate}, too")
        mechanism = self.mechanism
        if mechanism is None:
            return
        if mechanism not in MECHANISMS:
            raise SecurityRefused(f"{self.prefix}sasl.mechanism is one of {', '.join(MECHANISMS)}")
        if mechanism == OAUTHBEARER:
            if not self.settings.get(_TOKEN_URL, "").startswith("file:"):
                raise SecurityRefused(
                    f"{self.prefix}{_TOKEN_URL} is needed for OAUTHBEARER, a URL of a file that has the token: file:///…"
                )
        elif not self.settings.get("sasl.username") or not self.settings.get("sasl.password"):
            raise SecurityRefused(f"{self.prefix}sasl.username and {self.prefix}sasl.password are needed to sign in")

    @property
    def settings(self) -> Mapping[str, str]:
        """What was set, by librdkafka's names."""
        return dict(self._settings)

    @property
    def protocol(self) -> str:
        return self.settings.get("security.protocol", "plaintext").lower()

    @property
    def has_tls(self) -> bool:
        return self.protocol in _WITH_TLS

    @property
    def mechanism(self) -> str | None:
        """The mechanism by which to sign in; None: not at all."""
        if self.protocol not in ("sasl_plaintext", "sasl_ssl"):
            return None
        return self.settings.get("sasl.mechanisms", self.settings.get("sasl.mechanism", ""))

    def secured(self, stream: socket.socket, host: str) -> socket.socket:
        """The connection, with TLS if there is to be any; closed with it if this raises.

        Raises SecurityRefused for files that cannot be used and a certificate that does not fit, OSError for a
        connection that ends.
        """
        if not self.has_tls:
            return stream
        import ssl

        with ExitStack() as ending:
            ending.callback(stream.close)
            try:
                secured = self.tls().wrap_socket(stream, server_hostname=host)
            except ssl.SSLCertVerificationError as error:
                raise SecurityRefused(f"the broker's certificate is not taken: {error.verify_message}") from error
            except ValueError as error:
                raise SecurityRefused(f"no certificate can be for {host!r}: {error}") from error
            ending.pop_all()
            return secured

    def sign_in(self, exchange: Exchange) -> None:
        """Sign in by a SASL exchange, by `mechanism`.

        Raises SecurityRefused if the broker does not show that it knows the user, and what `exchange` raises.
        """
        mechanism = self.mechanism
        assert mechanism is not None, "nobody is to sign in"
        if mechanism == OAUTHBEARER:
            token, _ = _token_in(_file_of(self.settings[_TOKEN_URL]))
            if exchange(f"n,,\1auth=Bearer {token}\1\1".encode()):
                exchange(b"\1")  # RFC 7628: a refusal is told, and comes when that was read
                raise SecurityRefused("the broker does not take the token")
            return
        name, password = self.settings["sasl.username"], self.settings["sasl.password"]
        if mechanism == PLAIN:
            exchange(f"\0{name}\0{password}".encode())
        else:
            self._sign_in_by_scram(mechanism, name, password, exchange)

    def _sign_in_by_scram(self, mechanism: str, name: str, password: str, exchange: Exchange) -> None:
        try:
            from scramp import ScramClient, ScramException  # pyright: ignore[reportMissingTypeStubs]
        except ImportError as error:
            raise SecurityRefused(f"signing in by {mechanism} needs the package scramp: pip install scramp") from error
        if not _is_prepared(name) or not _is_prepared(password):
            raise SecurityRefused(
                f"{self.prefix}sasl.username or {self.prefix}sasl.password has characters that SASLprep (RFC 4013) "
                "forbids or changes: Fairlog's own client cannot sign in by SCRAM with them"
            )
        client = cast("_ScramClient", ScramClient([mechanism], name, password))
        try:
            client.set_server_first(exchange(client.get_client_first().encode()).decode())
            client.set_server_final(exchange(client.get_client_final().encode()).decode())
        except (ScramException, UnicodeDecodeError):
            raise SecurityRefused("the broker's side of SCRAM is wrong: it does not know the user") from None

    def tls(self) -> ssl.SSLContext:
        """How the broker is known, and what is shown to it. Raises SecurityRefused for files that cannot be used."""
        import ssl

        values = self.settings
        try:
            context = ssl.create_default_context(cafile=values.get("ssl.ca.location"))
        except OSError as error:
            self._refuse_file("ssl.ca.location", error)
        if values.get("ssl.endpoint.identification.algorithm", "https").lower() == "none":
            context.check_hostname = False
        if values.get("enable.ssl.certificate.verification", "true").lower() == "false":
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        if "ssl.certificate.location" in values:
            # An empty password, for OpenSSL would ask for one at the terminal.
            password = values.get("ssl.key.password", "")
            try:
                context.load_cert_chain(values["ssl.certificate.location"], values.get("ssl.key.location"), password)
            except OSError as error:
                self._refuse_file("ssl.certificate.location", error)
        return context

    def _refuse_file(self, name: str, error: OSError) -> NoReturn:
        where = f"{self.prefix}{name}, {self.settings[name]}," if name in self.settings else "the system's list of CAs"
        raise SecurityRefused(f"{where} cannot be used: {error.strerror or error}") from error


def _is_prepared(text: str) -> bool:
    """Whether SASLprep leaves it as it is: clients differ in whether they ask it, and hash different passwords then."""
    from scramp import core  # pyright: ignore[reportMissingTypeStubs]

    try:
        return core.saslprep(text) == text  # pyright: ignore[reportUnknownMemberType]
    except core.ScramException:
        return False


def _file_of(url: str) -> Path:
    return Path(unquote(urlsplit(url).path))


def _token_in(file: Path) -> tuple[str, float]:
    """A JWT and the time at which it expires, in seconds since 1970: the broker checks it, so it is only looked at.

    Raises SecurityRefused.
    """
    try:
        token = file.read_text(encoding="ascii").strip()
        claims: Any = json.loads(base64.urlsafe_b64decode(token.split(".")[1] + "=="))
        return token, float(claims["exp"])
    except OSError as error:
        raise SecurityRefused(f"the token cannot be read from {file}: {error.strerror or error}") from error
    except (ValueError, LookupError, TypeError, RecursionError, binascii.Error):
        raise SecurityRefused(f"{file} has no token (a JWT with a time at which it expires) in it") from None
