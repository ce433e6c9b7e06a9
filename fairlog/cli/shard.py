"""`fairlog shard list|add|move`: which process of a node serves which shard; one more shard; another process for one.

While the node runs its supervisor is asked, and carries the change out. Otherwise the change is written, for the next
start. Both are the affair of whoever has the data directory, on the node's machine.

In a cluster of several machines it is nodes instead of processes, and any node is asked (`cluster_shards`): with
--admin, or if the data directory is that of one of its nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from fairlog.cli.admin_client import AdminListener, at, of_settings
from fairlog.cli.errors import ClientError, Interrupted
from fairlog.cli.node_options import Config, DataDir
from fairlog.cli.output import say, show_json, show_table
from fairlog.cli.sentences import in_sentences, what_to_do
from fairlog.config import PROCESSES_MAX, Settings

app = typer.Typer(
    name="shard",
    help="See which process, or which node of a cluster, serves which shard; add shards, and move them.",
    epilog="\b\nExample:\n  fairlog shard list",
    no_args_is_help=True,
)

Admin = Annotated[
    str | None,
    typer.Option(
        metavar="[https://]HOST:PORT",
        help="The admin listener of any node of a cluster of several machines.",
        show_default="if the data directory is that of such a node, its own",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
_AUTO = "auto"
_LATER = " from the next start on"
_COLUMNS = ("shard", "broker", "listens on", "process", "process id", "state")


@app.command("list", epilog="\b\nExample:\n  fairlog shard list --json")
def list_all(data_dir: DataDir = None, admin: Admin = None, config: Config = None, json: Json = False) -> None:
    """List the shards of a node and the processes that serve them, or those of a cluster and its nodes."""
    from fairlog.cli import cluster_shards

    settings = _load(data_dir, config)
    if (of_cluster := _admin_of_cluster(settings, admin)) is not None:
        is_own = admin is None or data_dir is not None
        cluster_shards.show(of_cluster, settings, is_own=is_own, json=json)
        return
    shards = _shards(_checked_directory(settings))
    if json:
        show_json(shards)
    else:
        show_table(_COLUMNS, [tuple(shard.values()) for shard in shards], empty="there are no shards yet")


@app.command("add", epilog="\b\nExamples:\n  fairlog shard add\n  fairlog shard add --to 2")
def add(
    to: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="PROCESS", help="The process that serves it.", show_default="the one with the fewest shards"
        ),
    ] = None,
    data_dir: DataDir = None,
    config: Config = None,
) -> None:
    """Add a shard to a node. Topics that are created later are spread over it as well.

    In a running node all shards are halted for a moment. What is open stays open.
    """
    from fairlog.supervisor.machine import fewest

    settings = _load(data_dir, config)
    if _is_of_cluster(settings):
        raise ClientError(
            f"{settings.data_dir} is that of a node of several machines: how many shards their cluster has was fixed "
            "at its first start"
        )
    _checked_directory(settings)

    def with_one_more(processes: Sequence[int]) -> Sequence[int]:
        # Whoever starts the node may know of more of them: by a flag, or by its file.
        known = max(settings.processes, max(processes) + 1)
        return [*processes, fewest(processes, known) if to is None else _checked(to)]

    when = "" if _change(settings, {"ask": "add", "process": to}, with_one_more) else _LATER
    shard = _shards(settings)[-1]
    say(f"shard {shard['shard']} was added: broker {shard['broker']}, served by process {shard['process']}{when}")


def _read_to(text: str) -> str:
    if text != _AUTO and not (text.isascii() and text.isdecimal()):
        raise typer.BadParameter(f"{text!r} is neither a number nor {_AUTO}")
    return text


@app.command("move", epilog="\b\nExamples:\n  fairlog shard move 1 --to 3\n  fairlog shard move 1 --to auto")
def move(
    shard: Annotated[int, typer.Argument(min=0, metavar="SHARD", help="The shard's number.")],
    to: Annotated[
        str,
        typer.Option(
            callback=_read_to,
            metavar="NUMBER",
            help="The process that is to serve it. In a cluster the node, or auto: whichever is planned.",
        ),
    ],
    data_dir: DataDir = None,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Have another process serve a shard, or another node of a cluster.

    The shard is halted for a moment. What is open stays open. In a cluster it stays with that node, as long as this is
    up, until it is moved again; other shards may move in return.
    """
    from fairlog.cli import cluster_shards

    settings = _load(data_dir, config)
    if (of_cluster := _admin_of_cluster(settings, admin)) is not None:
        is_own = admin is None or data_dir is not None
        cluster_shards.move(of_cluster, settings, shard, None if to == _AUTO else int(to), is_own=is_own)
        return
    _checked_directory(settings)
    if to == _AUTO:
        raise ClientError("a shard of one machine is served by the process that you name: there is no plan for it")
    _move_to_process(settings, shard, int(to))


def _move_to_process(settings: Settings, shard: int, to: int) -> None:
    def moved(processes: Sequence[int]) -> Sequence[int]:
        if shard >= len(processes):
            raise ClientError(
                f"there is no shard {shard} in {settings.data_dir}: there are {len(processes)}, from 0 on"
            )
        return [_checked(to) if number == shard else process for number, process in enumerate(processes)]

    if _change(settings, {"ask": "move", "shard": shard, "process": to}, moved):
        say(f"shard {shard} is served by process {to}")
    else:
        say(f"shard {shard} will be served by process {to}{_LATER}")


