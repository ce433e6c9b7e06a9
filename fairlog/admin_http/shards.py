"""The shards of a node as the admin listener of one of them sees them: where their own listeners are, and how they
answer.

A shard that does not answer in time is down, as far as can be seen from here: its process may be dead, or too busy.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar, cast

import trio

from fairlog.admin_http.asking import OwnCertificate, get_untrusted
from fairlog.admin_http.metrics_pages import NotAPage, Page, read_untrusted
from fairlog.config_values import Address

DEADLINE_S = 2.0
"""For one shard's answer: Prometheus waits for ten seconds by default."""

PAGE_BYTES_MAX = 16 << 20
_HEALTH_BYTES_MAX = 64 * 1024

T = TypeVar("T")


class Shards:
    """The admin listeners of all shards, of which one is our own."""

    def __init__(self, own: int, listeners: Sequence[Address], certificate: Path | None = None) -> None:
        """`listeners` are all of them, by shard; there are at least two. `certificate` is the file with the node's own,
        if they have TLS.
        """
        assert 0 <= own < len(listeners) > 1, (own, listeners)
        self.own = own
        self.listeners = listeners
        self._certificate = None if certificate is None else OwnCertificate(certificate)

    @property
    def is_first(self) -> bool:
        """Whether this shard answers for all."""
        return self.own == 0

    async def metrics(self, accept: str, reading_key: str) -> Mapping[int, Page | None]:
        """The metrics pages of the other shards; None for one that does not answer.

        `reading_key` is shown to them, in case they ask who calls (`admin_token.reading_key`).
        They are in the format of our own: all processes run one program, and are told what the scraper accepts.
        """

        async def ask(shard: int) -> Page | None:
            answer = await get_untrusted(
                self.listeners[shard],
                "/metrics",
                accept=accept,
                bearer=reading_key,
                certificate=self._certificate,
                deadline_s=DEADLINE_S,
                body_bytes_max=PAGE_BYTES_MAX,
            )
            if answer is None or answer.status != 200:
                return None
            try:
                return read_untrusted(answer.body, shard)
            except NotAPage:
                return None

        return await self._each_other(ask)

    async def health(self) -> Mapping[int, str | None]:
        """The states of the other shards, as their `/health` says; None for one that does not answer."""

        async def ask(shard: int) -> str | None:
            answer = await get_untrusted(
                self.listeners[shard],
                "/health",
                accept="application/json",
                certificate=self._certificate,
                deadline_s=DEADLINE_S,
                body_bytes_max=_HEALTH_BYTES_MAX,
            )
            return None if answer is None else _status_untrusted(answer.body)

        return await self._each_other(ask)

    async def _each_other(self, ask: Callable[[int], Awaitable[T]]) -> Mapping[int, T]:
        answers: dict[int, T] = {}

        async def one(shard: int) -> None:
            answers[shard] = await ask(shard)

        async with trio.open_nursery() as nursery:
            for shard in range(len(self.listeners)):
                if shard != self.own:
                    nursery.start_soon(one, shard)
        return answers


def _status_untrusted(body: bytes) -> str | None:
    try:
        document = cast("object", json.loads(body))
    except (ValueError, RecursionError):
        return None
    match document:
        case {"status": str(status)}:
            return status
        case _:
            return None
