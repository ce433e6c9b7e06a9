"""TLS on a broker's listeners: the handshake, whom a client's certificate shows, and certificates that change.

    TlsListeners, one for each broker ──▶ TlsListener, one for each listener with TLS ──▶ an SSLContext, replaced
       │                                      └─ secured(stream) ─▶ handshake ─▶ TlsStream, Principal
       ├─ connecting: the context of who connects to another node (`fairlog.interbroker.ways`), replaced with them
       └─ run: looks at the files ─ changed, and at rest ─▶ contexts of all listeners anew, or a line why not

TLS 1.2 and 1.3 are spoken, and nothing older, without renegotiation and compression. A handshake has `HANDSHAKE_S` in
all, however little of it comes at a time, and OpenSSL bounds the memory that it takes. One that fails is told to the
client by TLS's own alert before the connection is closed.

The files are looked at every `LOOK_S`. They are read when they have changed, and are the same at the next look:
certificate and key are two files, and nobody replaces both at once. Those that cannot be used change nothing, and a log
line says why. Connections that are open stay open, also those of clients whose certificates are revoked by then, as
with Kafka. A new connection goes by the new files, also if it would resume an old handshake: each `SSLContext` has a
cache and ticket keys of its own. Under the same files TLS 1.2 resumes handshakes, for OpenSSL's two hours, and Python
has no switch for it; TLS 1.3 does only where no certificates are asked for (no tickets are given otherwise).
"""

from __future__ import annotations

import os
import socket
import ssl
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import structlog
import trio

from fairlog.security.client_auth import ClientAuth
from fairlog.security.principal import ANONYMOUS, USER, Principal
from fairlog.security.principal_rules import NoRuleMatches, PrincipalRules
from fairlog.security.subject import BadCertificate, subject_of_untrusted
from fairlog.security.tls_stream import TlsStream

log = structlog.get_logger()

HANDSHAKE_S = 10.0
"""Kafka's clients give a connection up after as long (`socket.connection.setup.timeout.ms`)."""

LOOK_S = 2.0
"""Between two looks at the files."""

_ALERT_S = 1.0
"""For a client to read why it is refused."""

_CLIENTS_VERSION = ssl.TLSVersion.TLSv1_2
_NODES_VERSION = ssl.TLSVersion.TLSv1_3
"""At least."""

_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


class BadTlsFiles(Exception):
    """Certificate, key, CAs or revocation list cannot be used. The message is one sentence, and names the file."""


class HandshakeFailed(Exception):
    """A client was refused in the handshake, or after it. The message says why; of the client's bytes it has
    the beginning of its certificate's subject at most.
    """


class HungUp(HandshakeFailed):
    """The client has closed the connection within the handshake, and has not said why."""


@dataclass(frozen=True, slots=True)
class TlsFiles:
    """What TLS is made of; all are PEM."""

    certificate: Path
    """The node's own, and those between it and the CA."""
    key: Path
    client_ca: Path | None = None
    """What clients' certificates have to come from."""
    revoked: Path | None = None
    """Revocation lists of these CAs."""

    @property
    def all(self) -> Sequence[Path]:
        """Those that there are."""
        return [each for each in (self.certificate, self.key, self.client_ca, self.revoked) if each is not None]


class TlsListener:
    """The handshakes of one listener."""

    def __init__(self, context: ssl.SSLContext, rules: PrincipalRules) -> None:
        self.context = context
        """Of the next handshake."""
        self._rules = rules
        self.failed = 0
        """Handshakes, so far, but for those in which the other side just went."""

    async def secured(self, stream: trio.SocketStream, *, signs_in: bool) -> tuple[TlsStream, Principal] | None:
        """Do the handshake. Answers the stream inside, and whom the client's certificate shows, who is ANONYMOUS if it
        signs in afterwards; None if the client closes before it has sent anything, as who only looks whether a port is
        open.

        Raises HandshakeFailed; then, and if it is cancelled, the caller closes `stream`.
        """
        try:
            return await self._secured(stream, signs_in=signs_in)
        except HungUp:
            raise
        except HandshakeFailed:
            self.failed += 1
            raise

    async def _secured(self, stream: trio.SocketStream, *, signs_in: bool) -> tuple[TlsStream, Principal] | None:
        secret = TlsStream(stream, self.context, server_side=True)
        with trio.move_on_after(HANDSHAKE_S):
            if not await _has_begun(stream):
                return None
            failure = await _done(secret)
            if failure is None:
                return secret, ANONYMOUS if signs_in else self._principal(secret)
            await send_alert(secret)
            raise failure
        raise HandshakeFailed(f"it took more than {HANDSHAKE_S:.0f} s")

    def _principal(self, secret: TlsStream) -> Principal:
        certificate = secret.certificate
        if certificate is None:
            return ANONYMOUS
        try:
            return Principal(USER, self._rules.name_of(subject_of_untrusted(certificate)))
        except (NoRuleMatches, BadCertificate) as error:
            raise HandshakeFailed(str(error)) from error


