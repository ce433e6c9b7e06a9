"""`fairlog shard list|move` for a cluster of several machines, through the admin listener of any of its nodes."""

from __future__ import annotations

import time
from typing import Any

from fairlog.cli import admin_client
from fairlog.cli.admin_client import AdminListener
from fairlog.cli.admin_token import token_or_user
from fairlog.cli.errors import ClientError, Interrupted
from fairlog.cli.output import say, show_json, show_table
from fairlog.config import Settings

WAIT_S = 60.0
"""So long a move is waited for."""
_LOOK_EVERY_S = 0.25
_COLUMNS = ("shard", "owner", "epoch", "copies", "in sync", "moved to")


def show(admin: AdminListener, settings: Settings, *, is_own: bool, json: bool) -> None:
    """List the shards, as the node sees them. `settings`, `is_own` as for `move`."""
    shards = seen(admin, settings, is_own=is_own)["shards"]
    if json:
        show_json(shards)
    else:
        show_table(_COLUMNS, map(_row, shards), empty="there are no shards yet")


def _row(shard: dict[str, Any]) -> tuple[object, ...]:
    copies = shard["copies"]
    kept, in_sync = (", ".join(str(copy["node"]) for copy in some) for some in (copies, filter(_is_in_sync, copies)))
    return shard["number"], shard["owner"], shard["epoch"], kept, in_sync, shard["wish"]


def _is_in_sync(copy: dict[str, Any]) -> bool:
    return bool(copy["in_sync"])


def move(admin: AdminListener, settings: Settings, shard: int, node: int | None, *, is_own: bool) -> None:
    """Have a node own a shard, and wait until it does; None: let it be planned with the others again.

    `is_own`: the data directory of `settings` is said to be that of the node at `admin`, which may get its token then.
    """
    seen(admin, settings, is_own=is_own)
    token = token_or_user(settings, admin, "a move", is_own=is_own)
    asked = admin_client.post(admin, "/api/shards/move", {"shard": shard, "to": node}, token)
    if node is None:
        say(asked["message"])
        return
    try:
        _wait(admin, token, shard, node)
    except KeyboardInterrupt:
        raise Interrupted(f"interrupted: the move of shard {shard} goes on; see fairlog shard list") from None
    say(f"shard {shard} is served by node {node}")


def _wait(admin: AdminListener, token: str | None, shard: int, node: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while (missing := _missing(admin, token, shard, node)) is not None:
        if time.monotonic() > deadline:
            raise ClientError(
                f"shard {shard} is not node {node}'s after {WAIT_S:.0f} s: {missing}. It moves as soon as it can; see "
                "fairlog shard list, or take it back with --to auto"
            )
        time.sleep(_LOOK_EVERY_S)


def _missing(admin: AdminListener, token: str | None, shard: int, node: int) -> str | None:
    """Why the shard is not served by the node yet; None if it is. Raises ClientError if it is not to be any more."""
    try:
        document = _document(admin, token)
    except ClientError as error:
        return str(error)  # it may be the node that hands the shard over, and has much to do
    found = document["shards"][shard]
    copy = next((each for each in found["copies"] if each["node"] == node), None)
    if found["owner"] == node and copy is not None and copy["role"] == "owner":
        return None
    if found["wish"] != node:
        raise ClientError(f"shard {shard} does not go to node {node}: somebody has moved it elsewhere since")
    if not document["engine"]["answers"]:
        return f"the engine does not answer: {document['engine']['said']}"
    if not any(each["number"] == node and each["is_up"] for each in document["nodes"]):
        return f"node {node} is down"
    if copy is None:
        return f"node {node} has no copy of it yet"
    if not copy["in_sync"]:
        return f"node {node}'s copy of it is not in sync yet"
    if found["owner"] is None:
        return "no node that is up owns it"
    return f"node {found['owner']} has yet to hand it over"


def seen(admin: AdminListener, settings: Settings, *, is_own: bool) -> dict[str, Any]:
    """What the node says of its cluster to who is who `settings` say. `is_own` as for `move`. Raises ClientError."""
    return _document(admin, _token_to_see(admin, settings, is_own=is_own))


def _document(admin: AdminListener, token: str | None) -> dict[str, Any]:
    """What the node says of its cluster. Raises ClientError, also if it is a node of one machine."""
    document = admin_client.get(admin, "/api/cluster", token)
    if "engine" not in document:
        raise ClientError(f"the node at {admin} is not one of several machines: see fairlog shard list")
    return document


def _token_to_see(admin: AdminListener, settings: Settings, *, is_own: bool) -> str | None:
    """The token to look with; None where it would go without TLS, or there is none."""
    if not admin.is_shown_token_to_see or (settings.admin.token is None and not is_own):
        return None
    return token_or_user(settings, admin, "a look at the shards", is_own=is_own)
