"""Asks the admin listener of a node (docs/admin-http.md), and has it change something.

    HOST:PORT, http://HOST:PORT     without TLS
    https://HOST:PORT               with TLS, by the CA and what else the client properties say

A listener that asks who its callers are is shown the token, if the caller has it; else name and password of the client
properties (`security.protocol=sasl_ssl`), which go by TLS only.
"""

from __future__ import annotations

import base64
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any, cast

from fairlog.cli import client_properties
from fairlog.cli.errors import ClientError

PATIENCE_S = 20.0
"""For one answer. A change may wait ten seconds for the engine."""


def get(admin: str, path: str, token: str | None = None) -> dict[str, Any]:
    """The document at a path of the listener. A `token` is shown by TLS only. Raises ClientError."""
    url = _url(admin, path)
    headers = _shown(url, token if is_encrypted(url) else None)
    return _answer(urllib.request.Request(url, headers=headers))


def post(admin: str, path: str, document: Mapping[str, object], token: str | None) -> dict[str, Any]:
    """What a changing call answers. `token` is the node's admin token; without one the client properties say who calls.

    Raises ClientError with the node's sentence.
    """
    url = _url(admin, path)
    headers = {"Content-Type": "application/json", **_shown(url, token)}
    return _answer(urllib.request.Request(url, json.dumps(document).encode(), headers))


def is_encrypted(admin: str) -> bool:
    """Whether the listener has TLS."""
    return admin.startswith("https://")


def has_user(admin: str) -> bool:
    """Whether the client properties have a user to show to this listener."""
    return is_encrypted(admin) and client_properties.current().protocol == "sasl_ssl"


def _shown(url: str, token: str | None) -> dict[str, str]:
    """The header that says who calls. Raises ClientError."""
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if not has_user(url):
        return {}
    name, password = client_properties.current().user
    if ":" in name:
        raise ClientError("a user with a colon in the name cannot sign in at an admin listener (Basic, RFC 7617)")
    return {"Authorization": f"Basic {base64.b64encode(f'{name}:{password}'.encode()).decode()}"}


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """A node does not redirect, and the token would go along."""

    def redirect_request(
        self, req: object, fp: object, code: object, msg: object, headers: object, newurl: object
    ) -> None:
        """What is answered is an error then."""


def _url(admin: str, path: str) -> str:
    scheme, separator, place = admin.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ClientError(f"{admin} is no admin listener: HOST:PORT, or https://HOST:PORT")
    return f"{scheme if separator else 'http'}://{place.rstrip('/')}{path}"


def _answer(request: urllib.request.Request) -> dict[str, Any]:
    url = request.full_url
    try:
        with _opener(url).open(request, timeout=PATIENCE_S) as answer:
            document: object = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ClientError(f"{url} answered {error.code}: {_reason(error)}") from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        hint = "name a node's admin listener with --admin (https://HOST:PORT if it has TLS)"
        raise ClientError(f"cannot ask {url}: {reason}; {hint}") from error
    if not isinstance(document, dict):
        raise ClientError(f"{url} is no admin listener of a node")
    return cast("dict[str, Any]", document)


def _opener(url: str) -> urllib.request.OpenerDirector:
    # Nobody but the node may see the token, whatever the environment says of proxies.
    direct = urllib.request.ProxyHandler({}), _NoRedirects
    if not is_encrypted(url):
        return urllib.request.build_opener(*direct)
    context = client_properties.current().tls()
    return urllib.request.build_opener(*direct, urllib.request.HTTPSHandler(context=context))


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        document = json.load(error)
        return str(document["error"] if "error" in document else document["message"])
    except (ValueError, KeyError, TypeError, OSError):
        return str(error.reason)
