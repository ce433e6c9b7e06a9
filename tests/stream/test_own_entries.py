"""The answer rule: what an owner takes for accepted is accepted by every reader, in whatever order it learns."""

from __future__ import annotations

import random

import pytest

from fairlog_types import CorruptStorage
from stream.engine import StreamPosition
from stream.entry import EntryKind, encode_hand_over
from stream.fold import Fold, FoldState, Void
from stream.own_entries import OwnEntries
from tests.stream.owners import NAME, Writer, fence, frames, owned_fold, owner, run_fold

A, B = owner("a"), owner("b")


class Owned:
    """The owner of epoch 1, and its stream."""

    def __init__(self) -> None:
        fold, self.stream = owned_fold(A)
        self.own = OwnEntries(fold)
        self.at: dict[int, StreamPosition] = {}
        """Where the first copy of each of its entries lies."""

    def append(self, *, continued: bool = False) -> bytes:
        _, data = self.own.encode(EntryKind.FRAMES, frames(b"x" * self.own.appended), continued=continued)
        return data

    def put(self, *entries: bytes) -> None:
        for data in entries:
            if int.from_bytes(data[8:12], "little") == 1 and data[5] != EntryKind.FENCE:
                self.at.setdefault(int.from_bytes(data[12:20], "little"), StreamPosition(len(self.stream)))
            self.stream.append(data)

    def tell(self, *sequences: int) -> None:
        """The engine says where these lie."""
        for sequence in sequences:
            self.own.landed(sequence, self.at[sequence])

    def read_gap(self) -> None:
        """Read as long as there is something to learn."""
        at = self.own.gap
        while at is not None and self.own.gap is not None:
            self.own.read(at, self.stream[at])
            at = StreamPosition(at + 1)

    @property
    def truly_accepted(self) -> int:
        """The last sequence of epoch 1 that a reader of the whole stream accepts."""
        fold = Fold(NAME)
        last = 0
        for data in self.stream:
            fold.step(fold.next_position, data)
            if fold.state.epoch == 1:
                last = fold.state.sequence
        return last


@pytest.fixture
def owned() -> Owned:
    return Owned()


def test_entries_that_land_in_a_row_are_accepted_without_reading(owned: Owned) -> None:
    """Also if the engine tells of a later one first."""
    owned.put(*(owned.append() for _ in range(4)))
    owned.tell(1)
    assert (owned.own.accepted, owned.own.appended, owned.own.gap) == (1, 4, None)
    owned.tell(3)
    assert (owned.own.accepted, owned.own.gap) == (1, 2)
    owned.tell(2, 4)
    assert (owned.own.accepted, owned.own.gap) == (4, None)
    assert owned.own.state == run_fold(owned.stream)[0].state


def test_entry_after_a_gap_is_not_accepted_before_it_is_read(owned: Owned) -> None:
    """Somebody else has appended in between: what, says whether the entry counts."""
    one, two = owned.append(), owned.append()
    owned.put(one, b"somebody else's", two)
    owned.tell(2, 1)
    assert (owned.own.accepted, owned.own.gap) == (1, 2)
    owned.read_gap()
    assert (owned.own.accepted, owned.own.gap, owned.own.deposed_by) == (2, None, None)


def test_entry_after_the_fence_of_another_is_never_accepted(owned: Owned) -> None:
    """The deposed one finds out by reading what lies between its entries; nothing changes after that."""
    one, two = owned.append(), owned.append()
    owned.put(one, fence(B, 2), two)
    owned.tell(1, 2)
    assert owned.own.accepted == 1
    owned.read_gap()
    assert (owned.own.accepted, owned.own.deposed_by, owned.own.gap) == (1, B, None)
    owned.own.landed(2, StreamPosition(9))
    owned.own.read(StreamPosition(4), two)
    assert (owned.own.accepted, owned.own.deposed_by, owned.own.gap) == (1, B, None)


def test_first_entry_that_lands_after_the_fence_that_was_read_is_not_accepted(owned: Owned) -> None:
    """It has the sequence that would be the next one of the other's epoch, and the next position."""
    one, two = owned.append(), owned.append()
    owned.put(fence(B, 2), one, two)
    owned.tell(2)
    owned.own.read(StreamPosition(1), owned.stream[1])
    owned.tell(1)
    assert (owned.own.accepted, owned.own.deposed_by, owned.own.passed_over) == (0, B, None)