class TlsListeners:
    """Those of a broker. Make them with `load`."""

    def __init__(
        self,
        files: TlsFiles,
        asks: Mapping[str, ClientAuth],
        rules: PrincipalRules,
        seen: object,
        *,
        of_nodes: bool = False,
    ) -> None:
        self._files = files
        self._asks = asks
        self._of_nodes = of_nodes
        self._seen = seen
        """The files that the contexts are made of, or that were found to be bad."""
        contexts = _Contexts.of(files, asks, of_nodes)
        self.by_name = {name: TlsListener(context, rules) for name, context in contexts.by_name.items()}
        self.connecting = contexts.connecting
        """Of the next connection to another node; None if these listeners are not for nodes."""

    @classmethod
    def load(
        cls, files: TlsFiles, asks: Mapping[str, ClientAuth], rules: PrincipalRules, *, of_nodes: bool = False
    ) -> TlsListeners:
        """Read the files for these listeners, by name, with what each asks clients for. Blocks. Raises BadTlsFiles.

        With `of_nodes` they are for other nodes, which this one also connects to: in TLS 1.3, with the same files.
        """
        return cls(files, asks, rules, _look(files), of_nodes=of_nodes)

    async def run(self) -> None:
        """Read the files again when they have changed; until cancelled."""
        last = self._seen
        while True:
            await trio.sleep(LOOK_S)
            last, before = await trio.to_thread.run_sync(_look, self._files), last
            if last != self._seen and last == before:
                self._seen = last
                await self._reload()

    async def _reload(self) -> None:
        try:
            contexts = await trio.to_thread.run_sync(_Contexts.of, self._files, self._asks, self._of_nodes)
        except BadTlsFiles as error:
            log.error("changed TLS files are not used", reason=str(error), action="the earlier ones stay")  # noqa: TRY400
            return
        for name, context in contexts.by_name.items():
            self.by_name[name].context = context
        self.connecting = contexts.connecting
        log.info("changed TLS files are used from now on", files=list(map(str, self._files.all)))


async def _has_begun(stream: trio.SocketStream) -> bool:
    """Wait for the client's first byte, and leave it there; whether there was one."""
    try:
        return bool(await stream.socket.recv(1, socket.MSG_PEEK))
    except OSError:
        return False


async def _done(secret: TlsStream) -> HandshakeFailed | None:
    """Do the handshake; why it has failed, None if it has not."""
    try:
        await secret.do_handshake()
    except trio.BrokenResourceError as error:
        return _failure(error.__cause__)
    return None


async def send_alert(secret: TlsStream) -> None:
    """Tell the other side why it is refused, if it still listens."""
    await say_last(secret.transport_stream, secret.unsent())


async def say_last(stream: trio.SocketStream, alert: bytes) -> None:
    """Send this before the connection is closed. What the other side has sent is read: it would lose the alert."""
    with trio.move_on_after(_ALERT_S):
        try:
            await stream.send_all(alert)
            await stream.send_eof()
            while await stream.receive_some():
                pass
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass


def _failure(error: BaseException | None) -> HandshakeFailed:
    if isinstance(error, ssl.SSLCertVerificationError):
        return HandshakeFailed(f"the client's certificate is refused: {error.verify_message}")
    if isinstance(error, ssl.SSLEOFError) or not isinstance(error, ssl.SSLError):
        return HungUp("the client has closed the connection")
    words = (error.reason or "TLS error").replace("_", " ").lower()
    if error.reason in ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"):
        return HandshakeFailed(f"{words}: the client does not speak TLS")
    return HandshakeFailed(words)


