"""One client of the workload, a process that is made to be killed: `python -m tests.history.client ROLE SLOT LIFE …`.

It does what its role says until SIGTERM, or until it cannot go on; either way it ends, and the next one of its slot
takes over. What ended it stands in its log. It also ends when its parent has.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
from pathlib import Path

from tests.history.consuming import tail, take_cuts
from tests.history.going_on import go_on
from tests.history.layout import BESIDE, Role, rack, transactional_id, transactional_ids
from tests.history.producing import ANSWER_S, EndAsker, leave_open, write_plain, write_transactions
from tests.history.recorder import Recorder
from tests.history.resuming import prepare_and_resume
from tests.history.routes import MovingRoutes, Routes
from tests.history.transforming import transform

CUT_S = 5.0
MOVING_S = 1.0
"""So long one node of several is waited for."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("role", type=Role)
    parser.add_argument("slot", type=int)
    parser.add_argument("life", type=int)
    parser.add_argument("--address", required=True)
    parser.add_argument("--node-address", required=True, help="the node itself, past the proxy")
    parser.add_argument("--moving", action="store_true", help="the addresses are of nodes whose brokers come and go")
    parser.add_argument("--part", type=Path, required=True, help="where its part of the history goes")
    parser.add_argument("--notes", type=Path, required=True, help="a directory for what outlives the client")
    parser.add_argument("--seed", required=True)
    options = parser.parse_args()
    stopping = False
    parent = os.getppid()

    def stop(_signal: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True

    def going() -> bool:
        return not stopping and os.getppid() == parent

    signal.signal(signal.SIGTERM, stop)
    process = f"{options.role.value}{options.slot}-{options.life}"
    rng = random.Random(f"{options.seed} {process}")
    name = transactional_id(options.role, options.slot)

    def routes(address: str, timeout_s: float, *, to_copies: bool = False) -> Routes | MovingRoutes:
        if options.moving:
            return MovingRoutes(address, timeout_s=MOVING_S, to_copies=to_copies)
        return Routes(address, timeout_s=timeout_s)

    with Recorder(options.part, process) as recorder:
        match options.role:
            case Role.WRITER:
                asker = EndAsker(routes(options.address, ANSWER_S), recorder)
                write_transactions(options.address, name, asker, recorder, rng, going)
            case Role.HOLDER:
                with Recorder(options.part, f"{process}{BESIDE}") as beside:
                    leave_open(options.address, name, recorder, beside, rng, going)
            case Role.PLAIN:
                asker = EndAsker(routes(options.address, ANSWER_S), recorder)
                write_plain(options.address, asker, recorder, rng, going)
            case Role.TRANSFORMER:
                transform(options.address, name, recorder, rng, going)
            case Role.READER:
                tail(options.address, recorder, rng, going, plain=False)
            case Role.PLAIN_READER:
                tail(options.address, recorder, rng, going, plain=True)
            case Role.NEAR_READER:
                tail(options.address, recorder, rng, going, plain=True, rack=rack(options.slot))
            case Role.CUTTER:
                take_cuts(routes(options.node_address, CUT_S), recorder, going)
            case Role.COPY_CUTTER:
                take_cuts(routes(options.node_address, CUT_S, to_copies=True), recorder, going)
            case Role.GOES_ON:
                go_on(options.address, name, recorder, rng, going)
            case Role.RESUMER:
                ids = transactional_ids(options.role, options.slot)
                prepare_and_resume(options.address, ids, options.notes, options.part, process, rng, going)


if __name__ == "__main__":
    main()
