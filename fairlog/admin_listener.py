"""Opens the admin listener of a node, on one machine or in a cluster: up first, and down last.

    address ──▶ sockets, TLS, token, files of the console ──▶ the node's app ──▶ served

Here is what both kinds of nodes share. Starlette, hypercorn and prometheus-client take 0.2 s to load, so this module is
imported only where there is an admin listener.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import structlog
import trio

from fairlog.admin_http import admin_token, assets
from fairlog.admin_http.server import MakesApp, open_admin_server
from fairlog.admin_http.statistics import AdminStatistics
from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address
from fairlog.configured_listeners import is_loopback
from fairlog.opening_listeners import PAGE
from fairlog.security.listeners import SecurityProtocol
from fairlog.security.tls import TlsListener

log = structlog.get_logger("fairlog.node")


async def open_admin(
    stack: AsyncExitStack,
    settings: Settings,
    address: Address,
    make_app: MakesApp,
    tls: TlsListener | None,
    statistics: AdminStatistics,
    *,
    page: str,
) -> Address:
    """Serve the node's app, with the files of the console, until `stack` is left; answers where.

    `tls` is the listener's, if it has TLS. `page` is the console's first one. Raises ConfigError if it cannot listen,
    StorageFailure.
    """
    try:
        listeners = await trio.open_tcp_listeners(address.port, host=address.host)
    except OSError as error:
        raise ConfigError(
            f"cannot listen on {address} for the admin listener: {error.strerror or error}; "
            "choose another HOST:PORT, or off, with admin.listen (--admin)"
        ) from error
    for listener in listeners:
        stack.push_async_callback(listener.aclose)
    if settings.admin.token is None:
        token = await trio.to_thread.run_sync(admin_token.load_or_make, settings.data_dir)
    else:
        token = settings.admin.token.text
    app = make_app(
        token=token,
        asks=settings.admin.protocol.asks_who_it_is,
        statistics=statistics,
        assets=await trio.to_thread.run_sync(assets.load, page),
    )
    await stack.enter_async_context(open_admin_server(app, listeners, tls, statistics))
    host, port = listeners[0].socket.getsockname()[:2]
    bound = Address(host, port)
    log.info("admin listener", address=str(bound))
    if settings.shard == 0:
        _warn_if_open(settings, bound)
    return bound


def _warn_if_open(settings: Settings, bound: Address) -> None:
    """Say, once, that whoever reaches this machine sees everything, if that is so."""
    if settings.admin.protocol is SecurityProtocol.PLAINTEXT and not is_loopback(bound.host):
        log.warning(
            "anyone who reaches the admin listener can see everything but records: it has neither TLS nor sign-in",
            listen=str(bound),
            see=PAGE,
        )
