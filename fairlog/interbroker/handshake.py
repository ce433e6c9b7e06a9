"""How two processes of a data directory begin a connection: each proves that it knows the secret. Pure.

    connecting side                              accepting side
    preamble, introduction  ──────────────────▶
                            ◀──────────────────  preamble, introduction, proof
    proof                   ──────────────────▶
    frames                  ──────────────────▶

An introduction names both shards and the cluster, and has a fresh nonce. A proof is an HMAC, keyed by the secret, of
its side's role and all that both sides have said before the proofs: so it is worth nothing on another connection, in
the other direction, or for another shard, and the secret itself is never sent. The key for the frames is made of the
same, under a third name (`sealing`).

A tool of the data directory, which is no shard, connects under the number TOOL. It is answered on its own connection,
so there is a second key, for the other direction. So is a node that wants a copy of the shard, which connects under the
number JOINING.

A side that finds something wrong says its own part up to there, and closes. The other side finds the same, and both
name it.

`expects` is how many bytes come next, and `hear` takes exactly so many: 142 in all, whatever the peer sends.
Nonces come in as arguments; see docs/formats/interbroker.md for the bytes.
"""

from __future__ import annotations

import hmac
import struct
from abc import ABC, abstractmethod
from collections.abc import Collection
from typing import NamedTuple

from fairlog_types import ShardNumber

VERSION = 2
"""Of the handshake, the frames and the messages together. All processes of a data directory speak the same one."""

TOOL = ShardNumber(2**32 - 1)
"""In place of a shard's number: whoever can read the directory's secret, and is none of its processes."""

JOINING = ShardNumber(2**32 - 2)
"""In place of a shard's number: another node of the cluster, which wants a copy of the shard."""

MAGIC = b"FLIB"
_TLS = (b"\x16\x03", b"\x15\x03")
"""How a handshake of TLS begins, and an alert that refuses what is none."""
NONCE_BYTES = 32
PROOF_BYTES = 32
CLUSTER_ID_BYTES = 64
"""Room for the cluster's id, which has 22 characters; the rest are zeros."""

_PREAMBLE = struct.Struct(">4sH")
_INTRODUCTION = struct.Struct(f">II{CLUSTER_ID_BYTES}s{NONCE_BYTES}s")
assert (_PREAMBLE.size, _INTRODUCTION.size) == (6, 104)

_CONNECTING = b"fairlog interbroker connecting"
_ACCEPTING = b"fairlog interbroker accepting"
_SESSION = b"fairlog interbroker session"
_ANSWERS = b"fairlog interbroker answers"


class Refused(Exception):
    """The other side is none of ours. The message says why, and what to do."""

    def __init__(self, reason: str, last_words: bytes = b"") -> None:
        super().__init__(reason)
        self.last_words = last_words
        """To be sent before the connection is closed, so that the other side can say the same."""


class Identity(NamedTuple):
    """Who one is, and how one proves it."""

    shard: ShardNumber
    cluster_id: str
    secret: bytes


class Handshake(ABC):
    """One side of a handshake."""

    def __init__(self, own: Identity, nonce: bytes) -> None:
        """`nonce` is NONCE_BYTES at random, and is never used again."""
        assert len(nonce) == NONCE_BYTES
        self._own = own
        self._nonce = nonce
        self._hears = self._hear_preamble
        self.expects = _PREAMBLE.size
        """How many bytes come next; 0 once both sides have proved themselves."""
        self.session_key: bytes | None = None
        """Of the frames that the connecting side sends; None until both sides have proved themselves."""
        self.answer_key: bytes | None = None
        """Of those that the accepting side sends, to a tool or a node that joins; None until then, too."""

    @abstractmethod
    def begin(self) -> bytes:
        """What is sent first."""

    def hear(self, data: bytes) -> bytes:
        """The `expects` bytes have come; returns what is sent now. Raises Refused."""
        assert len(data) == self.expects, "the caller reads as much as is expected"
        return self._hears(data)

    @abstractmethod
    def _hear_preamble(self, data: bytes) -> bytes: ...

    def _check_preamble(self, data: bytes, last_words: bytes) -> None:
        magic, version = _PREAMBLE.unpack(data)
        if data.startswith(_TLS):
            raise Refused(
                "it speaks TLS with other nodes, and this node does not: give the inner listeners of all nodes of the "
                "cluster the same protocol (security.inner_listener)"
            )
        if magic != MAGIC:
            raise Refused(
                "it does not speak the protocol between brokers: another program has this address, or tries it"
            )
        if version != VERSION:
            raise Refused(
                f"it speaks version {version} of the protocol between brokers, and this process version {VERSION}: "
                "start all of them with the same Fairlog",
                last_words,
            )

    def _check_cluster(self, field: bytes, last_words: bytes) -> None:
        if field != _cluster_field(self._own.cluster_id):
            named = field.rstrip(b"\0").decode("ascii", "backslashreplace")
            raise Refused(
                f"it belongs to the cluster {named!r}, and this process to {self._own.cluster_id!r}: "
                "a process of another cluster has this address, or was given ours",
                last_words,
            )

    def _introduction(self, to: ShardNumber) -> bytes:
        return _INTRODUCTION.pack(self._own.shard, to, _cluster_field(self._own.cluster_id), self._nonce)

    def _make_keys(self, transcript: bytes) -> None:
        self.session_key, self.answer_key = self._proof(_SESSION, transcript), self._proof(_ANSWERS, transcript)

    def _check_proof(self, role: bytes, transcript: bytes, proof: bytes) -> None:
        if not hmac.compare_digest(proof, self._proof(role, transcript)):
            raise Refused(
                "it does not know the secret of the brokers (the data directory's file broker-secret, or the cluster's "
                "metadata): it is of another cluster, or the secret was replaced; then restart all of them"
            )

    def _proof(self, role: bytes, transcript: bytes) -> bytes:
        return hmac.digest(self._own.secret, role + transcript, "sha256")