def test_entry_that_is_there_twice_counts_once(owned: Owned) -> None:
    """Whichever copy the engine names."""
    one, two, three = (owned.append() for _ in range(3))
    owned.put(one, two, one, two, three)
    owned.own.landed(1, StreamPosition(3))
    owned.own.landed(2, StreamPosition(4))
    assert owned.own.accepted == 0
    owned.read_gap()
    assert (owned.own.accepted, owned.own.gap) == (2, None)
    owned.tell(3)
    assert (owned.own.accepted, owned.own.gap, owned.own.passed_over) == (3, None, None)
    assert owned.own.state == run_fold(owned.stream)[0].state


def test_doubled_fence_of_ones_own_deposes_nobody(owned: Owned) -> None:
    """It began the epoch already."""
    one = owned.append()
    owned.put(fence(A, 1), one, fence(A, 1))
    owned.tell(1)
    owned.read_gap()
    assert (owned.own.accepted, owned.own.deposed_by) == (1, None)


def test_own_entry_that_was_read_needs_no_word_of_the_engine(owned: Owned) -> None:
    """Its outcome comes later, or never; then it changes nothing."""
    one, two = owned.append(), owned.append()
    owned.put(b"", one, two)
    owned.tell(2)
    owned.read_gap()
    assert owned.own.accepted == 2
    owned.tell(1)
    assert (owned.own.accepted, owned.own.gap, owned.own.passed_over) == (2, None, None)


def test_entry_that_does_not_count_is_told_of(owned: Owned) -> None:
    """The one before it is missing, and no FENCE explains it: nothing after it would ever be accepted."""
    owned.append()
    two = owned.append()
    owned.put(b"", two)
    owned.tell(2)
    assert owned.own.passed_over is None
    owned.read_gap()
    assert (owned.own.accepted, owned.own.passed_over, owned.own.gap) == (0, 2, None)


def test_entry_that_was_read_where_it_does_not_count_is_told_of_with_its_outcome(owned: Owned) -> None:
    """Before that, this copy may be one that the engine has made too many."""
    owned.append()
    two, three = owned.append(), owned.append()
    owned.put(b"", two, three)
    owned.tell(3)
    owned.own.read(StreamPosition(1), owned.stream[1])
    owned.own.read(StreamPosition(2), owned.stream[2])
    assert owned.own.passed_over == 3
    owned.own.passed_over = None
    owned.tell(2)
    assert owned.own.passed_over == 2


def test_entry_that_lies_where_something_else_was_read_is_told_of(owned: Owned) -> None:
    """The engine has lost what was there: it must not stay unnoticed for ever."""
    owned.put(*(owned.append() for _ in range(3)))
    owned.tell(1, 2, 3)
    owned.append()
    owned.own.landed(4, StreamPosition(2))
    assert (owned.own.accepted, owned.own.passed_over) == (3, 4)


def test_continued_entries_leave_no_mark_to_go_on_from(owned: Owned) -> None:
    """The owner's state is between two groups, as a reader's is, also if it has read some of them and not others."""
    pieces = [owned.append(continued=True), owned.append(continued=True), owned.append()]
    owned.put(b"", *pieces, b"")
    before = owned.own.state
    owned.tell(2)
    owned.read_gap()
    assert (owned.own.accepted, owned.own.state) == (2, FoldState(**{**_fields(before), "position": 1}))
    owned.tell(1, 3)
    assert (owned.own.accepted, owned.own.state.position, owned.own.state.sequence) == (3, 4, 3)


def _fields(state: FoldState) -> dict[str, object]:
    return {name: getattr(state, name) for name in FoldState.__dataclass_fields__}


def test_state_after_the_hand_over_says_so(owned: Owned) -> None:
    """The next owner knows that nothing is missing, also if it is this node that has not read its own last entry."""
    sequence, data = owned.own.encode(EntryKind.HAND_OVER, encode_hand_over(None))
    owned.put(data)
    owned.tell(sequence)
    assert owned.own.state.handed_over
    owned.put(owned.append())
    owned.tell(2)
    assert owned.own.accepted == 1, "every reader voids what comes after it"


@pytest.mark.parametrize("how", ["not appended yet", "another of that sequence", "with another body", "continued"])
def test_entry_of_the_epoch_that_its_owner_has_not_written_stops_it(owned: Owned, how: str) -> None:
    """Two write in one epoch, or the engine has changed what it was given."""
    one = owned.append()
    owned.own.encode(EntryKind.HEARTBEAT)
    another = Writer(owned.stream[0], 1)
    if how == "not appended yet":
        stranger = [another.frames(b"%d" % n) for n in range(3)][-1]
    elif how == "another of that sequence":
        stranger = another.frames(b"y")
    elif how == "with another body":
        stranger = one[:-1] + b"?"
    else:
        stranger = one[:6] + b"\1" + one[7:]
    owned.own.landed(2, StreamPosition(2))
    with pytest.raises(CorruptStorage, match=r"position 1 .* that its owner has not appended"):
        owned.own.read(StreamPosition(1), stranger)
    assert owned.own.accepted == 0


