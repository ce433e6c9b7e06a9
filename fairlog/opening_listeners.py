"""What a node does about its listeners before it opens them: reads certificates, and says who may come in by them."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AsyncExitStack

import structlog
import trio

from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address
from fairlog.configured_listeners import listeners_of, open_to_everybody
from fairlog.security.client_auth import ClientAuth
from fairlog.security.tls import BadTlsFiles, TlsFiles, TlsListener, TlsListeners

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
    assert tls.certificate is not None, "the settings were checked"
    assert tls.key is not None, "the settings were checked"
    files = TlsFiles(tls.certificate, tls.key, tls.client_ca, tls.revoked)
    try:
        listeners = await trio.to_thread.run_sync(TlsListeners.load, files, asks, tls.principal_rules)
    except BadTlsFiles as error:
        raise ConfigError(str(error)) from error
    looking = await stack.enter_async_context(trio.open_nursery())
    stack.callback(looking.cancel_scope.cancel)
    looking.start_soon(listeners.run)
    return listeners.by_name


def warn_if_open(settings: Settings, bound: Mapping[str, Address]) -> None:
    """Say, once, that whoever reaches this machine may do everything, if that is so."""
    if listeners := open_to_everybody(settings, bound):
        log.warning(
            "anyone who reaches this address can read and change everything: it has neither TLS nor sign-in",
            listen=",".join(listeners),
            see=PAGE,
        )
