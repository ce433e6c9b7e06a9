"""`fairlog serve`: reads the settings and runs a node until it is told to stop. If it cannot, one sentence says why.

With several processes (`--processes`), or several shards, the one that the user starts is a supervisor
(`fairlog.supervisor`). It starts each of them as it was started itself, with a word in the environment that says which
one it is, and tells it which shards it serves.

How it works. The data directory is locked for as long as the node runs. The node itself (`fairlog.node.serve`) is
started in a nursery and reports when it accepts clients; then a line on stdout announces it.
SIGTERM or SIGINT cancels the node, which is its request to stop: it finishes what is in flight within
`stop_grace_ms`, shielded, and returns. A second request does not wait: the process ends as if killed, which loses
nothing that was answered. One of several processes leaves this to its supervisor.

Crash tests name a failpoint in the environment (`journal/failpoints.py`); it is armed here, before anything is opened.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Generator, Sequence
from contextlib import aclosing, contextmanager
from pathlib import Path
from typing import Annotated, Protocol

import structlog
import trio
import typer

from fairlog import telemetry, trail
from fairlog.cli.errors import ClientError
from fairlog.cluster.embedded import StoreMismatch
from fairlog.config import AdminSettings, ConfigError, Ready, Settings
from fairlog.config_sources import load
from fairlog.config_values import Address, Untyped
from fairlog.configured_listeners import is_wildcard
from fairlog.directory import DirectoryInUse, DirectoryUnusable, locked_directory
from fairlog.exception_groups import leaves
from fairlog.huge_pages import keep_heap_in_huge_pages
from fairlog.stop_requests import stop_requests
from fairlog.supervisor.addresses import settings_of_shard
from fairlog.supervisor.assignment import process_in
from fairlog.supervisor.child import run_process
from fairlog.supervisor.supervising import NotStarted, shards_of, supervise
from fairlog_types import CorruptStorage, StorageFailure
from journal import failpoints
from stream.engine import StreamCutOff

EXAMPLES = """
\b
Examples:
  fairlog serve --data-dir data --listen 127.0.0.1:9092
  fairlog serve --listen 0.0.0.0:9092 --advertised broker.example:9092
  fairlog serve --admin off
  fairlog serve --processes auto --listen 127.0.0.1:9092
  fairlog serve --journals kafka://k1:9092,k2:9092,k3:9092 --cluster orders --listen 0.0.0.0:9192
  FAIRLOG_LOG_LEVEL=debug fairlog serve --config fairlog.toml
