"""Asks the admin listener of a node (docs/admin-http.md), and has it change something.

    HOST:PORT, http://HOST:PORT     without TLS
    https://HOST:PORT               with TLS, by the CA and what else the client properties say
    of the settings                 as `admin.protocol` says; with TLS by the very certificate of `tls.certificate`

A listener that asks who its callers are is shown the token, if the caller has it; else name and password of the client
properties (`security.protocol=sasl_ssl`), which go by TLS only.
"""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.error
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from fairlog.cli import client_properties
from fairlog.cli.errors import ClientError
from fairlog.config import Settings
from fairlog_client_security import OAUTHBEARER

PATIENCE_S = 20.0
"""For one answer. A change may wait ten seconds for the engine."""


@dataclass(frozen=True, slots=True)
class AdminListener:
    """Where a node is asked."""

    url: str
    """Without a path."""
    certificate: Path | None = None
    """The file with the node's certificate, by which it is known; None: by what the client properties say."""
    asks: bool | None = None
    """Whether it asks who its callers are, by the node's own settings; None: that is not known here."""

    def __str__(self) -> str:
        return self.url.removeprefix("http://")

    @property
    def is_encrypted(self) -> bool:
        return self.url.startswith("https://")

    @property
    def is_shown_token_to_see(self) -> bool:
        """Whether the token is shown where a listener that asks nobody needs none: not without TLS, unless the node's
        own settings say that it asks.
        """
        return self.is_encrypted if self.asks is None else self.asks

    @property
    def has_user(self) -> bool:
        """Whether the client properties have a user to show here."""
        security = client_properties.current().security
        return self.is_encrypted and security.protocol == "sasl_ssl" and security.mechanism != OAUTHBEARER


def at(text: str) -> AdminListener:
    """The listener that somebody names. Raises ClientError."""
    scheme, separator, place = text.rpartition("://")
    if scheme not in ("", "http", "https"):
        raise ClientError(f"{text} is no admin listener: HOST:PORT, or https://HOST:PORT")
    return AdminListener(f"{scheme if separator else 'http'}://{place.rstrip('/')}")


def of_settings(settings: Settings) -> AdminListener | None:
    """That of the node with these settings; None if it has none."""
    admin = settings.admin
    if admin.listen is None:
        return None
    if not admin.protocol.is_encrypted:
        return AdminListener(f"http://{admin.listen}", asks=admin.protocol.asks_who_it_is)
    return AdminListener(f"https://{admin.listen}", settings.tls.certificate, admin.protocol.asks_who_it_is)


def get(admin: AdminListener, path: str, token: str | None = None) -> dict[str, Any]:
    """The document at a path of the listener. A `token` is shown only if the listener is (`is_shown_token_to_see`).

    Raises ClientError.
    """
    headers = _shown(admin, token if admin.is_shown_token_to_see else None)
    return _answer(admin, urllib.request.Request(admin.url + path, headers=headers))


def post(admin: AdminListener, path: str, document: Mapping[str, object], token: str | None) -> dict[str, Any]:
    """What a changing call answers. `token` is the node's admin token; without one the client properties say who calls.

    Raises ClientError with the node's sentence.
    """
    headers = {"Content-Type": "application/json", **_shown(admin, token)}
    return _answer(admin, urllib.request.Request(admin.url + path, json.dumps(document).encode(), headers))


def _shown(admin: AdminListener, token: str | None) -> dict[str, str]:
    """The header that says who calls. Raises ClientError."""
    if token is not None:
        return {"Authorization": f"Bearer {token}"}
    if not admin.has_user:
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


def _answer(admin: AdminListener, request: urllib.request.Request) -> dict[str, Any]:
    url = request.full_url
    try:
        with _opener(admin).open(request, timeout=PATIENCE_S) as answer:
            document: object = json.load(answer)
    except urllib.error.HTTPError as error:
        raise ClientError(f"{url} answered {error.code}: {_reason(error)}") from error
    except (OSError, ValueError, RecursionError, http.client.HTTPException) as error:
        reason = error.reason if isinstance(error, urllib.error.URLError) else error
        hint = "name a node's admin listener with --admin (https://HOST:PORT if it has TLS)"
        if request.data is not None:  # the commands that change something are given settings, if need be
            hint += ", or give the node's settings with --config"
        raise ClientError(f"cannot ask {url}: {reason}; {hint}") from error
    if not isinstance(document, dict):
        raise ClientError(f"{url} is no admin listener of a node")
    return cast("dict[str, Any]", document)


def _opener(admin: AdminListener) -> urllib.request.OpenerDirector:
    # Nobody but the node may see the token, whatever the environment says of proxies.
    direct = urllib.request.ProxyHandler({}), _NoRedirects
    if not admin.is_encrypted:
        return urllib.request.build_opener(*direct)
    if admin.certificate is None:
        secret = urllib.request.HTTPSHandler(context=client_properties.current().tls())
    else:
        from fairlog.security.own_certificate import first_certificate

        secret = _KnownHandler(admin.certificate, first_certificate(admin.certificate))
    return urllib.request.build_opener(*direct, secret)


class _KnownHandler(urllib.request.HTTPSHandler):
    """Asks who has a certificate, and nobody else, whatever names, dates and uses that one has."""

    def __init__(self, file: Path, certificate: bytes) -> None:
        """`certificate`, in DER, is that of the file."""
        self._any = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._any.check_hostname = False
        self._any.verify_mode = ssl.CERT_NONE
        super().__init__(context=self._any)
        self._connection = partial(_KnownConnection, file, certificate)

    def https_open(self, req: urllib.request.Request) -> http.client.HTTPResponse:
        return self.do_open(self._connection, req, context=self._any)


class _KnownConnection(http.client.HTTPSConnection):
    def __init__(self, file: Path, certificate: bytes, host: str, **more: Any) -> None:
        super().__init__(host, **more)
        self._file = file
        self._certificate = certificate

    def connect(self) -> None:
        """Before anything is sent. Raises OSError."""
        super().connect()
        if self.sock.getpeercert(binary_form=True) != self._certificate:
            self.close()
            raise ConnectionError(f"it does not show the certificate in {self._file} (tls.certificate)")


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        document = json.load(error)
        return str(document["error"] if "error" in document else document["message"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError, http.client.HTTPException):
        return str(error.reason)