class Storm:
    """An owner over an engine that loses, doubles, delays and reorders, and other owners who fence when they like."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.keeps_order = self.random.random() < 0.5
        self.owned = Owned()
        self.on_the_way: list[tuple[int, bytes]] = []
        self.untold: list[tuple[int, StreamPosition]] = []
        self.late: list[bytes] = []
        self.unknown = False
        self.cursor: int | None = None

    def run(self, steps: int) -> None:
        choices = (self._append, self._land, self._tell, self._read, self._late, self._other)
        for _ in range(steps):
            self.random.choices(choices, (5, 5, 5, 5, 1, 0.5))[0]()
            self.check()
        while self.untold:
            self._tell()
            self.check()
        self.owned.read_gap()
        self.check()

    def _append(self) -> None:
        own = self.owned.own
        if self.unknown or own.deposed_by is not None or own.passed_over is not None:
            return
        count = self.random.choice((1, 1, 1, 3))
        for number in range(count):
            data = self.owned.append(continued=number + 1 < count)
            self.on_the_way.append((own.appended, data))

    def _land(self) -> None:
        if not self.on_the_way:
            return
        number = 0 if self.keeps_order else self.random.randrange(len(self.on_the_way))
        sequence, data = self.on_the_way.pop(number)
        fate, owned = self.random.random(), self.owned
        if fate < 0.04:  # its writer hears that nobody knows, and appends nothing more
            self.unknown = True
            if fate < 0.02:
                self.late.append(data)
            return
        at = StreamPosition(len(owned.stream))
        owned.put(data)
        if fate < 0.1:
            if not self.keeps_order or fate < 0.07:
                at = self.random.choice((at, StreamPosition(len(owned.stream))))
            owned.put(data)
        elif fate < 0.15:
            self.late.append(data)
        if fate > 0.95:
            self.unknown = True
        else:
            self.untold.append((sequence, at))

    def _tell(self) -> None:
        if self.untold:
            self.owned.own.landed(*self.untold.pop(self.random.randrange(len(self.untold))))

    def _read(self) -> None:
        """A reader was opened at the gap, and reads on from there, whatever the engine tells meanwhile."""
        own, stream = self.owned.own, self.owned.stream
        if self.cursor is None:
            self.cursor = own.gap
        if self.cursor is not None:
            for at in range(self.cursor, min(self.cursor + self.random.randrange(1, 5), len(stream))):
                own.read(StreamPosition(at), stream[at])
                self.cursor = at + 1
            if own.gap is None:
                self.cursor = None

    def _late(self) -> None:
        if self.late:
            self.owned.put(self.late.pop(self.random.randrange(len(self.late))))

    def _other(self) -> None:
        what, stream = self.random.random(), self.owned.stream
        epoch = run_fold(stream)[0].state.epoch
        if what < 0.25:
            self.owned.put(fence(B, epoch + 1))
        elif what < 0.5:
            self.owned.put(fence(A, 1))
        else:
            self.owned.put(self.random.choice((b"", fence(B, epoch))))

    def check(self) -> None:
        own = self.owned.own
        assert own.accepted <= self.owned.truly_accepted, "answered, and void"
        assert own.state == run_fold(self.owned.stream[: own.state.position + 1])[0].state, "as a reader that was there"


SEEDS = range(150)


@pytest.mark.parametrize("seed", SEEDS)
def test_what_the_owner_takes_for_accepted_is_accepted_by_all(seed: int) -> None:
    """In whatever order it learns; and it never waits for ever without knowing that something is wrong."""
    storm = Storm(seed)
    storm.run(60)
    own, owned = storm.owned.own, storm.owned
    if own.deposed_by is not None:
        assert own.deposed_by == B
        assert own.accepted == owned.truly_accepted
    elif not storm.unknown and own.passed_over is None and not storm.on_the_way:
        assert own.accepted == own.appended


def test_seeds_bring_everything_about() -> None:
    """What the test by seed is about does happen."""
    found: set[str] = set()
    for seed in SEEDS:
        storm = Storm(seed)
        storm.run(60)
        own = storm.owned.own
        found |= {"deposed"} if own.deposed_by else set()
        found |= {"passed over"} if own.passed_over else set()
        found |= {"unknown"} if storm.unknown else set()
        found |= {"all accepted"} if own.accepted == own.appended > 10 else set()
        found |= {"void"} if Void.SEQUENCE in run_fold(storm.owned.stream)[1] else set()
        found |= {"accepted, and not known to be"} if own.accepted < storm.owned.truly_accepted else set()
    assert found == {"deposed", "passed over", "unknown", "all accepted", "void", "accepted, and not known to be"}
