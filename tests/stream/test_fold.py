"""Which entries count: the rules one by one, and what must hold whatever owners and engine do."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import pytest

from fairlog_types import CorruptStorage, LeaderEpoch
from stream.engine import StreamPosition
from stream.entry import (
    EntryKind,
    JournalFrame,
    Seen,
    decode_entry_untrusted,
    encode_entry,
    encode_fence,
    encode_hand_over,
)
from stream.fold import Fenced, Fold, FoldState, Frames, HandedOver, Plain, Void
from tests.stream.golden_entries import golden_bytes
from tests.stream.owners import NAME, Writer, chain_of, fence, frames, owned_fold, owner, payloads, run_fold

A, B, C = owner("a"), owner("b"), owner("c")


def stream_of_a() -> tuple[list[bytes], Writer]:
    """A is the owner of epoch 1."""
    first = fence(A, 1)
    return [first], Writer(first, 1)


def test_owner_of_the_first_fence_owns_the_epoch() -> None:
    """Of several FENCEs of an epoch the first one counts, also if a node has appended two, or it is there twice."""
    _, folded = run_fold([fence(A, 1), fence(A, 1), fence(B, 1), fence(B, 2), fence(A, 2)])
    assert folded == [Fenced(LeaderEpoch(1), A), Void.EPOCH, Void.EPOCH, Fenced(LeaderEpoch(2), B), Void.EPOCH]


def test_node_that_was_started_again_is_another_owner() -> None:
    """A late FENCE of an earlier run does not make the present one the owner."""
    fold, _ = run_fold([fence(owner("a", 1), 1), fence(owner("a", 2), 1)])
    assert fold.state.owner == owner("a", 1) != owner("a", 2)


def test_entries_of_the_owner_are_accepted_in_their_order() -> None:
    """Frames, heartbeats and the hand-over, each once, and nothing after the hand-over."""
    stream, a = stream_of_a()
    one, beat, two = a.frames(b"1"), a.write(EntryKind.HEARTBEAT), a.frames(b"2", b"3")
    end, more = a.write(EntryKind.HAND_OVER, encode_hand_over("b")), a.frames(b"4")
    fold, folded = run_fold([*stream, one, one, two, beat, one, two, end, end, more, fence(B, 2), more])
    assert folded[1:] == [
        Frames([JournalFrame("local/a", b"1")]),
        Void.SEQUENCE,
        Void.SEQUENCE,
        Plain.HEARTBEAT,
        Void.SEQUENCE,
        Frames([JournalFrame("local/a", b"2"), JournalFrame("local/a", b"3")]),
        HandedOver("b"),
        Void.SEQUENCE,
        Void.HANDED_OVER,
        Fenced(LeaderEpoch(2), B),
        Void.EPOCH,
    ]
    assert fold.state.position == len(folded) - 1


def test_entries_before_the_first_fence_do_not_count() -> None:
    """Nobody owns epoch 0, whatever is written in it."""
    zero, _ = encode_entry(EntryKind.HEARTBEAT, LeaderEpoch(0), 1, 0)
    _, folded = run_fold([b"", b"anything", zero, b"FLGS"])
    assert folded == [Void.FOREIGN, Void.FOREIGN, Void.EPOCH, Void.FOREIGN]


def test_deposed_owner_writes_in_vain() -> None:
    """After another FENCE nothing of the old epoch counts, not even what goes on where it was."""
    stream, a = stream_of_a()
    one, two = a.frames(b"1"), a.frames(b"2")
    second = fence(B, 2, Seen(LeaderEpoch(1), 1, chain_of(one)))
    b = Writer(second, 2, chain_of(one))
    _, folded = run_fold([*stream, one, second, two, b.frames(b"x"), a.frames(b"3"), b.frames(b"y")])
    assert payloads(folded) == [b"1", b"x", b"y"]


def test_lost_entry_makes_void_what_follows_it() -> None:
    """Until it comes, late; what came before it in the meantime stays void."""
    stream, a = stream_of_a()
    one, two, three = a.frames(b"1"), a.frames(b"2"), a.frames(b"3")
    _, folded = run_fold([*stream, one, three, two, three])
    assert payloads(folded) == [b"1", b"2", b"3"]
    assert folded[2] is Void.SEQUENCE


def test_continued_frames_count_together() -> None:
    """All of them when the last entry is there; none if a FENCE comes before that."""
    body = frames(b"x" * 50, b"y" * 50)
    stream, a = stream_of_a()
    pieces = [a.write(EntryKind.FRAMES, body[at : at + 40], continued=at + 40 < len(body)) for at in range(0, 120, 40)]
    fold, folded = run_fold([*stream, pieces[0], b"", pieces[0], pieces[1]])
    assert folded[1:] == [Plain.CONTINUED, Void.FOREIGN, Void.SEQUENCE, Plain.CONTINUED]
    assert fold.between.position == 0, "what was read of it is not enough to go on from"
    assert (fold.state.position, fold.state.sequence) == (4, 2)
    assert payloads([fold.step(fold.next_position, pieces[2])]) == [b"x" * 50, b"y" * 50]
    assert fold.between == fold.state

    second = fence(B, 2)
    b = Writer(second, 2, chain_of(pieces[1]))
    _, folded = run_fold([*stream, *pieces[:2], second, pieces[2], b.frames(b"z")])
    assert payloads(folded) == [b"z"]


def test_fold_knows_that_an_owner_has_handed_over_until_the_next_fence() -> None:
    """Others need not wait for the failover time then."""
    stream, a = stream_of_a()
    fold, _ = run_fold([*stream, a.write(EntryKind.HAND_OVER, encode_hand_over(None))])
    assert fold.state.handed_over
    fold.step(fold.next_position, fence(B, 2))
    assert not fold.state.handed_over


# What cannot be


def _changed(data: bytes, at: int, to: int) -> bytes:
    return data[:at] + bytes([to]) + data[at + 1 :]


def _next_of_a(kind: EntryKind, body: bytes, *, continued: bool = False) -> list[bytes]:
    stream, a = stream_of_a()
    return [*stream, a.write(kind, body, continued=continued)]


def _lost_end(lost: int) -> list[bytes]:
    """B has read entry 2 of epoch 1, and then the stream lost its last entries."""
    stream, a = stream_of_a()
    stream += [a.frames(b"1"), a.frames(b"2")]
    seen = run_fold(stream)[0].state.seen
    return [*stream[:-lost], fence(B, 2, seen)]


def _exchanged() -> list[bytes]:
    stream, a = stream_of_a()
    stream += [a.frames(b"1")]
    seen = run_fold(stream)[0].state.seen
    assert seen is not None
    return [*stream, fence(B, 2, seen._replace(chain=seen.chain ^ 1))]


CONTRADICTIONS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "a byte of an entry that would count is another": (
        lambda: [fence(A, 1), _changed(_next_of_a(EntryKind.FRAMES, frames(b"x"))[1], 25, 1)],
        "its checksum does not follow",
    ),
    "an owner's FENCE with another byte": (lambda: [_changed(fence(A, 1), 30, 1)], "its checksum is wrong"),
    "a FENCE of which nobody can be the owner": (
        lambda: [encode_entry(EntryKind.FENCE, LeaderEpoch(1), 0, 0, b"\x80")[0]],
        "its new owner cannot be read",
    ),
    "a FENCE in the middle of an epoch": (
        lambda: [encode_entry(EntryKind.FENCE, LeaderEpoch(1), 1, 0, encode_fence(A, None))[0]],
        "its new owner cannot be read",
    ),
    "frames that cannot be read": (lambda: _next_of_a(EntryKind.FRAMES, b"\x01"), "its frames cannot be read"),
    "a successor that cannot be read": (
        lambda: _next_of_a(EntryKind.HAND_OVER, b"\x01"),
        "its successor cannot be read",
    ),
    "a heartbeat with a body": (lambda: _next_of_a(EntryKind.HEARTBEAT, b"\x01"), "a heartbeat has nothing to say"),
    "an entry that was read is lost": (lambda: _lost_end(1), "the engine has lost entries"),
    "a whole epoch that was read is lost": (lambda: _lost_end(2), "has read entry 2 of epoch 1"),
    "another entry than was read": (_exchanged, "the engine has changed entries"),
    "a FENCE that was read is lost": (lambda: [fence(A, 1), fence(B, 3)], "its writer has read epoch 2"),
    "the entries of a FENCE that is lost": (
        lambda: [fence(A, 1), Writer(fence(B, 2), 2).frames(b"x")],
        "its writer has read epoch 2, but the stream has come to epoch 1 only",
    ),
    "an entry of a newer version": (lambda: [_changed(fence(A, 1), 4, 2)], "this version of Fairlog cannot read"),
    "an entry of a newer kind": (lambda: [_changed(fence(A, 1), 5, 5)], "their kind is unknown"),
    "an entry with a newer flag": (lambda: [_changed(fence(A, 1), 6, 2)], "a reserved bit is set"),
}


@pytest.mark.parametrize("name", CONTRADICTIONS)
def test_contradiction_stops_every_reader(name: str) -> None:
    """What no order of sound entries explains is told with its position, and nothing after it is read."""
    stream, why = CONTRADICTIONS[name]
    entries = stream()
    fold, _ = run_fold(entries[:-1])
    before = fold.state
    with pytest.raises(CorruptStorage, match=why) as caught:
        fold.step(fold.next_position, entries[-1])
    assert NAME in str(caught.value)
    assert f"position {len(entries) - 1}" in str(caught.value)
    assert fold.state == before


def test_other_kind_in_the_middle_of_continued_frames_stops_every_reader() -> None:
    """Owners write the pieces in a row."""
    stream, a = stream_of_a()
    fold, _ = run_fold([*stream, a.write(EntryKind.FRAMES, b"\x01", continued=True)])
    with pytest.raises(CorruptStorage, match="in the middle of frames"):
        fold.step(fold.next_position, a.write(EntryKind.HEARTBEAT))


@pytest.mark.parametrize("index", [0, 1, 4, 5])
def test_flipped_bit_of_an_entry_that_counts_is_never_accepted(index: int) -> None:
    """It is void, or stops the reader: nobody takes what nobody wrote."""
    golden = golden_bytes()
    fence_of_3 = fence(B, 3)
    before = [fence(A, 1), fence(B, 2), fence_of_3] + ([golden[n] for n in range(index)] if index else [])
    data = golden[index]
    state = replace(run_fold(before[:3])[0].state, sequence=17, chain=0xC0FFEE11)
    fold = Fold(NAME, state)
    for entry in before[3:]:
        fold.step(fold.next_position, entry)
    state = fold.state
    assert not isinstance(Fold(NAME, state).step(fold.next_position, data), Void)
    for bit in range(len(data) * 8):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        again = Fold(NAME, state)
        try:
            folded = again.step(again.next_position, flipped)
        except CorruptStorage:
            continue
        assert isinstance(folded, Void), bit


# Whatever happens


@dataclass
class Node:
    """A node that reads when it likes, and appends whatever it believes to be its own, as long as it likes."""

    name: str
    incarnation: int
    fold: Fold = field(default_factory=lambda: Fold(NAME))
    writer: Writer | None = None


class Chaos:
    """Several nodes and one stream, driven by a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.nodes = [Node(name, 0) for name in "abc"]
        self.stream: list[bytes] = []
        self.late: list[bytes] = []
        self.written = 0

    def run(self, steps: int) -> None:
        for _ in range(steps):
            node = self.random.choice(self.nodes)
            self.random.choices(
                (self._read, self._write, self._fence, self._land_late, self._restart), (8, 8, 1, 1, 0.2)
            )[0](node)

    def _read(self, node: Node) -> None:
        for _ in range(self.random.randrange(8)):
            if node.fold.next_position < len(self.stream):
                data, before = self.stream[node.fold.next_position], node.fold.state.chain
                folded = node.fold.step(node.fold.next_position, data)
                if isinstance(folded, Fenced) and folded.owner == owner(node.name, node.incarnation):
                    node.writer = Writer(data, folded.epoch, before)

    def _fence(self, node: Node) -> None:
        state = node.fold.state
        self._append(fence(owner(node.name, node.incarnation), state.epoch + 1, state.seen))

    def _write(self, node: Node) -> None:
        writer = node.writer
        if writer is None:
            return
        what = self.random.random()
        if what < 0.03:
            self._append(writer.write(EntryKind.HAND_OVER, encode_hand_over(None)))
        elif what < 0.1:
            self._append(writer.write(EntryKind.HEARTBEAT))
        elif what < 0.3:
            body = frames(*(self._payload(node) for _ in range(2)))
            for at in range(0, len(body), 11):
                self._append(writer.write(EntryKind.FRAMES, body[at : at + 11], continued=at + 11 < len(body)))
        else:
            self._append(writer.frames(self._payload(node)))

    def _payload(self, node: Node) -> bytes:
        self.written += 1
        return f"{node.name} {self.written}".encode()

    def _append(self, data: bytes) -> None:
        fate = self.random.random()
        if fate < 0.05:
            return  # lost
        if fate < 0.1:
            self.late.append(data)
            return
        self.stream.append(data)
        if fate < 0.15:
            self.stream.append(data)
        elif fate < 0.2:
            self.late.append(data)
        elif fate < 0.22:
            self.stream.append(b"")

    def _land_late(self, _node: Node) -> None:
        if self.late:
            self.stream.append(self.late.pop(self.random.randrange(len(self.late))))

    def _restart(self, node: Node) -> None:
        node.incarnation += 1
        node.writer = None
        node.fold = Fold(NAME, node.fold.between)


