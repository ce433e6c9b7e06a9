"""What a node does about its listeners before it opens them: reads certificates, and says who may come in by them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from pathlib import Path

import structlog
import trio

from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address
from fairlog.configured_listeners import inner_listener_of, listeners_of, open_to_everybody
from fairlog.interbroker.ways import ByTls, Plain, Way
from fairlog.security.client_auth import ClientAuth
from fairlog.security.principal_rules import PrincipalRules
from fairlog.security.tls import BadTlsFiles, TlsFiles, TlsListener, TlsListeners
from fairlog.security_settings import TlsSettings

log = structlog.get_logger()

PAGE = "docs/security.md"

ADMIN = "admin"
"""The admin listener, where TLS is by name. The names of other listeners are in upper case."""


async def open_tls(stack: AsyncExitStack, settings: Settings) -> Mapping[str, TlsListener]:
    """The TLS of each listener that has it, by name, also of the admin listener. Until `stack` is left, its files are
    read again when they change.

    Raises ConfigError.
    """
    tls, admin = settings.tls, settings.admin
    asks = {each.name: tls.client_auth.of(each.name) for each in listeners_of(settings) if each.protocol.is_encrypted}
    if admin.listen is not None and admin.protocol.is_encrypted:
        asks[ADMIN] = ClientAuth.NONE  # browsers and scrapers sign in by name and password
    if not asks:
        return {}
    files = _files(tls, tls.client_ca)
    return (await _kept(stack, lambda: TlsListeners.load(files, asks, tls.principal_rules))).by_name


async def open_way(stack: AsyncExitStack, settings: Settings) -> Way:
    """How the node reaches other nodes of its cluster, and is reached. As `open_tls`; raises ConfigError."""
    inner, tls = inner_listener_of(settings), settings.tls
    if inner is None or not inner.protocol.is_encrypted:
        return Plain()
    files, asks = _files(tls, tls.inner_ca or tls.client_ca), {inner.name: ClientAuth.REQUIRED}
    listeners = await _kept(stack, lambda: TlsListeners.load(files, asks, PrincipalRules(), of_nodes=True))
    if settings.security.inner_plaintext:
        log.warning(
            "nodes that have no TLS for other nodes are spoken to without it",
            action="unset security.inner_plaintext when all have it",
            see=PAGE,
        )
    return ByTls(listeners, plaintext=settings.security.inner_plaintext)


def _files(tls: TlsSettings, ca: Path | None) -> TlsFiles:
    assert tls.certificate is not None, "the settings were checked"
    assert tls.key is not None, "the settings were checked"
    return TlsFiles(tls.certificate, tls.key, ca, tls.revoked)


async def _kept(stack: AsyncExitStack, load: Callable[[], TlsListeners]) -> TlsListeners:
    """What is loaded, and loaded again when its files change. Raises ConfigError."""
    try:
        listeners = await trio.to_thread.run_sync(load)
    except BadTlsFiles as error:
        raise ConfigError(str(error)) from error
    looking = await stack.enter_async_context(trio.open_nursery())
    stack.callback(looking.cancel_scope.cancel)
    looking.start_soon(listeners.run)
    return listeners


def warn_if_open(settings: Settings, bound: Mapping[str, Address]) -> None:
    """Say, once, that whoever reaches this machine may do everything, if that is so."""
    if listeners := open_to_everybody(settings, bound):
        log.warning(
            "anyone who reaches this address can read and change everything: it has neither TLS nor sign-in",
            listen=",".join(listeners),
            see=PAGE,
        )
