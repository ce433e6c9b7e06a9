"""What is done to node and clients, and when: a schedule that follows from a seed. Pure.

Each kind comes once in the first stretch, in random order, so that a short run has them all; then at random. The
network's own faults are the proxy's (tests/history/proxy.py).
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum

GAP_S = 0.7
"""Between two faults, on average, unless said otherwise."""
STOP_MAX_S = 1.5
JUMP_MAX_S = 3600.0
"""So far from the time, forth or back, a jump takes the clock."""
QUIET_S = 0.5
"""At the beginning, when all clients have begun."""


class Fault(Enum):
    """What is done."""

    KILL_NODE = "SIGKILL of the node, and a restart"
    RESTART_NODE = "SIGTERM of the node, and a restart"
    STOP_NODE = "SIGSTOP of the node"
    KILL_PROCESS = "SIGKILL of one process of the node, which its supervisor starts again"
    STOP_PROCESS = "SIGSTOP of one process of the node"
    KILL_CLIENT = "SIGKILL of a client, and a successor"
    STOP_CLIENT = "SIGSTOP of a client"
    REPLACE_CLIENT = "SIGSTOP of a client, and a successor meanwhile: a zombie"
    CUT_CONNECTIONS = "all connections cut"
    JUMP_CLOCK = "jump of the node's wall clock"
    KILL_ENGINE = "SIGKILL of a broker of the engine, and a restart"
    STOP_ENGINE = "SIGSTOP of a broker of the engine"
    CUT_NODE_FROM_ENGINE = "a node cut off from the engine, and not from clients"
    CUT_NODE_FROM_CLIENTS = "a node cut off from clients, and not from the engine"
    CUT_NODE_FROM_NODES = "a node cut off from the other nodes"
    CUT_ENGINE_FROM_NODES = "a broker of the engine cut off from nodes"
    CUT_ENGINE = "a broker of the engine cut off from the other brokers"


_WEIGHTS = {
    Fault.KILL_NODE: 2,
    Fault.RESTART_NODE: 1,
    Fault.STOP_NODE: 1,
    Fault.KILL_CLIENT: 3,
    Fault.STOP_CLIENT: 1,
    Fault.REPLACE_CLIENT: 3,
    Fault.CUT_CONNECTIONS: 1,
    Fault.JUMP_CLOCK: 1,
}


_WEIGHTS_OF_SEVERAL = {fault: weight for fault, weight in _WEIGHTS.items() if fault is not Fault.STOP_NODE} | {
    Fault.KILL_PROCESS: 4,
    Fault.STOP_PROCESS: 2,
}
"""Of a node of several processes; its supervisor may as well stand still."""


_WEIGHTS_OF_A_CLUSTER = {
    Fault.KILL_NODE: 6,
    Fault.RESTART_NODE: 3,
    Fault.STOP_NODE: 4,
    Fault.KILL_CLIENT: 2,
    Fault.STOP_CLIENT: 1,
    Fault.REPLACE_CLIENT: 2,
    Fault.KILL_ENGINE: 1,
    Fault.STOP_ENGINE: 1,
    Fault.JUMP_CLOCK: 1,
    Fault.CUT_NODE_FROM_ENGINE: 3,
    Fault.CUT_NODE_FROM_CLIENTS: 2,
    Fault.CUT_NODE_FROM_NODES: 2,
    Fault.CUT_ENGINE_FROM_NODES: 1,
    Fault.CUT_ENGINE: 1,
}
"""Of several nodes, each time one of them, on an engine of several brokers."""
CUTS = (
    Fault.CUT_NODE_FROM_ENGINE,
    Fault.CUT_NODE_FROM_CLIENTS,
    Fault.CUT_NODE_FROM_NODES,
    Fault.CUT_ENGINE_FROM_NODES,
    Fault.CUT_ENGINE,
)
"""What takes a network of one's own."""


@dataclass(frozen=True, slots=True)
class Planned:
    """One fault, so long after the beginning."""

    at_s: float
    fault: Fault
    lasting_s: float
    """How long something stays stopped, or cut off."""
    choice: float
    """0 to 1: which client or process, or where the clock jumps to."""


def nothing_but(fault: Fault, seed: int) -> Iterator[Planned]:
    """This one, without end."""
    return (Planned(each.at_s, fault, each.lasting_s, each.choice) for each in schedule(seed))


def schedule(seed: int, gap_s: float = GAP_S, processes: int = 1, *, of_cluster: bool = False) -> Iterator[Planned]:
    """Faults without end, in the order of time, of a node of so many processes, or of several nodes."""
    rng = random.Random(seed)
    weights = _WEIGHTS_OF_A_CLUSTER if of_cluster else _WEIGHTS if processes == 1 else _WEIGHTS_OF_SEVERAL
    first = list(weights)
    rng.shuffle(first)
    at_s = QUIET_S
    while True:
        fault = first.pop() if first else rng.choices(list(weights), list(weights.values()))[0]
        yield Planned(at_s, fault, rng.uniform(0.1, STOP_MAX_S), rng.random())
        at_s += rng.expovariate(1 / gap_s)
