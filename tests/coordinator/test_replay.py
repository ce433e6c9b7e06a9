from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coordinator.group_records import (
    AbortedRecord,
    BeginRecord,
    CommittedRecord,
    Expectation,
    ExpiredRecord,
    PrepareAbortRecord,
    PrepareCommitRecord,
    ProducerRecord,
)
from coordinator.producer import OpenTransaction, Outcome, Producer
from coordinator.replay import in_doubt, replay, snapshot_records
from coordinator.states import IdState
from fairlog_types import LeaderEpoch, LogId, ProducerEpoch, ProducerId, TxId

LOG, OTHER = LogId("t", "ab" * 16, 0), LogId("t", "ab" * 16, 1)


def txid(number: int, epoch: int = 0, producer_id: int = 7) -> TxId:
    return TxId(ProducerId(producer_id), ProducerEpoch(epoch), number)


def granted(epoch: int = 0, *, next_number: int = 0, must_abort: bool = False, name: str = "t") -> ProducerRecord:
    return ProducerRecord(
        name, name, ProducerId(7), ProducerEpoch(epoch), ProducerEpoch(-1), 1_000, next_number, must_abort, 5
    )


def begin(number: int, *logs: LogId) -> BeginRecord:
    return BeginRecord(txid(number), "t", dict.fromkeys(logs or (LOG,), LeaderEpoch(1)), 6)


def prepare_commit(number: int, epoch: int = 0) -> PrepareCommitRecord:
    return PrepareCommitRecord(txid(number, epoch), "t", {LOG: Expectation(LeaderEpoch(1), 2)}, 7, number + 1)


def committed(number: int) -> CommittedRecord:
    return CommittedRecord(txid(number), "t", (), 8)


def prepare_abort(number: int) -> PrepareAbortRecord:
    return PrepareAbortRecord(txid(number), "t", (LOG,), 8)


def aborted(number: int) -> AbortedRecord:
    return AbortedRecord(txid(number), "t", 9)


def the_producer(*records) -> Producer:
    return replay(records).producers["t"]


def test_replay_of_begin_leaves_an_open_transaction_with_all_its_logs():
    """BEGIN is written again when logs are added."""
    producer = the_producer(granted(), begin(0), begin(0, OTHER))
    assert (producer.state, producer.number) == (IdState.OPEN, 0)
    assert list(producer.transaction.logs) == [LOG, OTHER]


def test_replay_of_prepare_commit_leaves_it_in_doubt_and_the_id_empty():
    """The next transaction may have begun since; it is open, and the former still in doubt."""
    producer = the_producer(granted(), begin(0), prepare_commit(0))
    assert (producer.state, producer.number, producer.last) == (IdState.EMPTY, 1, Outcome.COMMITTED)
    producer = the_producer(granted(), begin(0), prepare_commit(0), begin(1))
    assert (producer.state, producer.number) == (IdState.OPEN, 1)
    assert [it.txid for it in producer.decided] == [txid(0)]


def test_replay_of_committed_leaves_nothing_to_do():
    """COMMITTED may come late, behind the end of the next transaction, and changes nothing of that."""
    producer = the_producer(
        granted(), begin(0), prepare_commit(0), begin(1), prepare_abort(1), aborted(1), committed(0)
    )
    assert (producer.decided, producer.last, producer.number) == ((), Outcome.ABORTED, 2)
    assert [it.txid for it in producer.committed] == [txid(0)]


def test_replay_of_half_an_abort_says_discard_again_and_makes_the_id_abort():
    """The client may not have been answered."""
    found = replay([granted(), begin(0), prepare_abort(0)])
    assert list(found.half_aborted) == [txid(0)]
    assert found.producers["t"].state is IdState.MUST_ABORT
    found = replay([granted(), begin(0), prepare_abort(0), granted(1)])
    assert list(found.half_aborted) == [txid(0)]
    assert found.producers["t"].state is IdState.EMPTY, "the next epoch's producer has nothing to do with it"


def test_replay_of_prepare_abort_after_prepare_commit_takes_the_commit_back():
    """A participant refused: neither in doubt nor committed."""
    found = replay([granted(), begin(0), prepare_commit(0), prepare_abort(0), granted(next_number=1, must_abort=True)])
    assert in_doubt([found]) == []
    assert found.producers["t"].state is IdState.MUST_ABORT
    assert found.producers["t"].last is Outcome.ABORTED


def test_replay_of_expired_forgets_the_id():
    """Also a record that comes late for it."""
    assert (
        replay([granted(), ExpiredRecord("t"), aborted(0), begin(0), prepare_commit(0), committed(0)]).producers == {}
    )


def test_replay_of_a_new_epoch_forgets_how_the_last_one_ended():
    """EndTxn of a fresh producer is not a repetition."""
    producer = the_producer(granted(), begin(0), prepare_commit(0), granted(1))
    assert producer.last is None
    assert [it.txid for it in producer.decided] == [txid(0)], "but what was committed is still to be placed"


