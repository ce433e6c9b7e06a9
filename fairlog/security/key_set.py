"""The issuer's public keys (JWKS): fetched in the background, kept while the source is away.

    a file     read again every REFRESH_S
    https://…  fetched again every REFRESH_S; nothing else than https, no redirects, at most KEY_SET_BYTES_MAX

A key that is not known may be new: it makes for one more look, at most one every LOOK_AGAIN_S whatever comes, and is
waited for WAIT_S at most. So forged key ids cost the source, and the node, next to nothing.
"""

from __future__ import annotations

import http.client
import json
import urllib.request
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import structlog
import trio

from fairlog.security.tokens import Key, read_key_set_untrusted

log = structlog.get_logger()

REFRESH_S = 3600.0
"""Kafka's sasl.oauthbearer.jwks.endpoint.refresh.ms."""

LOOK_AGAIN_S = 10.0
"""Between two looks for keys that are not known, and after a failure."""

WAIT_S = 5.0
FETCH_S = 10.0
"""For each step of a fetch: to connect, and to send something more."""

FETCH_ALL_S = 30.0
"""For all of it. A source that sends a byte now and then is given up."""

_FETCHES_MAX = 4
"""Threads that may be left with sources that were given up."""

KEY_SET_BYTES_MAX = 1 << 20


class KeySet:
    """The keys of one issuer."""

    def __init__(self, source: str, read: Callable[[str], bytes] | None = None) -> None:
        """`source` is a path or a URL; `read` reads it, blocking, and raises OSError or ValueError."""
        self._source = source
        self._read = read or read_source
        self._keys: Mapping[str | None, Key] = {}
        self._wanted = trio.Event()
        self._looked = trio.Event()
        self._looked_s = -float("inf")
        self._fetches = trio.CapacityLimiter(_FETCHES_MAX)

    async def run(self) -> None:
        """Fetch the keys, again and again, until cancelled."""
        has_failed = False
        while True:
            self._wanted = trio.Event()
            self._looked_s = trio.current_time()
            try:
                self._keys = read_key_set_untrusted(json.loads(await self._content()))
            except (OSError, ValueError, RecursionError) as error:
                if not has_failed:  # once, not for each attempt
                    log.warning("the keys that tokens are checked with cannot be read", source=self._source,
                                reason=str(error), kept=len(self._keys))  # fmt: skip
                has_failed = True
            else:
                if has_failed:
                    log.info("the keys that tokens are checked with are read again", source=self._source)
                has_failed = False
            self._looked.set()
            self._looked = trio.Event()
            with trio.move_on_after(REFRESH_S):
                if has_failed:
                    await trio.sleep(LOOK_AGAIN_S)
                else:
                    await self._wanted.wait()
            await trio.sleep_until(self._looked_s + LOOK_AGAIN_S)

    async def key(self, key_id: str | None) -> Key | None:
        """The key with this id; without one the only one. None if there is none: it was looked for, unless just now."""
        found = self._known(key_id)
        if found is None and (not self._keys or trio.current_time() >= self._looked_s + LOOK_AGAIN_S):
            looked = self._looked
            self._wanted.set()
            with trio.move_on_after(WAIT_S):
                await looked.wait()
            found = self._known(key_id)
        return found

    async def _content(self) -> bytes:
        """What the source has now. Raises OSError, ValueError."""
        with trio.move_on_after(FETCH_ALL_S):
            return await trio.to_thread.run_sync(
                partial(self._read, self._source), abandon_on_cancel=True, limiter=self._fetches
            )
        raise TimeoutError(f"it was not read in {FETCH_ALL_S:.0f} s")

    def _known(self, key_id: str | None) -> Key | None:
        if key_id is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(key_id)


def read_source(source: str) -> bytes:
    """The content of a path or an https URL. Blocking, for FETCH_S at each step. Raises OSError, ValueError."""
    if "://" not in source:
        with Path(source).open("rb") as opened:
            content = opened.read(KEY_SET_BYTES_MAX + 1)
    else:
        if urlsplit(source).scheme != "https":
            raise ValueError("keys are fetched by https only")
        opener = urllib.request.build_opener(_NoRedirects)
        try:
            with opener.open(urllib.request.Request(source), timeout=FETCH_S) as answer:
                content = answer.read(KEY_SET_BYTES_MAX + 1)
        except http.client.HTTPException as error:
            raise ValueError(f"the answer is not one of HTTP ({type(error).__name__})") from error
    if len(content) > KEY_SET_BYTES_MAX:
        raise ValueError(f"it has more than {KEY_SET_BYTES_MAX} bytes")
    return content


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Only the source that the settings name is asked."""

    def redirect_request(
        self, req: object, fp: object, code: object, msg: object, headers: object, newurl: object
    ) -> None:
        """What is answered is an error then."""
