"""What befalls nodes with copies of shards, beside their own deaths: and how their streams are trimmed meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random

import trio

from fairlog.cluster import reports
from fairlog.cluster.cluster_records import NodeNumber
from tests.simulation.plan import Plan
from tests.simulation.process_faults import resume, suspend
from tests.simulation.replica_machine import ReplicaMachine
from tests.simulation.world import World
from tests.stream.model_engine import Faults as StreamFaults
from tests.stream.model_engine import ModelCluster


def stream_faults(plan: Plan) -> StreamFaults:
    return StreamFaults(
        lost=plan.lost_messages / 4,
        untold=plan.lost_messages / 4,
        late=plan.late_messages / 4,
        doubled=plan.doubled_messages / 4,
        end_fails=plan.lost_messages,
        end_appends=0.3,
        append_s_max=0.004,
        answer_s_max=0.004,
        read_s_max=0.02,
        late_s_max=1.0,
        append_timeout_s=0.5,
        ask_timeout_s=0.1,
    )


async def disturb(world: World, plan: Plan, machines: Sequence[ReplicaMachine], cluster: ModelCluster) -> None:
    """Suspend nodes, cut them off, let the engine go away."""
    rng: Random = world.stream("disturbance")
    nodes = _by_node(machines)
    try:
        async with trio.open_nursery() as nursery:
            while not world.stopping.is_set():
                for machine in machines:
                    faults = machine.calls.faults
                    faults.write_error, faults.sync_error = plan.write_error, plan.sync_error
                    faults.commit_error = plan.commit_error
                # The owner is the one that matters.
                owners = [node for node in nodes if any(machine.owns for machine in node)]
                node = rng.choice(owners or list(nodes)) if rng.random() < 0.7 else rng.choice(nodes)
                seconds = rng.choice((0.05, 0.5, 1.5)) * rng.random() * plan.shards  # while others fail over, too
                if rng.random() < plan.suspensions and all(
                    machine.world.held is None and not machine.world.crashed for machine in node
                ):
                    world.count("suspensions")
                    for machine in node:
                        suspend(machine.world)
                        nursery.start_soon(_after, seconds, partial(resume, machine.world))
                elif rng.random() < plan.cut_ways:
                    world.count("nodes cut off from the engine")
                    cluster.cut(node[0].name)
                    nursery.start_soon(_after, seconds, partial(cluster.join, node[0].name))
                elif rng.random() < plan.cut_ways / 4:
                    world.count("times that the engine was away")
                    cluster.go_away()
                    nursery.start_soon(_after, seconds, cluster.come_back)
                await trio.sleep(0.2 * rng.random())
    finally:
        for machine in machines:
            resume(machine.world)


async def trim(world: World, plan: Plan, machines: Sequence[ReplicaMachine], cluster: ModelCluster) -> None:
    """Let whoever takes itself for the owner of a shard trim its stream, by what each node has said last."""
    rng: Random = world.stream(f"trimming of {machines[0].truth.stream}")
    log = cluster.open(machines[0].truth.stream)
    heard: dict[NodeNumber, reports.HeardCopy] = {}
    heard_s: dict[NodeNumber, float] = {}
    moved_s: dict[NodeNumber, float] = {}
    while True:
        await trio.sleep(0.2)
        now_s = trio.current_time()
        members = [NodeNumber(machine.at) for machine in machines if machine.durable.starts]
        for machine in machines:
            node, report = NodeNumber(machine.at), machine.progress.report
            if report is not None:
                heard_s[node] = now_s
                if node not in heard or heard[node].synced != report.synced:
                    moved_s[node] = now_s
                heard[node] = reports.HeardCopy(*report, age_s=0.0, unmoved_s=0.0)
                # Until then a report of the copy that was lost may count.
                machine.has_lost_disk = machine.has_lost_disk and machine.mark_on_disk() < log.start
        copies = {
            node: replace(copy, age_s=now_s - heard_s[node], unmoved_s=now_s - moved_s[node])
            for node, copy in heard.items()
        }
        owners = [machine for machine in machines if machine.node is not None]
        if not owners:
            continue
        owner, synced_by = NodeNumber(rng.choice(owners).at), plan.synced_by or len(machines)
        if owner not in copies:
            continue
        before = reports.trim_to(owner, copies[owner].synced, members, copies, synced_by)
        if before is not None and before > log.start:
            check_trim(world, machines, before, synced_by)
            log.start = before
            world.count("trims")
            cluster.trimmed()


def check_trim(world: World, machines: Sequence[ReplicaMachine], before: int, synced_by: int) -> None:
    """M9: what goes is on so many disks; but for those that were lost."""
    marks = {machine.name: machine.mark_on_disk() for machine in machines}
    kept = sum(mark >= before or machine.has_lost_disk for mark, machine in zip(marks.values(), machines, strict=True))
    if kept < synced_by:
        world.violate("M9", f"{machines[0].truth.stream} is trimmed before {before}, and the marks are {marks}")


async def lose_disks(world: World, plan: Plan, machines: Sequence[ReplicaMachine], cluster: ModelCluster) -> None:
    """A node loses its disk, if another one has all that the log has not; and often one of the two dies meanwhile."""
    rng: Random = world.stream("lost disks")
    log = cluster.open(machines[0].truth.stream)
    for _ in range(plan.lost_disks):
        await trio.sleep(1.5 * rng.random())
        victim = rng.choice(machines)
        others = [machine for machine in machines if machine is not victim]
        has_all = [machine for machine in others if not machine.has_lost_disk and machine.mark_on_disk() >= log.start]
        if not victim.runs or not has_all or any(machine.has_lost_disk for machine in others):
            continue
        world.note("disks", f"{victim.name} loses its disk")
        world.count("lost disks")
        victim.loses_disk = True
        victim.die("kill")
        with trio.move_on_after(3.0):
            while not victim.joins:  # noqa: ASYNC110
                await trio.sleep(0.005)
        if victim.joins and rng.random() < 0.7:
            await trio.sleep(0.1 * rng.random())
            dies = rng.choice((victim, victim, rng.choice(others)))
            dies.calls.die_at_call = rng.randint(1, 80)
        with trio.move_on_after(3.0):
            while victim.has_lost_disk:  # noqa: ASYNC110
                await trio.sleep(0.02)


async def watch_folds(machines: Sequence[ReplicaMachine]) -> None:
    """M1, again and again, wherever each copy is."""
    while True:
        await trio.sleep(0.05)
        for machine in machines:
            if machine.fold_state is not None:
                machine.truth.check_fold(machine.name, machine.fold_state())


async def _after(seconds: float, call: Callable[[], None]) -> None:
    await trio.sleep(seconds)
    call()


def _by_node(machines: Sequence[ReplicaMachine]) -> Sequence[Sequence[ReplicaMachine]]:
    """The copies on each node."""
    found: dict[str, list[ReplicaMachine]] = {}
    for machine in machines:
        found.setdefault(machine.name, []).append(machine)
    return list(found.values())
