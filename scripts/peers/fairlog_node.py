"""A Fairlog node, as a user runs it; `journal` and `markers` differ in how transactions of a new topic are kept.
`journal-2` and `journal-4` have several processes; figures are those of all together, with the supervisor.
`journal-tls` and `journal-acls` have a second listener, with TLS; `journal-acls` has an authorizer as well, to which
whoever comes without TLS is an operator, and who comes with the client's certificate is somebody with ACLs.

Both answer when the data are on the disk (journal.fsync = commit, the default).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from node_process import NodeDidNotStart, NodeProcess

import datalog.layout
import fairlog
import fairlog.cluster.records
import journal.segment
from peers import acls, processes, topics
from peers.certificates import PRINCIPAL, Certificates
from peers.interface import Isolation, PeerDidNotStart, Tuning
from peers.ports import free_ports

_STOP_S = 60.0
_FORMATS = (*journal.segment.VERSIONS.values(), datalog.layout.VERSION, fairlog.cluster.records.VERSION)
"""The formats of local and group journals, data logs and cluster store."""


class FairlogNode:
    """One node in `directory`. interface.Peer documents its methods."""

    durable = True

    def __init__(
        self,
        name: Literal["journal", "markers", "journal-2", "journal-4", "journal-tls", "journal-acls"],
        directory: Path,
        tuning: Tuning,
        *,
        processes: int = 1,
        tls: Certificates | None = None,
    ) -> None:
        self.name = name
        self.directory = directory
        self.data = directory / "data"
        self.storage = f"fairlog-{fairlog.__version__}-{name}-formats-{'.'.join(map(str, _FORMATS))}"
        mode = "markers" if name == "markers" else "journal"
        self.description = f"Fairlog {fairlog.__version__}, transactions in {mode} mode, commits flushed"
        if processes > 1:
            self.description += f", {processes} processes"
        self.transactional_isolation: Isolation = "read_uncommitted" if mode == "journal" else "read_committed"
        self.settings: Mapping[str, str] = {
            "FAIRLOG_LOG_LEVEL": "warning",
            "FAIRLOG_ADMIN_LISTEN": "off",
            "FAIRLOG_JOURNAL_FSYNC": "commit",
        }
        if name == "markers":
            self.settings |= {"FAIRLOG_TOPICS_TRANSACTIONS": "markers"}
        if tuning.retention_check_ms is not None:
            self.settings |= {"FAIRLOG_RETENTION_CHECK_INTERVAL_MS": str(tuning.retention_check_ms)}
        if tuning.clean_check_ms is not None:
            self.settings |= {"FAIRLOG_RETENTION_CLEAN_INTERVAL_MS": str(tuning.clean_check_ms)}
        if name == "journal-acls":
            self.settings |= {
                "FAIRLOG_AUTHORIZER_ENABLE": "true",
                "FAIRLOG_AUTHORIZER_SUPER_USERS": "User:ANONYMOUS",
            }
        self._tls = tls
        environment, arguments = dict(self.settings), list[str]()
        if tls is not None:
            self.description += ", a second listener with TLS"
            open_port, tls_port = free_ports(2)
            arguments = ["--listen", f"PLAINTEXT://127.0.0.1:{open_port},SSL://127.0.0.1:{tls_port}"]
            environment |= {
                "FAIRLOG_TLS_CERTIFICATE": str(tls.node),
                "FAIRLOG_TLS_KEY": str(tls.node_key),
                "FAIRLOG_TLS_CLIENT_CA": str(tls.ca),
                "FAIRLOG_TLS_CLIENT_AUTH": "required",
            }
        self._node = NodeProcess(self.data, environment, arguments, processes=processes)

    @property
    def address(self) -> str:
        return self._node.addresses[0].removeprefix("PLAINTEXT://")

    @property
    def secured(self) -> Mapping[str, str] | None:
        if self._tls is None:
            return None
        (address,) = (each.removeprefix("SSL://") for each in self._node.addresses if each.startswith("SSL://"))
        return {"bootstrap.servers": address, **self._tls.client}

    @property
    def running(self) -> bool:
        return self._node.running

    def spawn(self) -> None:
        self._node.spawn()

    def start(self, timeout_s: float = 120.0) -> None:
        try:
            self._node.start(timeout_s)
        except NodeDidNotStart as error:
            raise PeerDidNotStart(str(error)) from None
        if self.name == "journal-acls":
            acls.allow(self.address, PRINCIPAL)

    def stop(self) -> None:
        if self._node.running:
            self._node.stop(_STOP_S)

    def kill(self) -> None:
        self._node.kill()

    def cpu_s(self) -> float:
        return sum(map(processes.cpu_s, self._pids()))

    def memory_bytes(self) -> int:
        return sum(map(processes.memory_bytes, self._pids()))

    def written_bytes(self) -> int:
        return sum(map(processes.written_bytes, self._pids()))

    def _pids(self) -> set[int]:
        return {self._node.pid, *self._node.pids}

    def disk_bytes(self) -> int:
        return processes.disk_bytes(self.data)

    def create_topics(
        self, names: Sequence[str], partitions: int = 1, configs: Mapping[str, str] | None = None
    ) -> None:
        topics.create(self.address, names, partitions, configs or {})