def accepted_by_the_page(stream: list[bytes]) -> list[int]:
    """The positions that count, by the table of docs/formats/stream-entry.md and nothing else."""
    epoch, sequence, ended, counted = 0, 0, False, list[int]()
    for at, data in enumerate(stream):
        if len(data) < 24:
            continue
        kind, own_epoch, own_sequence = (
            data[5],
            int.from_bytes(data[8:12], "little"),
            int.from_bytes(data[12:20], "little"),
        )
        if kind == 1 and own_epoch == epoch + 1:
            epoch, sequence, ended = own_epoch, 0, False
        elif kind != 1 and (own_epoch, own_sequence) == (epoch, sequence + 1) and epoch and not ended:
            sequence, ended = own_sequence, kind == 4
        else:
            continue
        counted.append(at)
    return counted


SEEDS = range(60)


@pytest.mark.parametrize("seed", SEEDS)
def test_owners_in_any_order_are_folded_as_the_page_says(seed: int) -> None:
    """One owner for each epoch, its entries without gaps, frames that are continued whole or not at all."""
    chaos = Chaos(seed)
    chaos.run(300)
    fold, folded = run_fold(chaos.stream)
    assert [at for at, each in enumerate(folded) if not isinstance(each, Void)] == accepted_by_the_page(chaos.stream)
    owners = [each for each in folded if isinstance(each, Fenced)]
    assert [each.epoch for each in owners] == list(range(1, fold.state.epoch + 1))
    found = payloads(folded)
    assert len(set(found)) == len(found), "no frame counts twice"


