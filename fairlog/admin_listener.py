"""Opens the admin listener of a node, on one machine or in a cluster: up first, and down last.

    address ──▶ sockets, token, files of the console ──▶ the node's app ──▶ served

Here is what both kinds of nodes share. Starlette, hypercorn and prometheus-client take 0.2 s to load, so this module is
imported only where there is an admin listener.
"""

from __future__ import annotations

from contextlib import AsyncExitStack

import structlog
import trio

from fairlog.admin_http import admin_token, assets
from fairlog.admin_http.server import MakesApp, open_admin_server
from fairlog.config import ConfigError, Settings
from fairlog.config_values import Address

log = structlog.get_logger("fairlog.node")


async def open_admin(
    stack: AsyncExitStack, settings: Settings, address: Address, make_app: MakesApp, *, page: str
) -> Address:
    """Serve the node's app, with the files of the console, until `stack` is left; answers where.

    `page` is the console's first one. Raises ConfigError if it cannot listen, StorageFailure.
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
    app = make_app(token=token, assets=await trio.to_thread.run_sync(assets.load, page))
    await stack.enter_async_context(open_admin_server(app, listeners))
    host, port = listeners[0].socket.getsockname()[:2]
    bound = Address(host, port)
    log.info("admin listener", address=str(bound))
    return bound