records = st.lists(
    st.one_of(
        st.builds(granted, st.integers(0, 2), next_number=st.integers(0, 3), must_abort=st.booleans()),
        st.builds(begin, st.integers(0, 3)),
        st.builds(prepare_commit, st.integers(0, 3), st.integers(0, 2)),
        st.builds(committed, st.integers(0, 3)),
        st.builds(prepare_abort, st.integers(0, 3)),
        st.builds(aborted, st.integers(0, 3)),
        st.just(ExpiredRecord("t")),
    ),
    max_size=12,
)


@given(records)
def test_replay_bears_any_records_and_every_record_twice(history):
    """A record that a snapshot has taken into account already may stand behind it."""
    once = replay(history)
    twice = replay([record for record in history for _ in range(2)])
    assert once.producers == twice.producers
    assert once.half_aborted == twice.half_aborted
    assert {it.decided.txid for it in in_doubt([once])} == {it.decided.txid for it in in_doubt([twice])}


def histories():
    """What the machine writes for one id: transactions that end one way or another, the last maybe not at all."""
    ends = st.sampled_from(["commit", "copied", "abort", "refused", "open", "epoch"])
    return st.lists(ends, max_size=8)


def written(ends: list[str]) -> list:
    log: list = [granted()]
    number = 0
    epoch = 0
    for end in ends:
        if end == "epoch":
            epoch, number = epoch + 1, 0
            log.append(granted(epoch))
            continue
        it = TxId(ProducerId(7), ProducerEpoch(epoch), number)
        log.append(BeginRecord(it, "t", {LOG: LeaderEpoch(1)}, 6))
        if end == "open":
            break
        number += 1
        if end in ("commit", "copied", "refused"):
            log.append(PrepareCommitRecord(it, "t", {LOG: Expectation(LeaderEpoch(1), 2)}, 7, len(log)))
        if end == "copied":
            log.append(CommittedRecord(it, "t", (), 7))
        if end == "refused":
            log += [PrepareAbortRecord(it, "t", (LOG,), 7), granted(epoch, next_number=number, must_abort=True)]
        if end == "abort":
            log.append(PrepareAbortRecord(it, "t", (LOG,), 7))
        if end in ("abort", "refused"):
            log.append(AbortedRecord(it, "t", 7))
    return log


@given(histories(), st.data())
def test_snapshot_replays_to_the_same_state_and_so_does_all_that_follows(ends, data):
    """Whether a snapshot was taken, and when, cannot be told from the state."""
    history = written(ends)
    whole = replay(history)
    cut = data.draw(st.integers(0, len(history)))
    # A snapshot never falls between PREPARE_ABORT and ABORTED of one step, but for lack of room: then the
    # machine is ahead of the journal, and the records behind the snapshot are known to it already.
    taken = replay(history[:cut])
    if taken.half_aborted:
        return
    again = replay([*snapshot_records(taken.producers.values()), *history[cut:]])
    assert _without_times(again.producers) == _without_times(whole.producers)


def _without_times(producers: dict[str, Producer]) -> list[Producer]:
    return [producer._replace(used_ms=0) for producer in producers.values()]


@given(histories())
def test_snapshot_ahead_of_the_journal_is_the_state(ends):
    """Records that follow a snapshot which knows of them already change nothing."""
    history = written(ends)
    state = replay(history).producers
    for behind in range(min(4, len(history))):
        tail = history[len(history) - behind :]
        if any(isinstance(record, ProducerRecord) and not record.must_abort for record in tail):
            continue
        again = replay([*snapshot_records(state.values()), *tail]).producers
        assert _without_times(again) == _without_times(state)


def test_snapshot_keeps_commit_order_whichever_copy_ended_first():
    """The second one's COMMITTED came before the first one's, and the snapshot between the two or behind both."""
    journal = [granted(), *(record for number in range(2) for record in (begin(number, LOG), prepare_commit(number)))]
    for told in ([committed(1)], [committed(1), committed(0)]):
        records = list(snapshot_records(replay([*journal, *told]).producers.values()))
        commits = [it.txid for it in records if isinstance(it, PrepareCommitRecord | CommittedRecord)]
        assert commits == [txid(0), txid(1)]


def test_snapshot_leaves_out_what_only_lives_in_memory():
    """Connections are of this run; a transaction that is being prepared is in doubt for a replay."""
    transaction = OpenTransaction(3, {LOG: LeaderEpoch(1)}, {})
    producer = Producer("t", IdState.PREPARING, ProducerId(7), ProducerEpoch(0), transaction=transaction, connection=4)
    (found,) = replay(snapshot_records([producer, Producer("u")])).producers.values()
    assert (found.state, found.connection) == (IdState.EMPTY, -1)
    assert [it.txid for it in found.decided] == [txid(0)]