\b
docs/configuration.md describes all settings.
"""


class NodeStopped(ClientError):
    """The node could not start, or could not go on. The message is one sentence."""


_SENTENCES = (
    NodeStopped,
    NotStarted,
    ConfigError,
    DirectoryInUse,
    DirectoryUnusable,
    StoreMismatch,
    CorruptStorage,
    StorageFailure,
    StreamCutOff,
)
"""Errors whose message is already the sentence for the user."""


class ServeNode(Protocol):
    """`fairlog.node.serve`: serves until cancelled, and reports its addresses once it accepts clients."""

    async def __call__(self, settings: Settings, *, task_status: trio.TaskStatus[Ready]) -> None: ...


def serve(
    data_dir: Annotated[
        Path | None, typer.Option(metavar="DIR", help="The directory for all data.", show_default="fairlog-data")
    ] = None,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT",
            help="Where to accept clients; with port 0 the system picks a port.",
            show_default="127.0.0.1:9092",
        ),
    ] = None,
    advertised: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="What clients are told to connect to.", show_default="the listen address"
        ),
    ] = None,
    admin: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Where the console and metrics are, or off.", show_default="127.0.0.1:9644"
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option(metavar="FILE.toml", help="A file with settings.")] = None,
    processes: Annotated[
        str | None,
        typer.Option(
            metavar="N|auto",
            help="Serve with so many processes, or one for each core. The first start makes a shard for each.",
            show_default="1",
        ),
    ] = None,
    journals: Annotated[
        str | None,
        typer.Option(
            metavar="files|kafka://HOST:PORT,…",
            help="Where journals are kept: in the data directory, or on the Kafka cluster with these brokers.",
            show_default="files",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="With kafka://…: the cluster that this node belongs to."),
    ] = None,
) -> None:
    """Run a node until SIGTERM or SIGINT. Flags override the environment (FAIRLOG_…), which overrides the file."""
    flags = {
        "data_dir": data_dir,
        "listen": listen,
        "advertised": advertised,
        "admin.listen": admin,
        "processes": None if processes is None else Untyped(processes),
        "journal.engine": journals,
        "cluster.name": cluster,
    }
    settings = load(flags=flags, file=config)
    process = process_in(os.environ)
    try:
        failpoints.arm(os.environ)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    telemetry.set_up(settings.log)
    try:
        trail.set_up(settings.trail.file)
    except trail.TrailUnusable as error:
        raise ConfigError(str(error)) from error
    if settings.authorizer.enable and settings.trail.file is None and settings.log.level in ("warning", "error"):
        structlog.get_logger().warning("the audit trail is not written: set trail.file, or log.level to info")
    if process is None and (settings.processes > 1 or shards_of(settings) > 1):
        run_processes(settings, [sys.executable, *sys.orig_argv[1:], "--processes", str(settings.processes)])
        return
    gc.disable()  # nothing that an import makes is garbage
    # The other commands need none of the broker.
    if settings.journal.engine is None:
        from fairlog.node import serve as serve_node
    else:
        from fairlog.cluster_node.node import serve as serve_node

    # All of it stays: a collection that looked through it would hold the event loop up for some 40 ms.
    gc.freeze()
    gc.enable()
    keep_heap_in_huge_pages()
    if process is None:
        run(settings_of_shard(settings, 0, 1), serve_node)
    else:
        run_as_process(settings, serve_node)


def run(settings: Settings, serve_node: ServeNode) -> None:
    """Run a node until it is told to stop. Raises NodeStopped with a sentence if it cannot run."""
    with _sentences(), locked_directory(settings.data_dir):
        trio.run(_until_told_to_stop, settings, serve_node)


def run_processes(settings: Settings, command: Sequence[str]) -> None:
    """Run a node of several processes, each started by `command`. Raises NodeStopped; exits with 1 after a bad end."""
    with _sentences(), locked_directory(settings.data_dir):
        if not supervise(settings, command, _prepare, os.environ):
            sys.exit(1)


def run_as_process(settings: Settings, serve_node: ServeNode) -> None:
    """Be one of several processes of a node, as the supervisor says. Raises NodeStopped."""

    async def serve_shard(of_shard: Settings, tell: Callable[[str], None]) -> None:
        await _serve_and_announce(of_shard, serve_node, tell)

    with _sentences():
        run_process(settings, serve_shard, _sentences)


def _prepare(settings: Settings) -> None:
    """Make, once, what all processes share: they would make it at the same time, and each another."""
    from fairlog.preparation import prepare

    prepare(settings)
    if settings.admin.listen is not None and settings.admin.token is None:
        from fairlog.admin_http import admin_token

        admin_token.load_or_make(settings.data_dir)


@contextmanager
def _sentences(prefix: str = "") -> Generator[None]:
    """Make one NodeStopped of the errors that are sentences. Others pass."""
    try:
        yield
    except (ExceptionGroup, *_SENTENCES) as error:
        errors = list(leaves(error))
        if all(isinstance(each, _SENTENCES) for each in errors):
            raise NodeStopped(prefix + "; ".join(dict.fromkeys(map(str, errors)))) from error
        raise


async def _until_told_to_stop(settings: Settings, serve_node: ServeNode) -> None:
    node_scope = trio.CancelScope()
    with trio.open_signal_receiver(signal.SIGTERM, signal.SIGINT) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, signals, node_scope)
            with node_scope:
                await _serve_and_announce(settings, serve_node, _write)
            nursery.cancel_scope.cancel()


async def _stop_on_signal(signals: AsyncIterator[int], node_scope: trio.CancelScope) -> None:
    async with aclosing(stop_requests(signals)) as requests:
        async for _ in requests:
            if node_scope.cancel_called:
                os._exit(1)
            node_scope.cancel()


async def _serve_and_announce(settings: Settings, serve_node: ServeNode, announce: Callable[[str], None]) -> None:
    async with trio.open_nursery() as nursery:
        try:
            ready = await nursery.start(serve_node, settings)
        except* OSError as group:
            error = next(leaves(group))
            assert isinstance(error, OSError)
            # What bind(2) refuses has no file name; what a file refuses has one.
            what = f"listen on {settings.listen}" if error.filename is None else f"use {error.filename}"
            raise NodeStopped(f"cannot {what}: {error.strerror or error}") from error
        lines = [f"fairlog ready on {ready.advertised}\n"]
        if ready.admin is not None:
            lines.append(f"fairlog console on {console_url(settings.admin, ready.admin)}\n")
        announce("".join(lines))


def console_url(settings: AdminSettings, listens: Address) -> str:
    """Where people find the console of a listener at this address: by its first name, if it is on every interface."""
    scheme = "https" if settings.protocol.is_encrypted else "http"
    if is_wildcard(listens.host) and settings.hosts:
        listens = Address(settings.hosts[0], listens.port)
    return f"{scheme}://{listens}/"


def _write(announcement: str) -> None:
    sys.stdout.write(announcement)
    sys.stdout.flush()
