"""Asks the admin listener of a node (docs/admin-http.md), and has it change something."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, cast

from fairlog.cli.errors import ClientError

PATIENCE_S = 20.0
"""For one answer. A change may wait ten seconds for the engine."""


def get(admin: str, path: str) -> dict[str, Any]:
    """The document at a path of the listener at HOST:PORT. Raises ClientError."""
    return _answer(urllib.request.Request(_url(admin, path)))


def post(admin: str, path: str, document: Mapping[str, object], token: str) -> dict[str, Any]:
    """What a changing call answers. `token` is the node's admin token. Raises ClientError with the node's sentence."""
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {token}"}
    return _answer(urllib.request.Request(_url(admin, path), json.dumps(document).encode(), headers))


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A node does not redirect, and the token would go along."""

    def redirect_request(
        self, req: object, fp: object, code: object, msg: object, headers: object, newurl: object
    ) -> None:
        """What is answered is an error then."""


def _url(admin: str, path: str) -> str:
    return f"http://{admin.removeprefix('http://').rstrip('/')}{path}"


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    url = request.full_url
    # Nobody but the node may see the token, whatever the environment says of proxies.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirects)
    try:
        with opener.open(request, timeout=PATIENCE_S) as answer:
            document: object = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ClientError(f"{url} answered {error.code}: {_reason(error)}") from error
    except (OSError, ValueError) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        raise ClientError(f"cannot ask {url}: {reason}; name a node's admin listener with --admin") from error
    if not isinstance(document, dict):
        raise ClientError(f"{url} is no admin listener of a node")
    return cast("dict[str, Any]", document)


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        document = json.load(error)
        return str(document["error"] if "error" in document else document["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
