"""Users, for whoever may operate: `fairlog user`.

    POST /api/users/list      which users there are, by which mechanisms they can sign in
    POST /api/users/change    add one, give one another password, delete one

Passwords do not come here: `fairlog user` hashes them, and sends what the node keeps (`fairlog.security.users`).
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from fairlog import trail
from fairlog.admin_http.accounts import Accounts, Changes
from fairlog.admin_http.callers import Need
from fairlog.admin_http.gate import AdminRoute, Gate, actor, body_of
from fairlog.admin_http.request_log import peer
from fairlog.security.user_changes import Change, WhyNot, deletion, must_be_known, must_be_new
from fairlog.security.users import Credential, ScramMechanism, User
from fairlog.trail import Action
from fairlog_types import StorageFailure

_STATUS = {WhyNot.NO_SUCH_USER: 404, WhyNot.EXISTS: 409}

_ACTIONS = ("add", "password", "delete")


def user_routes(gate: Gate, accounts: Callable[[], Accounts]) -> Sequence[AdminRoute]:
    """`accounts` may raise what the application answers."""

    async def list_all(_: Request) -> Response:
        users = accounts().users()
        return JSONResponse({"users": [_shown(name, users[name]) for name in sorted(users)]})

    async def change(request: Request) -> Response:
        name, action, changes = read_change_untrusted(body_of(request))
        try:
            outcome = await accounts().change(changes, by=f"{actor(request).principal} at {peer(request)}")
        except StorageFailure as failure:
            trail.note(actor(request), action, name, trail.UNKNOWN, reason=str(failure))
            raise HTTPException(503, str(failure)) from None
        why_not = outcome.refused.get(name)
        trail.note(actor(request), action, name, None if why_not is None else why_not.value)
        if why_not is not None:
            raise HTTPException(_STATUS.get(why_not, 400), why_not.value)
        return JSONResponse({"user": name})

    return [
        gate.route("/api/users/list", list_all, Need.OPERATE, method="POST"),
        gate.route("/api/users/change", change, Need.OPERATE, method="POST", action=Action.ALTER_USER),
    ]


def change_document(action: str, name: str, credentials: Mapping[ScramMechanism, Credential]) -> Mapping[str, object]:
    """The body of a change; `action` is add, password or delete."""
    rows = [
        [mechanism.text, kept.iterations, *map(_text, (kept.salt, kept.stored_key, kept.server_key))]
        for mechanism, kept in credentials.items()
    ]
    return {"action": action, "name": name, "credentials": rows}


def changes_of(action: str, name: str, credentials: Mapping[ScramMechanism, Credential]) -> Changes:
    """What an action changes."""
    if action == "delete":
        return lambda users: deletion(users, name)
    must = must_be_new if action == "add" else must_be_known
    changes = [Change(name, mechanism, credential, must) for mechanism, credential in credentials.items()]
    return lambda _: changes


def read_change_untrusted(content: bytes) -> tuple[str, Action, Changes]:
    """The user's name, what the trail calls the change, and what is to be changed.

    Raises HTTPException, which quotes nothing.
    """
    try:
        document = cast("object", json.loads(content))
        match document:
            case {"action": str(action), "name": str(name), "credentials": list()} if action in _ACTIONS:
                rows = cast("list[object]", cast("dict[str, object]", document)["credentials"])
                credentials = dict(map(_credential, rows))
                if bool(credentials) != (action == "delete"):
                    noted = Action.DELETE_USER if action == "delete" else Action.ALTER_USER
                    return name, noted, changes_of(action, name, credentials)
            case _:
                pass
    except (ValueError, RecursionError):
        pass
    raise HTTPException(
        400,
        'the body must be {"action": "add", "password" or "delete", "name": "…", "credentials": [[mechanism, '
        "iterations, salt, stored key, server key]…]}, the last three in base64",
    )


def _credential(row: object) -> tuple[ScramMechanism, Credential]:
    match row:
        case [str(mechanism), int(iterations), str(salt), str(stored_key), str(server_key)]:
            found = next((each for each in ScramMechanism if each.text == mechanism), None)
            if found is not None:
                return found, Credential(_bytes(salt), iterations, _bytes(stored_key), _bytes(server_key))
        case _:
            pass
    raise ValueError


def _shown(name: str, user: User) -> Mapping[str, object]:
    mechanisms = {each.text: kept.iterations for each, kept in user.credentials.items()}
    return {"name": name, "mechanisms": dict(sorted(mechanisms.items()))}


def _text(value: bytes) -> str:
    return base64.b64encode(value).decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError from error