def _load(data_dir: Path | None, config: Path | None) -> Settings:
    from fairlog.config_sources import load

    return load(flags={"data_dir": data_dir}, file=config)


def _admin_of_cluster(settings: Settings, admin: str | None) -> AdminListener | None:
    """The admin listener to ask of a cluster of several machines; None if it is about a node of one machine."""
    if admin is not None:
        return at(admin)
    if not _is_of_cluster(settings):
        return None
    found = of_settings(settings)
    if found is None:
        raise ClientError("this node has no admin listener (admin.listen): name that of another one with --admin")
    return found


def _is_of_cluster(settings: Settings) -> bool:
    from fairlog.data_directory import is_of_several_machines

    try:
        return is_of_several_machines(settings.data_dir)
    except OSError as error:
        raise _not_looked_into(settings, error) from error


def _checked_directory(settings: Settings) -> Settings:
    """Raises ClientError if the data directory has no data, or may not be looked into."""
    from fairlog.data_directory import CLUSTER_STORE

    try:
        is_there = (settings.data_dir / CLUSTER_STORE).exists()
    except OSError as error:
        raise _not_looked_into(settings, error) from error
    if not is_there:
        raise ClientError(
            f"{settings.data_dir} is no data directory of a node: name one with --data-dir, or a node of a cluster of "
            "several machines with --admin"
        )
    return settings


def _checked(process: int) -> int:
    if process >= PROCESSES_MAX:
        raise ClientError(f"there is no process {process}: there are at most {PROCESSES_MAX}, from 0 on")
    return process


def _shards(settings: Settings) -> Sequence[Mapping[str, Any]]:
    """What `list` shows of each shard."""
    answer = _ask(settings, {"ask": "list"})
    if answer is not None:
        return answer["shards"]
    from fairlog.data_directory import read_cluster_store_in_use
    from fairlog.directory import is_in_use
    from fairlog.supervisor import allotment

    node = in_sentences(lambda: read_cluster_store_in_use(settings.data_dir))
    # A node of one process with one shard has no supervisor, and not every supervisor has a socket.
    state = "ready or starting" if in_sentences(lambda: is_in_use(settings.data_dir)) else "away"
    return [
        {
            "shard": shard,
            "broker": node.node.node_id + shard,
            "listen": None,
            "process": process,
            "pid": None,
            "state": state,
        }
        for shard, process in enumerate(in_sentences(lambda: allotment.load(settings.data_dir, node.shards)))
    ]


def _change(
    settings: Settings, question: Mapping[str, object], changed: Callable[[Sequence[int]], Sequence[int]]
) -> bool:
    """Have the supervisor make a change; without one, change the processes of the shards on disk, and answer False."""
    answer = _ask(settings, question)
    if answer is None:
        _note_and_change_at_rest(settings, question, changed)
    elif "refused" in answer:
        raise ClientError(str(answer["refused"]))
    return answer is not None


def _note_and_change_at_rest(
    settings: Settings, question: Mapping[str, object], changed: Callable[[Sequence[int]], Sequence[int]]
) -> None:
    from fairlog.cli.trail_at_rest import noted
    from fairlog.trail import Action

    if question["ask"] == "move":
        line = noted(settings, Action.MOVE_SHARD, str(question["shard"]), to=question["process"])
    else:
        line = noted(settings, Action.ADD_SHARD, "")
    with line as what:

        def make(processes: Sequence[int]) -> Sequence[int]:
            if question["ask"] == "add":
                what.on = str(len(processes))  # the number of the new one
            return changed(processes)

        in_sentences(lambda: _change_at_rest(settings, make))


def _change_at_rest(settings: Settings, changed: Callable[[Sequence[int]], Sequence[int]]) -> None:
    from fairlog.data_directory import MANIFEST, RESTORING, read_cluster_store
    from fairlog.directory import DirectoryInUse, locked_directory
    from fairlog.supervisor import allotment, changes

    try:
        with locked_directory(settings.data_dir):
            if any((settings.data_dir / name).exists() for name in (MANIFEST, RESTORING)):
                raise ClientError(f"{settings.data_dir} is a backup: start a node in it first")
            store = read_cluster_store(settings.data_dir)
            of_node = replace(settings, node_id=store.node.node_id)  # our own settings need not be the node's
            changes.write(of_node, changed(allotment.load(settings.data_dir, store.shards)), store.shards)
    except DirectoryInUse as error:
        raise ClientError(
            f"{error}, which has no control socket: try again if the node is still starting; else stop it, or restart "
            "it with two processes or more (--processes); its log may say more"
        ) from error


def _ask(settings: Settings, question: Mapping[str, object]) -> Mapping[str, Any] | None:
    """The supervisor's answer; None if there is none here."""
    from fairlog.supervisor.control import ControlFailed, NoSupervisor, ask

    try:
        return ask(settings.data_dir, question)
    except NoSupervisor:
        return None
    except ControlFailed as error:
        raise ClientError(f"{error}{what_to_do(error.__cause__)}") from error
    except OSError as error:
        raise _not_looked_into(settings, error) from error
    except KeyboardInterrupt:
        raise Interrupted("interrupted: the node goes on with what it was asked for; see fairlog shard list") from None


def _not_looked_into(settings: Settings, error: OSError) -> ClientError:
    return ClientError(f"cannot look into {settings.data_dir}: {error.strerror}{what_to_do(error)}")
