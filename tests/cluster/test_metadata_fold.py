"""Which entries of the metadata stream count, in any order, doubled, late or lost; and when a reader stops."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlog.cluster import cluster_records, decisions
from fairlog.cluster.cluster_memory import ClusterMemory
from fairlog.cluster.cluster_records import ClusterRecord
from fairlog.cluster.features import FEATURES
from fairlog.cluster.metadata_entry import Base, Origin, encode_change, encode_records, encode_snapshot
from fairlog.cluster.metadata_fold import Batch, FoldState, Outcome, Proposal, Proposer, SnapshotSearch, fold
from fairlog_types import CorruptStorage
from stream.engine import StoredEntry, StreamPosition, Unknown
from tests.cluster.accepted import accepted_changes

CLUSTER, OTHER = UUID(int=1), UUID(int=2)


def first_records(cluster: UUID = CLUSTER) -> dict[bytes, bytes]:
    record = ClusterRecord(cluster_records.cluster_id_of(cluster), 4, bytes(32))
    return cluster_records.first_records(record, shards=1, offsets_logs=4, group_separator="")


FOUNDATION = encode_change(None, CLUSTER, Origin(bytes(16), 1), first_records())


def stored(*data: bytes, start: int = 0) -> list[StoredEntry]:
    return [StoredEntry(StreamPosition(start + at), each) for at, each in enumerate(data)]


def base_of(position: int, data: bytes) -> Base:
    return Base(StreamPosition(position), int.from_bytes(data[4:8], "little"))


def change_on(base: Base | None, number: int = 1, cluster: UUID = CLUSTER, who: int = 1) -> bytes:
    return encode_change(base, cluster, Origin(bytes((who,)) * 16, number), {b"k%d" % number: b"v"})


class Process:
    """One that folds and proposes, by the rule, and allots producer ids."""

    def __init__(self, name: int) -> None:
        self.proposer = Proposer(bytes((name,)) * 16)
        self.state = FoldState()
        self.memory: ClusterMemory | None = None
        self.proposal: Proposal | None = None
        self.ids = range(0)
        self.told: list[range] = []

    def read(self, entries: Sequence[StoredEntry]) -> None:
        batch = fold(self.state, entries, "metadata")
        self.state = batch.state
        if self.memory is not None:
            self.memory.apply(batch.changes)
        elif batch.accepted:
            self.memory = ClusterMemory({k: v for k, v in batch.changes.items() if v is not None}, FEATURES)
        if self.proposal is not None:
            self.proposal.hear(batch)
            if self.proposal.outcome is Outcome.ACCEPTED:
                self.told.append(self.ids)
            if self.proposal.outcome is not None:
                self.proposal = None

    def act(self, source: random.Random) -> bytes | None:
        """What it appends now."""
        if self.proposal is None:
            if self.memory is None:
                changes = dict[bytes, bytes | None](first_records(UUID(int=source.getrandbits(100))))
                self.ids = range(0)
            else:
                changes, self.ids = decisions.allot_producer_ids(self.memory, source.randint(1, 5))
            self.proposal = self.proposer.propose(self.state, changes)
        if self.proposal.is_under_way:
            return None
        self.proposal.hear_begun()
        return self.proposal.data


@pytest.mark.slow
@pytest.mark.parametrize("hundreds", range(20))
def test_proposers_on_any_stream_agree_and_are_told_the_truth(hundreds: int) -> None:
    """2,000 schedules: each append is lost, doubled, late, or not told of; readers lag, and start anew."""
    for seed in range(hundreds * 100, hundreds * 100 + 100):
        run_schedule(random.Random(seed))


def run_schedule(source: random.Random) -> None:
    stream: list[StoredEntry] = []
    late: list[bytes] = []
    processes = [Process(name) for name in range(1, 4)]

    def land(data: bytes) -> None:
        stream.append(StoredEntry(StreamPosition(len(stream)), data))

    for _ in range(120):
        process = source.choice(processes)
        match source.randrange(4):
            case 0:
                count = source.randint(1, 4)
                process.read(stream[process.state.next : process.state.next + count])
            case 1 | 2:
                if (data := process.act(source)) is not None:
                    assert process.proposal is not None
                    fate = source.choice(["plain", "plain", "doubled", "untold", "late", "lost"])
                    if fate in ("plain", "doubled", "untold"):
                        land(data)
                    if fate in ("doubled", "late"):
                        late.append(data)
                    told = fate in ("plain", "doubled")
                    process.proposal.hear_appended(StreamPosition(len(stream) - 1) if told else Unknown(fate))
            case _:
                if late:
                    land(late.pop(source.randrange(len(late))))
    for data in late:
        land(data)
    for process in processes:
        process.read(stream[process.state.next :])
    fresh = Process(9)
    fresh.read(stream)
    due = {key: value for changes in accepted_changes([data for _, data in stream]) for key, value in changes.items()}
    for process in [*processes, fresh]:
        assert (process.memory.raw if process.memory else {}) == due
        assert replace(process.state, since_entries=0) == replace(fresh.state, since_entries=0)
    told = (block for process in processes for block in process.told if block)
    blocks = sorted(told, key=lambda block: block.start)
    assert all(one.stop <= other.start for one, other in itertools.pairwise(blocks)), blocks


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=8))
def test_for_each_base_one_entry_is_accepted(order: Sequence[int], again: Sequence[int]) -> None:
    """In any order, however often each is there: the first one, once."""
    base = base_of(0, FOUNDATION)
    entries = [change_on(base, number) for number in range(6)]
    batch = fold(FoldState(), stored(FOUNDATION, *(entries[number] for number in [*order, *again])), "metadata")
    assert [accepted.position for accepted in batch.accepted] == [0, 1]
    assert batch.changes == first_records() | {b"k%d" % order[0]: b"v"}


@given(st.lists(st.integers(1, 4), max_size=6))
def test_entries_read_in_any_portions_give_the_same(portions: Sequence[int]) -> None:
    """A batch of the reader means nothing."""
    second = change_on(base_of(0, FOUNDATION), 1)
    entries = stored(FOUNDATION, second, b"?", second, change_on(base_of(1, second), 2), b"")
    whole = fold(FoldState(), entries, "metadata")
    state, changes, at = FoldState(), dict[bytes, bytes | None](), 0
    for portion in [*portions, len(entries)]:
        batch = fold(state, entries[at : at + portion], "metadata")
        state, at = batch.state, at + portion
        changes |= batch.changes
    assert (state, changes) == (whole.state, whole.changes)
    assert len(whole.accepted) == 3


def test_foreign_bytes_and_other_clusters_are_void_and_told() -> None:
    """A reader logs them; what the engine itself appends, and the foundation of a node that came too late, are not
    worth a line.
    """
    lost_race = change_on(None, 5, OTHER)
    batch = fold(
        FoldState(),
        stored(b"?", FOUNDATION, lost_race, b"", change_on(Base(StreamPosition(9), 1), 6, OTHER)),
        "metadata",
    )
    assert [(strange.position, strange.why[:25]) for strange in batch.strange] == [
        (0, "it is no entry of Fairlog"),
        (4, "it is of another cluster,"),
    ]
    assert batch.changes == first_records()


def damaged(data: bytes) -> bytes:
    return data[:-1] + bytes((data[-1] ^ 1,))


@pytest.mark.parametrize(
    ("entries", "sentence"),
    [
        ([FOUNDATION, damaged(FOUNDATION)], "stream metadata is corrupt at entry 1: their CRC is wrong"),
        ([FOUNDATION, change_on(Base(StreamPosition(0), 1))], "at entry 1: its proposer has accepted entry 0"),
        ([FOUNDATION, change_on(Base(StreamPosition(5), 1))], "at entry 1: its proposer has accepted entry 5"),
        ([change_on(None)], "at entry 0: it is the first one, and lacks the record 'cluster'"),
        ([encode_change(None, OTHER, Origin(bytes(16), 1), first_records())], "at entry 0: it founds the cluster"),
        ([encode_change(None, OTHER, Origin(bytes(16), 1), {b"cluster": b"\x01"})], "at entry 0: the record 'cluster'"),
    ],
)  # fmt: skip
def test_what_cannot_be_stops_the_reader_naming_stream_and_entry(entries: list[bytes], sentence: str) -> None:
    """Damage, a stream that is not the one that its proposers read, and a foundation that founds nothing."""
    with pytest.raises(CorruptStorage, match=sentence):
        fold(FoldState(), stored(*entries), "metadata")


def test_proposal_has_an_outcome_only_when_its_base_is_taken() -> None:
    """Neither an unknown append nor void entries say anything; then it can never be accepted."""
    state = fold(FoldState(), stored(FOUNDATION), "metadata").state
    one, other = Proposer(b"1" * 16), Proposer(b"2" * 16)
    proposal, rival = one.propose(state, {b"k": b"1"}), other.propose(state, {b"k": b"2"})
    proposal.hear_begun()
    proposal.hear_appended(Unknown("?"))
    assert (proposal.outcome, proposal.is_under_way) == (None, False)
    void = change_on(None, 9)
    batch = fold(state, stored(void, b"?", start=1), "metadata")
    proposal.hear(batch)
    assert proposal.outcome is None
    batch = fold(batch.state, stored(rival.data, proposal.data, proposal.data, start=3), "metadata")
    proposal.hear(batch)
    assert proposal.outcome is Outcome.VOID
    assert batch.changes == {b"k": b"2"}


def test_own_entry_that_lands_twice_is_accepted_once() -> None:
    """The proposer is told once, and the second copy is void."""
    state = fold(FoldState(), stored(FOUNDATION), "metadata").state
    proposal = Proposer(b"1" * 16).propose(state, {b"k": b"1"})
    batch = fold(state, stored(proposal.data, proposal.data, start=1), "metadata")
    proposal.hear(batch)
    assert proposal.outcome is Outcome.ACCEPTED
    assert len(batch.accepted) == 1


def test_proposal_that_was_not_read_is_lost_if_something_was_accepted_meanwhile() -> None:
    """A reader that begins at a later snapshot cannot say; one that begins at the same base waits on."""
    state = fold(FoldState(), stored(FOUNDATION), "metadata").state
    proposal = Proposer(b"1" * 16).propose(state, {b"k": b"1"})
    proposal.hear_skipped(replace(state, next=StreamPosition(9)))
    assert proposal.outcome is None
    proposal.hear_skipped(replace(state, accepted=Base(StreamPosition(5), 5)))
    assert proposal.outcome is Outcome.LOST


# --- snapshots -----------------------------------------------------------------------------------------


def snapshot_of(batch: Batch, number: int, entry_bytes_max: int = 130) -> list[bytes]:
    assert batch.state.accepted is not None
    content = encode_records(sorted((key, value) for key, value in batch.changes.items() if value is not None))
    pieces, last = encode_snapshot(batch.state.accepted, CLUSTER, Origin(b"s" * 16, number), content, entry_bytes_max)
    return [*pieces, last]


def test_snapshots_change_nothing_and_two_are_kept() -> None:
    """The stream is trimmed up to the base of the older one; a copy that lands late is not taken for a newer one."""
    batch = fold(FoldState(), stored(FOUNDATION), "metadata")
    state = batch.state
    assert state.trim_to is None
    first = snapshot_of(batch, 1)
    state = fold(state, stored(*first, start=state.next), "metadata").state
    assert (state.accepted, state.snapshots, state.since_entries) == (batch.state.accepted, (0,), 0)
    bases = [0]
    for number in (2, 3):
        entry = change_on(state.accepted, number)
        bases.append(state.next)
        batch = fold(state, stored(entry, start=state.next), "metadata")
        assert batch.state.since_entries == 1
        state = fold(batch.state, stored(*snapshot_of(batch, number), start=batch.state.next), "metadata").state
        assert state.trim_to == bases[-2] + 1
    state = fold(state, stored(*first, start=state.next), "metadata").state
    assert state.snapshots == tuple(bases[-2:])


def test_snapshot_is_used_if_the_stream_begins_right_after_its_base_and_not_later() -> None:
    """One entry later, an accepted one may be missing."""
    batch = fold(FoldState(), stored(FOUNDATION), "metadata")
    entries = stored(*snapshot_of(batch, 1), start=1)
    assert len(entries) > 2
    found = SnapshotSearch(StreamPosition(1), "metadata").read(entries)
    assert found is not None
    assert found.content == first_records()
    assert found.state == FoldState(CLUSTER, batch.state.accepted, StreamPosition(1))
    assert SnapshotSearch(StreamPosition(2), "metadata").read(entries) is None


def test_snapshot_without_a_piece_is_not_used() -> None:
    """A piece may be there twice, or out of order, but it must be there."""
    batch = fold(FoldState(), stored(FOUNDATION), "metadata")
    first, second, *rest = snapshot_of(batch, 1)
    search = SnapshotSearch(StreamPosition(1), "metadata")
    assert search.read(stored(first, *rest, start=1)) is None
    search = SnapshotSearch(StreamPosition(1), "metadata")
    assert search.read(stored(second, first, second, *rest, start=1)) is not None


def test_snapshots_of_two_clusters_stop_the_search() -> None:
    """Which one is meant cannot be told."""
    batch = fold(FoldState(), stored(FOUNDATION), "metadata")
    entries = stored(change_on(Base(StreamPosition(3), 1), 1, OTHER), *snapshot_of(batch, 1), start=1)
    with pytest.raises(CorruptStorage, match=r"entry 2: it is of .* and others are of"):
        SnapshotSearch(StreamPosition(1), "metadata").read(entries)


def test_snapshot_whose_pieces_do_not_fit_together_stops_the_search() -> None:
    """Each entry's CRC may be right."""
    batch = fold(FoldState(), stored(FOUNDATION), "metadata")
    one, other = snapshot_of(batch, 1), snapshot_of(replace(batch, changes=batch.changes | {b"k": b"v"}), 1)
    with pytest.raises(CorruptStorage, match="the CRC of the whole snapshot is wrong"):
        SnapshotSearch(StreamPosition(1), "metadata").read(stored(*one[:-1], other[-1], start=1))
