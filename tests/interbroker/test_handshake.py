"""Two processes prove to each other that they know the secret."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.edge.malformed import Malformed
from fairlog.interbroker.handshake import Accepting, Connecting, Handshake, Identity, Refused
from fairlog.interbroker.sealing import Opener, Sealer
from fairlog_types import ShardNumber

SECRET, OTHER_SECRET = b"s" * 32, b"t" * 32
CLUSTER = "MkU3OEVBNTcwNTJENDM2Qg"


def connecting(shard: int = 0, to: int = 1, *, cluster: str = CLUSTER, secret: bytes = SECRET, nonce: int = 1):
    return Connecting(Identity(ShardNumber(shard), cluster, secret), ShardNumber(to), bytes([nonce] * 32))


def accepting(shard: int = 1, others: tuple[int, ...] = (0, 2), *, secret: bytes = SECRET, nonce: int = 2):
    return Accepting(Identity(ShardNumber(shard), CLUSTER, secret), [*map(ShardNumber, others)], bytes([nonce] * 32))


class Told:
    """What happens between two sides until both are done, or have refused."""

    def __init__(self, a: Handshake, b: Handshake) -> None:
        self.refusals: dict[Handshake, str] = {}
        self.said: dict[Handshake, bytes] = {a: b"", b: b""}
        waiting = {a: b"", b: b""}
        other = {a: b, b: a}

        def say(side: Handshake, data: bytes) -> None:
            self.said[side] += data
            waiting[other[side]] += data

        for side in (a, b):
            say(side, side.begin())
        while ready := [s for s in (a, b) if s.expects and s not in self.refusals and len(waiting[s]) >= s.expects]:
            side = ready[0]
            data, waiting[side] = waiting[side][: side.expects], waiting[side][side.expects :]
            try:
                say(side, side.hear(data))
            except Refused as refused:
                self.refusals[side] = str(refused)
                say(side, refused.last_words)


def test_sides_that_know_the_secret_agree_on_a_key() -> None:
    """The accepting side learns who has connected; the secret is not sent."""
    a, b = connecting(), accepting()
    told = Told(a, b)
    assert told.refusals == {}
    assert a.session_key == b.session_key is not None
    assert b.peer == 0
    assert SECRET not in told.said[a] + told.said[b]
    assert a.session_key not in told.said[a] + told.said[b]


def test_each_connection_has_another_key() -> None:
    """Either side's nonce is enough."""
    keys = set()
    for nonces in ((1, 2), (1, 3), (4, 2)):
        a, b = connecting(nonce=nonces[0]), accepting(nonce=nonces[1])
        Told(a, b)
        keys.add(a.session_key)
    assert len(keys) == 3


def test_wrong_secret_is_seen_by_the_side_that_connects() -> None:
    """It does not prove anything then, and the other side has not proved anything to it that it could use."""
    a, b = connecting(secret=OTHER_SECRET), accepting()
    told = Told(a, b)
    assert set(told.refusals) == {a}
    assert "does not know the secret" in told.refusals[a]
    assert "broker-secret" in told.refusals[a]
    assert a.session_key is b.session_key is None


def test_wrong_proof_is_refused_by_the_side_that_was_connected_to() -> None:
    """Whoever connects without the secret gets no key, whatever it sends."""
    a, b = connecting(), accepting()
    b.hear(a.begin()[:6])
    b.hear(a.begin()[6:])
    with pytest.raises(Refused, match="does not know the secret"):
        b.hear(bytes(32))
    assert b.session_key is None


@pytest.mark.parametrize(
    ("a", "reason_of_a", "reason_of_b"),
    [
        (lambda: connecting(cluster="other"), f"the cluster '{CLUSTER}'", "the cluster 'other'"),
        (lambda: connecting(to=2), "it is shard 1, and not shard 2", "it looks for shard 2, and this is shard 1"),
        (lambda: connecting(shard=3), None, "it is shard 3, which this process has no business with"),
        (lambda: connecting(shard=1), None, "it is shard 1, which this process has no business with"),
    ],
    ids=["cluster", "shard sought", "shard unknown", "own shard"],
)
def test_process_that_does_not_belong_is_refused_by_name(a, reason_of_a: str | None, reason_of_b: str) -> None:
    """Both sides say what is wrong where both can see it; no side gets a key."""
    a, b = a(), accepting()
    told = Told(a, b)
    assert reason_of_b in told.refusals[b]
    assert (reason_of_a or "") in told.refusals.get(a, "")
    assert (a in told.refusals) is (reason_of_a is not None)
    assert a.session_key is b.session_key is None