def test_seeds_make_streams_with_everything_in_them() -> None:
    """What the tests by seed are about does happen."""
    kinds: set[object] = set()
    for seed in SEEDS:
        chaos = Chaos(seed)
        chaos.run(300)
        _, folded = run_fold(chaos.stream)
        kinds |= {each if isinstance(each, Void | Plain) else type(each) for each in folded}
    assert kinds == {*Void, *Plain, Fenced, Frames, HandedOver}


@pytest.mark.parametrize("seed", SEEDS)
def test_fold_that_goes_on_from_any_mark_accepts_the_same(seed: int) -> None:
    """A reader that starts where another one could begin takes what that one took, and ends where it ended."""
    chaos = Chaos(seed)
    chaos.run(120)
    fold = Fold(NAME)
    marks: list[FoldState] = [fold.between]
    folded = []
    for data in chaos.stream:
        folded.append(fold.step(fold.next_position, data))
        marks.append(fold.between)
    for mark in dict.fromkeys(marks):
        start = mark.position + 1
        again, folded_again = run_fold(chaos.stream[start:], mark)
        assert folded_again == folded[start:]
        assert (again.state, again.between) == (fold.state, fold.between)


def test_state_of_an_owner_that_did_not_read_is_that_of_its_readers() -> None:
    """`landed` moves the fold as `step` does, for every kind of entry."""
    fold, stream = owned_fold(A)
    reader, _ = run_fold(stream)
    a = Writer(stream[0], 1)
    body = frames(b"x" * 20)
    kinds = [(EntryKind.FRAMES, body, False), (EntryKind.HEARTBEAT, b"", False), (EntryKind.FRAMES, body[:10], True)]
    kinds += [(EntryKind.FRAMES, body[10:], False), (EntryKind.HAND_OVER, encode_hand_over(None), False)]
    for kind, data, continued in kinds:
        written = a.write(kind, data, continued=continued)
        entry = decode_entry_untrusted(written)
        for _ in range(2):  # the second one is void
            reader.step(reader.next_position, written)
            fold.landed(fold.next_position, a.sequence, entry.chain, kind, continued=continued)  # type: ignore[union-attr]
            assert (fold.state, fold.between) == (reader.state, reader.between)
    assert not fold.landed(fold.next_position, a.sequence + 1, 0, EntryKind.FRAMES, continued=False)
    assert fold.state.position == StreamPosition(11)