def _look(files: TlsFiles) -> object:
    """What changes when the files do. Blocks."""
    seen: list[object] = []
    for path in files.all:
        try:
            found = path.stat()
        except OSError as error:
            seen.append(error.errno)
        else:
            seen.append((found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_mode, found.st_uid))
    return tuple(seen)


class _Contexts(NamedTuple):
    """What is made of the files."""

    by_name: Mapping[str, ssl.SSLContext]
    """Of listeners."""
    connecting: ssl.SSLContext | None

    @classmethod
    def of(cls, files: TlsFiles, asks: Mapping[str, ClientAuth], of_nodes: bool) -> _Contexts:
        """Blocks. Raises BadTlsFiles."""
        for path in files.all:
            try:
                with path.open("rb"):
                    pass
            except OSError as error:
                raise BadTlsFiles(f"cannot read {path}: {error.strerror or error}") from error
        _require_private(files.key)
        if not of_nodes:
            return cls({name: _context(files, auth, _CLIENTS_VERSION) for name, auth in asks.items()}, None)
        by_name = {name: _context(files, auth, _NODES_VERSION) for name, auth in asks.items()}
        return cls(by_name, _connecting_context(files))


def _require_private(key: Path) -> None:
    """As PostgreSQL has it: 0600, or 0640 if it is root's, who gives it to a service by its group."""
    try:
        found = key.stat()
    except OSError as error:  # gone since it was opened
        raise BadTlsFiles(f"cannot read {key}: {error.strerror or error}") from error
    allowed = 0o640 if found.st_uid == 0 else 0o600
    if stat.S_IMODE(found.st_mode) & 0o777 & ~allowed:
        raise BadTlsFiles(
            f"the private key {key} has permissions {stat.S_IMODE(found.st_mode):04o}, so others may read it: "
            f"chmod {allowed:o} {key}"
        )


def _context(files: TlsFiles, auth: ClientAuth, version: ssl.TLSVersion) -> ssl.SSLContext:
    """Of a listener that speaks this version at least."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = version
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    _show_certificate(context, files)
    if auth is not ClientAuth.NONE:
        assert files.client_ca is not None, "the settings were checked"
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
        context.verify_mode = _VERIFY_MODES[auth]
        _require_certificates(context, files.client_ca, files.revoked)
    return context


def _connecting_context(files: TlsFiles) -> ssl.SSLContext:
    """Shows the node's certificate, as the accepting side asks for it, and checks that the other one's is good, and for
    the host that was connected to: by its alternative names, as RFC 9525 has it, and not by its common name.
    """
    assert files.client_ca is not None, "the settings were checked"
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = _NODES_VERSION
    context.hostname_checks_common_name = False
    _show_certificate(context, files)
    _require_certificates(context, files.client_ca, files.revoked)
    return context


def _show_certificate(context: ssl.SSLContext, files: TlsFiles) -> None:
    try:
        context.load_cert_chain(files.certificate, files.key, password=lambda: _refuse_password(files.key))
    except (ssl.SSLError, OSError) as error:
        what = getattr(error, "reason", None) or "no certificate and private key in PEM"
        raise BadTlsFiles(
            f"the certificate {files.certificate} and the private key {files.key} cannot be used: "
            f"{what.replace('_', ' ').lower() if what.isupper() else what}"
        ) from error


def _refuse_password(key: Path) -> str:
    raise BadTlsFiles(f"the private key {key} is encrypted: write it without a password, readable by its owner only")


def _require_certificates(context: ssl.SSLContext, client_ca: Path, revoked: Path | None) -> None:
    _add(context, client_ca, "certificate")
    known = context.cert_store_stats()["x509"]
    if revoked is not None:
        _add(context, revoked, "revocation list")
        stats = context.cert_store_stats()
        if stats["x509"] != known or not stats["crl"]:
            raise BadTlsFiles(f"{revoked} has something else than revocation lists (X509 CRL) in it")
        context.verify_flags |= ssl.VerifyFlags.VERIFY_CRL_CHECK_LEAF


def _add(context: ssl.SSLContext, path: Path, what: str) -> None:
    try:
        context.load_verify_locations(os.fspath(path))
    except (ssl.SSLError, OSError) as error:
        raise BadTlsFiles(f"{path} has no {what} in PEM that can be read") from error
