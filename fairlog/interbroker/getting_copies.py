"""Makes a node's copy of a shard: of one that another node has, gotten over a connection (`giving_copies`).

    each giver in turn ─▶ connect, handshake ─▶ AskForCopy ─▶ parts ─▶ `shard.joining.Draft` ─▶ in its place

A giver that dies, is cut off, has nothing to give, or sends what is no copy, is passed over for the next one, and the
copy begins anew. Meanwhile the node reports that it joins, so that the shard's stream keeps what it will read next.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple, Unpack

import structlog
import trio

from fairlog.cluster.interface import InnerAddress
from fairlog.edge.frames import FrameReader
from fairlog.edge.log_limiter import LogLimiter
from fairlog.edge.malformed import Malformed
from fairlog.interbroker.giving_copies import SILENCE_S
from fairlog.interbroker.handshake import JOINING, NONCE_BYTES, Connecting, Identity, Refused
from fairlog.interbroker.sealing import TAG_BYTES, Opener, Sealer
from fairlog.interbroker.shaking_hands import HANDSHAKE_S, shake_hands
from fairlog.interbroker.ways import InnerStream, Plain, Way, why_it_ended
from fairlog.security.tls import HandshakeFailed
from fairlog_types import ShardNumber, StorageFailure
from shard.copy_parts import (
    PART_BYTES_MAX,
    AskForCopy,
    CannotGive,
    CopyBegins,
    CopyEnds,
    FileBytes,
    Part,
    decode_part_untrusted,
    encode_part,
)
from shard.directory import ShardDirectory
from shard.joining import BadCopy, Draft
from shard.progress import CopyProgress
from stream.fold import NOTHING_READ

PAUSE_S = 1.0
"""After all givers have been tried."""
_LOG_EVERY_S = 10.0

_Args = TypeVarTuple("_Args")
_Answer = TypeVar("_Answer")

log = structlog.get_logger("fairlog.joining")

Told = Callable[[int, int], None]
"""How many bytes of a copy have come, of about how many."""


class CannotGet(Exception):
    """There is no copy to be had at an address, or not now. The message says why."""


async def get_copy(
    directory: ShardDirectory,
    stream: str,
    givers: Callable[[], Sequence[InnerAddress]],
    *,
    cluster_id: str,
    secret: bytes,
    progress: CopyProgress,
    way: Way | None = None,
    told: Told = lambda _done, _total: None,
) -> None:
    """Make the shard's directory anew, of a copy of which `stream` names the stream; returns when it is there.

    `givers` are asked for each time: where nodes with a copy listen for brokers, those first that should be asked
    first. They are reached by `way`; None: without TLS. The directory is in nobody's use. It is tried until it
    succeeds, also on a disk that is full. Cancelled: what was in the directory is still there.
    """
    lines = LogLimiter(trio.current_time)
    joins = _Joins(Identity(JOINING, cluster_id, secret), Plain() if way is None else way)

    def warn(giver: str, reason: str) -> None:
        more = lines.admit(giver, "no copy of the shard")
        if more is not None:
            log.warning(
                "no copy of the shard", shard=directory.number, stream=stream, giver=giver, reason=reason, **more
            )

    progress.joins(NOTHING_READ)
    while True:
        addresses = givers()
        for address in addresses:
            try:
                await _get_from(address, directory, stream, joins, progress, told)
            except (CannotGet, BadCopy, StorageFailure) as why:
                warn(str(address), str(why))
                progress.joins(NOTHING_READ)
            else:
                return
        if not addresses:
            warn("none", "the stream was trimmed past what is here, and no other node with a copy is known")
        await trio.sleep(PAUSE_S)


@dataclass(frozen=True, slots=True)
class _Joins:
    """Who asks for copies, and how it reaches who has one."""

    identity: Identity
    way: Way


async def _get_from(
    address: InnerAddress,
    directory: ShardDirectory,
    stream: str,
    joins: _Joins,
    progress: CopyProgress,
    told: Told,
) -> None:
    """Raises CannotGet, BadCopy, StorageFailure."""
    draft = await _on_disk(Draft, directory, stream)
    try:
        await _receive(address, directory.number, stream, joins, _Taker(draft, directory, progress, told))
        await _on_disk(draft.install)
    except BaseException:
        with trio.CancelScope(shield=True), suppress(StorageFailure):
            await _on_disk(draft.discard)
        raise
    log.info("has a copy of the shard", shard=directory.number, giver=str(address))


class _Taker:
    """Takes the parts of a copy, and tells how far it is."""

    def __init__(self, draft: Draft, directory: ShardDirectory, progress: CopyProgress, told: Told) -> None:
        self._draft = draft
        self._shard = directory.number
        self._progress = progress
        self._told = told
        self._done = self._total = 0
        self._said_s = trio.current_time()

    async def take(self, part: Part) -> bool:
        """Whether it was the last one. Raises BadCopy, StorageFailure."""
        await _on_disk(self._draft.take, part)
        if isinstance(part, CopyBegins):
            self._total = part.total_bytes
            self._progress.joins(part.mark)
        elif isinstance(part, FileBytes):
            self._done += len(part.data)
            self._told(self._done, max(self._total, self._done))
            if trio.current_time() >= self._said_s + _LOG_EVERY_S:
                self._said_s = trio.current_time()
                log.info("gets a copy of the shard", shard=self._shard, bytes=self._done, of_about=self._total)
        return isinstance(part, CopyEnds)


async def _receive(address: InnerAddress, shard: ShardNumber, stream: str, joins: _Joins, taker: _Taker) -> None:
    """Raises CannotGet, BadCopy, StorageFailure."""
    connection: InnerStream | None = None
    handshake = Connecting(joins.identity, shard, secrets.token_bytes(NONCE_BYTES))
    try:
        with trio.move_on_after(HANDSHAKE_S):
            connection = await joins.way.connect(address)
            await shake_hands(connection, handshake)
        if connection is None or handshake.session_key is None or handshake.answer_key is None:
            raise CannotGet(f"no connection and handshake within {HANDSHAKE_S:g} s")
        await connection.send_all(Sealer(handshake.session_key).seal(encode_part(AskForCopy(stream))))
        opener = Opener(handshake.answer_key)
        frames = FrameReader(connection, frame_bytes_max=TAG_BYTES + PART_BYTES_MAX)
        while not await taker.take(await _next_part(frames, opener)):
            pass
    except (Refused, HandshakeFailed) as refused:
        raise CannotGet(str(refused)) from refused
    except Malformed as malformed:
        raise CannotGet(f"it does not send what it should: {malformed}") from malformed
    except (OSError, trio.BrokenResourceError) as error:
        raise CannotGet(f"the connection has ended: {why_it_ended(error)}") from error
    finally:
        if connection is not None:
            await trio.aclose_forcefully(connection)


async def _next_part(frames: FrameReader, opener: Opener) -> Part:
    """Raises CannotGet, Malformed, OSError, BrokenResourceError."""
    with trio.move_on_after(SILENCE_S) as waiting:
        frame = await frames.next_frame()
        if frame is None:
            raise CannotGet("the connection has ended before the copy was whole")
        part = decode_part_untrusted(opener.open_untrusted(bytes(frame)))
        if part is None:
            raise Malformed("no part of a copy")
        if isinstance(part, CannotGive):
            raise CannotGet(part.reason)
        return part
    assert waiting.cancelled_caught
    raise CannotGet(f"it has sent nothing for {SILENCE_S:g} s")


async def _on_disk(work: Callable[[Unpack[_Args]], _Answer], *args: *_Args) -> _Answer:
    """In a thread. Raises StorageFailure if the disk refuses, also for want of room; BadCopy."""
    try:
        return await trio.to_thread.run_sync(work, *args)
    except OSError as error:
        raise StorageFailure(f"the copy cannot be written: {error}") from error