class Connecting(Handshake):
    """The side that has opened the connection, to reach the shard `peer`."""

    def __init__(self, own: Identity, peer: ShardNumber, nonce: bytes) -> None:
        super().__init__(own, nonce)
        self._peer = peer
        self._said = _OWN_PREAMBLE + self._introduction(peer)

    def begin(self) -> bytes:
        return self._said

    def _hear_preamble(self, data: bytes) -> bytes:
        self._check_preamble(data, b"")
        self._hears, self.expects = self._hear_introduction, _INTRODUCTION.size
        return b""

    def _hear_introduction(self, data: bytes) -> bytes:
        shard, to, cluster, _ = _INTRODUCTION.unpack(data)
        self._check_cluster(cluster, b"")
        if shard != self._peer:
            raise Refused(
                f"it is shard {shard}, and not shard {self._peer}: the address is that of another process by now; "
                "the right one is asked for again"
            )
        if to != self._own.shard:
            raise Refused(f"it takes this process for shard {to}, and not shard {self._own.shard}")
        self._transcript = self._said + _OWN_PREAMBLE + data
        self._hears, self.expects = self._hear_proof, PROOF_BYTES
        return b""

    def _hear_proof(self, data: bytes) -> bytes:
        self._check_proof(_ACCEPTING, self._transcript, data)
        self._make_keys(self._transcript)
        self.expects = 0
        return self._proof(_CONNECTING, self._transcript)


class Accepting(Handshake):
    """The side that was connected to, by one of `others`: shards, TOOL if tools are heard, JOINING if it has a copy."""

    def __init__(self, own: Identity, others: Collection[ShardNumber], nonce: bytes) -> None:
        super().__init__(own, nonce)
        self._others = others
        self._named: ShardNumber | None = None

    @property
    def peer(self) -> ShardNumber:
        """Who has connected, once it has proved itself."""
        assert self.session_key is not None
        assert self._named is not None
        return self._named

    def begin(self) -> bytes:
        return b""

    def _hear_preamble(self, data: bytes) -> bytes:
        self._check_preamble(data, _OWN_PREAMBLE)
        self._hears, self.expects = self._hear_introduction, _INTRODUCTION.size
        return b""

    def _hear_introduction(self, data: bytes) -> bytes:
        shard, to, cluster, _ = _INTRODUCTION.unpack(data)
        said = _OWN_PREAMBLE + self._introduction(shard)
        self._check_cluster(cluster, said)
        if to != self._own.shard:
            raise Refused(
                f"it looks for shard {to}, and this is shard {self._own.shard}: it has an address that is out of date, "
                "and asks for the right one again",
                said,
            )
        if shard not in self._others:
            raise Refused(
                f"it is shard {shard}, which this process has no business with: the data directory has shards "
                f"{', '.join(map(str, sorted({*self._others, self._own.shard} - {TOOL, JOINING})))}; "
                "restart the whole node, so that all know the same shards",
                said,
            )
        self._named = ShardNumber(shard)
        self._transcript = _OWN_PREAMBLE + data + said
        self._hears, self.expects = self._hear_proof, PROOF_BYTES
        return said + self._proof(_ACCEPTING, self._transcript)

    def _hear_proof(self, data: bytes) -> bytes:
        self._check_proof(_CONNECTING, self._transcript, data)
        self._make_keys(self._transcript)
        self.expects = 0
        return b""


_OWN_PREAMBLE = _PREAMBLE.pack(MAGIC, VERSION)


def _cluster_field(cluster_id: str) -> bytes:
    field = cluster_id.encode().ljust(CLUSTER_ID_BYTES, b"\0")
    assert len(field) == CLUSTER_ID_BYTES, "a cluster's id is shorter"
    return field
