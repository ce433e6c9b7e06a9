"""The coordinator's shell: runs the machine's effects in order against journals and participants."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import trio

from coordinator.answers import Description, Granted, Refusal
from coordinator.ids import ProducerIds
from coordinator.messages import Participants
from coordinator.settings import CoordinatorSettings
from fairlog_types import LogId, ProducerEpoch, ProducerId

__all__ = ["Coordinator", "CoordinatorSettings", "Description", "Granted", "Refusal"]


class Coordinator:
    """The transactions of all groups that this node leads."""

    def __init__(
        self,
        *,
        journals: Sequence[object],
        participants: Participants,
        producer_ids: ProducerIds,
        settings: CoordinatorSettings,
        now_ms: Callable[[], int],
    ) -> None: ...

    async def recover(self, *, tail_kept: bool = False) -> None:
        """Decide what the last run left undecided, before anything is served.

        `tail_kept` says that everything which was appended before the stop is still there: the journals
        were closed cleanly, or the process died and the machine lived on. Without it, every transactional
        id must abort once before it may go on (docs/decisions/restart-and-open-transactions.md).
        """
        raise NotImplementedError

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Time-outs, expiry, snapshots, and the tail of commits that are being copied; until cancelled."""
        raise NotImplementedError

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        connection: int,
    ) -> Granted | Refusal:
        """Make the caller the one current producer of `transactional_id`; without an id, a fresh producer.

        `producer_id` and `epoch` are -1, or what the client had before (KIP-360). `connection` is the ordinal
        of the client's connection.
        """
        raise NotImplementedError

    async def add_logs(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        epoch: ProducerEpoch,
        logs: Sequence[LogId],
        connection: int,
    ) -> Mapping[LogId, Refusal | None] | Refusal:
        """Begin a transaction if none is open, and let it write to `logs`."""
        raise NotImplementedError

    async def end(
        self, transactional_id: str, producer_id: ProducerId, epoch: ProducerEpoch, commit: bool, connection: int
    ) -> Refusal | None:
        """Commit or abort the open transaction; None means done."""
        raise NotImplementedError

    async def abort_open(self, transactional_id: str) -> Refusal | None:
        """An operator aborts the open transaction, as if it had timed out; None means none is open now."""
        raise NotImplementedError

    def describe(self, transactional_id: str) -> Description | None:
        """The id as it stands, or None if it is unknown."""
        raise NotImplementedError

    def describe_all(self) -> Sequence[Description]:
        """All transactional ids, in no particular order."""
        raise NotImplementedError

    def transactional_id_of(self, producer_id: ProducerId) -> str | None:
        """Whose producer id this is, or None if it is not a transactional producer's."""
        raise NotImplementedError

    def epoch_of(self, producer_id: ProducerId) -> ProducerEpoch | None:
        """The current epoch of a transactional producer; None if the producer id is not one's."""
        raise NotImplementedError
