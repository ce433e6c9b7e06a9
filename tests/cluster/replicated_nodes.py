"""Nodes whose cluster store is replicated, on a model of an engine: for the tests of `fairlog.cluster.replicated`."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from unittest import mock

import trio
import trio.testing

from fairlog.cluster.cluster_records import NodeNumber, NodeRecord, Ports
from fairlog.cluster.local_copy import LocalCopy
from fairlog.cluster.metadata_log import Founding, MetadataLog
from fairlog.cluster.replicated import ReplicatedStore
from fairlog.exception_groups import leaves
from fairlog_types import ShardNumber
from tests.stream.model_engine import Faults, ModelCluster, open_model

STREAM = "c.metadata"
FOUNDING = Founding(3, 4, 5, "::")
ONE, TWO, THREE = map(NodeNumber, (1, 2, 3))


class Nodes:
    """Nodes on a model of an engine, each with a copy in a directory."""

    def __init__(self, directory: Path, cluster: ModelCluster) -> None:
        self.directory = directory
        self.cluster = cluster

    @property
    def entries(self) -> list[bytes]:
        log = self.cluster.log(STREAM)
        assert log is not None
        return log.entries

    @asynccontextmanager
    async def log(self, name: str, *, founding: Founding | None = FOUNDING) -> AsyncIterator[MetadataLog]:
        """A node that runs; the cluster is known, unless `founding` is None."""
        stream = await self.cluster.engine(name).open_stream(STREAM)
        copy = LocalCopy.open(self.directory / name, STREAM)
        try:
            async with trio.open_nursery() as nursery:
                log = MetadataLog(stream, copy)
                nursery.start_soon(log.run)
                if founding is not None:
                    await log.found(founding)
                yield log
                nursery.cancel_scope.cancel()
        finally:
            copy.close()

    @asynccontextmanager
    async def store(self, number: int = 1, shard: int = 0) -> AsyncIterator[ReplicatedStore]:
        async with self.log(f"node-{number}") as log:
            yield ReplicatedStore(log, NodeNumber(number), ShardNumber(shard))

    async def refusal(self, name: str, founding: Founding | None = FOUNDING) -> BaseException:
        """What ends a node that is started."""
        try:
            with trio.fail_after(10):
                async with self.log(name, founding=founding):
                    await trio.sleep_forever()
        except Exception as error:  # noqa: BLE001
            return next(iter(leaves(error)))
        raise AssertionError("the node runs")


def node_record(host: str, rack: str | None = None, first_port: int = 9000) -> NodeRecord:
    ports = {ShardNumber(shard): Ports(first_port + shard, first_port + 100 + shard) for shard in range(3)}
    return NodeRecord(bytes(16), host, f"{host}.internal", ports, rack)


async def run_with_jumping_clock(tmp_path: Path, faults: Faults, body: Callable[[Nodes], Awaitable[None]]) -> None:
    """In place of the fixture, for tests that wait: LMDB is written without a thread."""

    async def write(self: LocalCopy, changes: object, state: object) -> None:
        await trio.lowlevel.checkpoint()
        self._write_in_thread(changes, state)  # type: ignore[arg-type]

    with mock.patch.object(LocalCopy, "write", write):
        async with open_model(random.Random(1), faults) as cluster:
            await body(Nodes(tmp_path, cluster))
