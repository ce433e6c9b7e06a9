"""What the tests of security share: nodes with listeners and certificates; a broker in memory where clients sign in."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import trio
from cryptography.x509.oid import NameOID

from fairlog.kafka.server import Server
from fairlog.native.protocol import NativeProtocol
from fairlog.security_settings import SaslSettings
from scripts.node_process import READY_PREFIX, NodeProcess
from tests.kafka.in_memory import Memory
from tests.security.certificates import Authority, Pair, name_of
from tests.security.signing_in import Peer, add_user, listening


class Node:
    """A started node with listeners of several names, and certificates for it and for its clients."""

    def __init__(
        self, directory: Path, listen: str, *, processes: int = 1, advertised: str = "", **settings: str
    ) -> None:
        self.authority = Authority(directory / "ca")
        self.pair = self.authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
        subject = name_of((NameOID.ORGANIZATION_NAME, "Example"), (NameOID.COMMON_NAME, "alice"))
        self.client: Pair = self.authority.issue("client", subject)
        self.process = NodeProcess(
            directory / "data",
            {
                "FAIRLOG_TLS_CERTIFICATE": str(self.pair.certificate),
                "FAIRLOG_TLS_KEY": str(self.pair.key),
                "FAIRLOG_TLS_CLIENT_CA": str(self.authority.certificate),
                "FAIRLOG_LOG_FORMAT": "json",
                **settings,
            },
            ("--listen", listen, *(("--advertised", advertised) if advertised else ())),
            processes=processes,
        )
        self.process.start()

    @property
    def log(self) -> str:
        return self.process.log_path.read_text(encoding="utf-8")

    @property
    def listeners(self) -> Sequence[Mapping[str, str]]:
        """HOST:PORT of each listener, by name, of each shard."""
        output = self.process.data_dir.with_name("data.out").read_text(encoding="utf-8").splitlines()
        lines = [line.removeprefix(READY_PREFIX) for line in output if line.startswith(READY_PREFIX)]
        return [dict(each.split("://") for each in line.split(",")) for line in lines]


@pytest.fixture
def new_node(tmp_path: Path) -> Iterator[Callable[..., Node]]:
    """A factory of started nodes, which are stopped at the end."""
    nodes: list[Node] = []

    def make(listen: str, **more: object) -> Node:
        nodes.append(Node(tmp_path / f"node{len(nodes)}", listen, **more))  # type: ignore[arg-type]
        return nodes[-1]

    yield make
    for node in nodes:
        assert node.process.stop() == 0, node.process.log_tail()


@pytest.fixture
def sasl() -> SaslSettings:
    """What a test may have otherwise: PLAIN is offered although nothing is encrypted."""
    return SaslSettings(secrets_without_tls=True)


@pytest.fixture
async def memory(sasl: SaslSettings) -> Memory:
    memory = Memory()
    memory.settings = replace(memory.settings, sasl=sasl)
    await add_user(memory.cluster, "alice", "secret of alice")
    return memory


@pytest.fixture
async def server(memory: Memory, nursery: trio.Nursery) -> AsyncIterator[Server]:
    server = Server(memory.broker, [NativeProtocol(memory.broker)])
    server.address = await listening(nursery, server)
    yield server
    server.stop()


@pytest.fixture
def connect(server: Server) -> Callable[[], Peer]:
    """Opens a connection: `async with connect() as peer`."""
    return lambda: Peer(server.address)