def test_other_version_is_refused_by_both_sides_naming_both() -> None:
    """The side that is connected to says its own version before it closes."""
    b = accepting()
    with pytest.raises(Refused, match=r"version 9 .*, and this process version 2: start all") as raised:
        b.hear(b"FLIB\0\x09")
    assert raised.value.last_words == b"FLIB\0\2"
    with pytest.raises(Refused, match=r"version 9 .*, and this process version 2: start all"):
        connecting().hear(b"FLIB\0\x09")


def test_other_program_is_refused_by_name() -> None:
    """A client of Kafka's, or a browser; nothing is sent to it."""
    for side in (connecting(), accepting()):
        with pytest.raises(Refused, match="another program") as raised:
            side.hear(b"GET / ")
        assert raised.value.last_words == b""


def test_other_side_that_speaks_tls_is_told_apart() -> None:
    """By how its handshake begins, or by the alert with which it refuses ours."""
    for side, opening in ((accepting(), b"\x16\x03\x01\x02\0\1"), (connecting(), b"\x15\x03\x03\0\x02\2")):
        with pytest.raises(Refused, match="it speaks TLS with other nodes, and this node does not") as raised:
            side.hear(opening)
        assert raised.value.last_words == b""


def test_handshake_that_is_replayed_is_refused() -> None:
    """What a process said on one connection proves nothing on the next one."""
    a, b = connecting(), accepting()
    told = Told(a, b)
    later = accepting(nonce=9)
    later.hear(told.said[a][:6])
    later.hear(told.said[a][6:110])
    with pytest.raises(Refused, match="does not know the secret"):
        later.hear(told.said[a][110:])


def test_proof_of_one_side_is_none_of_the_other() -> None:
    """Roles are in the proof, so nothing is gained by sending a process its own words."""
    a, b = connecting(), accepting()
    told = Told(a, b)
    assert told.said[a][110:] != told.said[b][110:]
    fresh = accepting()
    fresh.hear(told.said[a][:6])
    proof = fresh.hear(told.said[a][6:110])[110:]
    with pytest.raises(Refused, match="does not know the secret"):
        fresh.hear(proof)


@given(st.data())
def test_handshake_with_other_bytes_gives_no_common_key(data: st.DataObject) -> None:
    """Whatever is changed on the way, at most one side thinks that all is well; and only Refused is raised."""
    a, b = connecting(), accepting()
    said = a.begin()
    answered = b.hear(said[:6]) + b.hear(said[6:])
    at = data.draw(st.integers(0, len(answered) - 1))
    wrong = bytearray(answered)
    wrong[at] ^= data.draw(st.integers(1, 255))
    parts = [bytes(wrong[begin:end]) for begin, end in ((0, 6), (6, 110), (110, 142))]
    with pytest.raises(Refused):
        list(map(a.hear, parts))
    assert a.session_key is None


@given(st.binary(min_size=104, max_size=104))
def test_any_introduction_is_refused_or_answered(introduction: bytes) -> None:
    """Also a cluster's id that is no text."""
    b = accepting()
    b.hear(b"FLIB\0\2")
    with pytest.raises(Refused):
        b.hear(introduction)


KEY = bytes(range(32))


def test_sealed_frames_are_opened_in_their_order() -> None:
    """What is in them is unchanged."""
    sealer, opener = Sealer(KEY), Opener(KEY)
    for body in (b"", b"a", b"a", bytes(1000)):
        frame = sealer.seal(body)
        assert int.from_bytes(frame[:4], "big") == len(frame) - 4
        assert opener.open_untrusted(frame[4:]) == body


@pytest.mark.parametrize("what", ["doubled", "left out", "changed", "of another connection", "too short", "empty"])
def test_frame_that_was_not_sent_in_this_place_is_malformed(what: str) -> None:
    """Nobody without the key puts a frame in, or takes one away."""
    sealer, opener = Sealer(KEY), Opener(KEY)
    first, second = sealer.seal(b"first")[4:], sealer.seal(b"second")[4:]
    opener.open_untrusted(first)
    wrong = {
        "doubled": first,
        "left out": sealer.seal(b"third")[4:],
        "changed": second[:-1] + b"x",
        "of another connection": Sealer(KEY[::-1]).seal(b"second")[4:],
        "too short": second[:15],
        "empty": b"",
    }[what]
    with pytest.raises(Malformed, match="the frame 1 is not what was sent"):
        opener.open_untrusted(wrong)
