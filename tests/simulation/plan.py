"""What a run is made of: drawn from its seed, and what shrinking may take away.

A plan is plain values, so that a failing run can be said in one line and made smaller field by field.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from random import Random

from journal.failpoints import FAILPOINTS

_LEFT_OUT = ("retention", "groups", "journal.append", "copier.stage")
"""Other tests' (a stage's commit is an LMDB commit, too); and what is reached all the time."""

POINTS = (*(name for name in FAILPOINTS if not name.startswith(_LEFT_OUT)), "datalog.commit")
"""Where a machine may die, beside system calls and steps: the failpoints, and the moments around an LMDB commit."""

ANSWERS = ("client.committed", "client.committed", "client.aborted", "client.produced", "client.granted", "client.read")
"""And when a client has just been answered: what it knows then must survive."""


OF_MESSAGES = (
    *("said.PrepareAll", "heard.PrepareAll", "said.Prepared", "heard.Prepared"),
    *("said.ApplyAll", "heard.ApplyAll", "said.tuple", "heard.tuple"),
    *("said.SaidAll", "heard.SaidAll", "said.Resume", "heard.Resume", "said.Resumed", "heard.Resumed"),
    *("said.Begin", "heard.Begin", "said.Begun", "heard.Begun", "said.DiscardTransaction", "heard.DiscardTransaction"),
    *("said.Hello", "heard.Hello", "said.Welcome", "heard.Welcome"),
)
"""And, of several shards, when one has said something to another one, and when that hears it. A tuple: visible."""

OF_CUTS = (
    *("said.AwaitEnds", "heard.AwaitEnds", "said.Hold", "heard.Hold", "said.Held", "heard.Held"),
    *("said.CutLogs", "heard.CutLogs", "said.Cuts", "heard.Cuts", "said.Release", "heard.Release"),
    *("said.TakeCut", "heard.TakeCut", "client.cut"),
)
"""And when a cut is taken over them."""

OF_KEPT_CUTS = (
    *("said.KeepCut", "heard.KeepCut", "said.NoteEnds", "heard.NoteEnds", "said.Noted", "heard.Noted"),
    *("said.KeepEnds", "heard.KeepEnds", "said.FindEnds", "heard.FindEnds", "client.keep", "client.find"),
)
"""And when all keep one, and somebody looks for one of these."""


OF_DELETIONS = (
    "client.deleted",
    "client.deleted",
    *(name for name in FAILPOINTS if name.startswith("retention.delete")),
)
"""And when a client deletes records."""


OF_COPIES = ("copy.given", "copy.got")
"""And when a part of a copy was sent to a node, or was written there."""


PATIENCE_S = 0.5
"""By then the place at which a death is planned has been reached, or will not be soon."""


@dataclass(frozen=True, slots=True)
class Death:
    """How one run of the node ends. At the place, if it comes to that within its time, else when its time is up."""

    kind: str
    """power cut, kill, or stop."""
    after_s: float
    at_call: int | None = None
    at_step: int | None = None
    at_point: str | None = None
    nth: int = 1
    steps_later: int = 0
    """So many steps of the event loop behind the point."""
    down_s: float = 0.0
    """Until the next start."""
    shard: int = 0
    """Whose death it is."""
    everywhere: bool = False
    """A power cut takes the other shards with it."""


@dataclass(frozen=True, slots=True)
class Plan:
    """One run."""

    seed: str
    logs: int
    transactional: int
    """Producers with a transactional id."""
    rivals: int
    """So many of them have a second instance with the same id."""
    plain: int
    readers: int
    deaths: tuple[Death, ...]
    segment_bytes: int
    group_journals: int
    ring: bool
    pause_probability: float
    slow_sync_s: float
    lost_requests: float
    """The share of requests or answers that the network loses."""
    late_requests: float
    """The share of those that are delayed for long."""
    write_error: float = 0.0
    sync_error: float = 0.0
    disk_full: float = 0.0
    """The share of the time in which the disk is full."""
    sinks: int = 0
    """Sinks, each with a query that writes to it."""
    second_drivers: int = 0
    """So many of these queries run twice."""
    commit_error: float = 0.0
    """Of each part of a commit of the data logs."""
    patient: int = 0
    """Transactional producers that rest before they commit, and go on after a refusal."""

    shards: int = 1
    """So many processes, with a shard each."""
    lost_messages: float = 0.0
    """The share of the messages between shards that is lost."""
    late_messages: float = 0.0
    doubled_messages: float = 0.0
    cut_ways: float = 0.0
    """How likely it is, at any time, that one shard does not reach another one for a while."""
    suspensions: float = 0.0
    """How likely it is that a process is suspended for a while."""
    long_suspension_s: float = 0.0
    """So long one process is suspended, once."""
    clocks_apart_s: float = 0.0
    """So far, at most, the wall clock of each process is from the right time, and so far it jumps."""
    clock_jumps: float = 0.0
    """How likely it is, at any time, that the wall clock of a process jumps; and at each of its starts."""
    full_s: float = 0.0
    """So long the disk of one process is full, once."""
    cutters: int = 0
    """So many clients ask for cuts over the shards."""
    limited: int = 0
    """So many clients have cuts kept, and read with a limit from one of them to the next."""
    markers: int = 0
    """So many logs, the first ones, are of marker mode."""
    epochs: int = 0
    """Of so many transactional ids the producers speak transaction version 2."""

    deleters: int = 0
    """So many clients delete records."""
    zombies: int = 0
    """So often an owner is cut off from the replicated log, and from nothing else, while another shard's owner dies."""
    nodes: int = 1
    """So many nodes keep a copy of each shard, whose journals are on a replicated log."""
    changes: int = 0
    """Until a shard has had so many owners, its nodes die as before, again and again."""
    hasty: int = 0
    """So many of them, the first ones, hear of no owner between two of its heartbeats."""
    synced_by: int = 0
    """The log is trimmed before what so many nodes have on disk, and the others get copies of them; 0: before what all
    have."""
    comes_late_s: float = 0.0
    """So much later than the others the last node comes."""
    lost_disks: int = 0
    """So often a node loses its disk, of which others have enough."""

    def to_json(self) -> str:
        return json.dumps(asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(**(fields | {"deaths": tuple(Death(**death) for death in fields["deaths"])}))


def draw(seed: str, *, faults: bool = True) -> Plan:
    """The plan of a seed; without faults: no deaths but stops, a network and a disk that do what they should."""
    rng = Random(f"{seed}/plan")
    # From streams of their own: what seeds meant before there were sinks, they mean still, where there are none.
    of_sinks = Random(f"{seed}/sinks")
    of_commits = Random(f"{seed}/commits")
    of_patient = Random(f"{seed}/patient")
    sinks = of_sinks.choice((0, 0, 1, 2))
    transactional = rng.randint(1, 4)
    failing = rng.random() < 0.25
    plan = Plan(
        seed=seed,
        logs=rng.randint(1, 4),
        transactional=transactional,
        rivals=rng.choice((0, 0, 1, transactional)),
        plain=rng.randint(0, 2),
        readers=rng.randint(1, 2),
        deaths=tuple(_draw_death(rng) for _ in range(rng.randint(2, 7))),
        segment_bytes=rng.choice((12 * 1024, 16 * 1024, 64 * 1024)),
        group_journals=rng.randint(1, 2),
        ring=rng.random() < 0.7,
        pause_probability=rng.choice((0.0, 0.0, 0.05, 0.3)),
        slow_sync_s=rng.choice((0.0005, 0.005, 0.05)),
        lost_requests=rng.choice((0.0, 0.02, 0.1)),
        late_requests=rng.choice((0.0, 0.02, 0.1)),
        write_error=rng.choice((0.0, 0.0, 0.002)) if failing else 0.0,
        sync_error=rng.choice((0.0, 0.01)) if failing else 0.0,
        disk_full=rng.choice((0.0, 0.3)) if failing else 0.0,
        sinks=sinks,
        second_drivers=of_sinks.choice((0, 0, 1)) if sinks else 0,
        commit_error=of_commits.choice((0.0, 0.0, 0.0, 0.0, 0.0, 0.003, 0.03)),
    )
    if sinks:
        deaths = tuple(_moved_to_a_batch(death, of_sinks) for death in plan.deaths)
        plan = replace(plan, deaths=deaths, slow_sync_s=of_sinks.choice((plan.slow_sync_s, 0.05)))
    patient = of_patient.choice((0, 1, 2))
    if patient:
        deaths = tuple(replace(death, down_s=_draw_down_s(of_patient)) for death in plan.deaths)
        plan = replace(plan, patient=patient, deaths=deaths)
    plan = _with_deletions(plan, Random(f"{seed}/log starts alone"))
    return plan if faults else _without_faults(plan)


def _without_faults(plan: Plan) -> Plan:
    return replace(
        plan,
        deaths=tuple(Death("stop", death.after_s, shard=death.shard) for death in plan.deaths),
        lost_requests=0.0,
        late_requests=0.0,
        write_error=0.0,
        sync_error=0.0,
        disk_full=0.0,
        commit_error=0.0,
        lost_messages=0.0,
        late_messages=0.0,
        doubled_messages=0.0,
        cut_ways=0.0,
        suspensions=0.0,
        long_suspension_s=0.0,
        clock_jumps=0.0,
        full_s=0.0,
        zombies=0,
        hasty=0,
        lost_disks=0,
    )


def draw_shards(seed: str, *, faults: bool = True) -> Plan:
    """The plan of a seed for several shards; see `draw`."""
    rng = Random(f"{seed}/plan of shards")
    # Of their own, as in `draw`.
    of_cuts, of_epochs, of_sinks, of_markers, of_limits, of_clocks, of_long, of_full = (
        Random(f"{seed}/{name}")
        for name in (
            *("cuts", "epochs", "sinks over shards", "markers", "past cuts"),
            *("clocks", "long suspensions", "full disks"),
        )
    )
    sinks = of_sinks.choice((0, 0, 0, 0, 1, 2))
    shards = rng.choice((2, 2, 3))
    transactional = rng.randint(2, 5)
    deaths = [_draw_death_of(rng, shard) for shard in range(shards) for _ in range(rng.randint(1, 5))]
    failing = rng.random() < 0.15
    plan = Plan(
        seed=seed,
        shards=shards,
        logs=rng.randint(shards, 6),
        transactional=transactional,
        rivals=rng.choice((0, 0, 1, transactional)),
        plain=rng.randint(0, 1),
        readers=rng.randint(1, 2),
        patient=rng.choice((0, 0, 1)),
        deaths=tuple(deaths),
        segment_bytes=rng.choice((12 * 1024, 16 * 1024, 64 * 1024)),
        group_journals=shards * rng.randint(1, 2),
        ring=rng.random() < 0.7,
        pause_probability=rng.choice((0.0, 0.0, 0.05, 0.3)),
        slow_sync_s=rng.choice((0.0005, 0.005, 0.05)),
        lost_requests=rng.choice((0.0, 0.02, 0.1)),
        late_requests=rng.choice((0.0, 0.02, 0.1)),
        write_error=rng.choice((0.0, 0.0, 0.002)) if failing else 0.0,
        sync_error=rng.choice((0.0, 0.01)) if failing else 0.0,
        commit_error=rng.choice((0.0, 0.003)) if failing else 0.0,
        lost_messages=rng.choice((0.0, 0.02, 0.2)),
        late_messages=rng.choice((0.0, 0.1, 0.3)),
        doubled_messages=rng.choice((0.0, 0.1, 0.5)),
        cut_ways=rng.choice((0.0, 0.0, 0.2)),
        suspensions=rng.choice((0.0, 0.0, 0.1)),
        cutters=of_cuts.choice((0, 1, 2)),
        limited=of_limits.choice((0, 0, 0, 0, 2, 3)),
        epochs=of_epochs.choice((0, 0, 0, transactional)),
        sinks=sinks,
        second_drivers=of_sinks.choice((0, 0, 1)) if sinks else 0,
        clocks_apart_s=of_clocks.choice((0.01, 1.0, 5.0, 5.0, 600.0)),
        clock_jumps=of_clocks.choice((0.0, 0.02, 0.1)),
        long_suspension_s=of_long.uniform(10.0, 60.0) if of_long.random() < 0.06 else 0.0,
        full_s=of_full.choice((0.1, 0.5, 2.0)) * of_full.random() if of_full.random() < 0.12 else 0.0,
    )
    if sinks:
        plan = replace(plan, deaths=tuple(_moved_to_a_batch(death, of_sinks) for death in plan.deaths))
    plan = replace(plan, markers=of_markers.choice((0, 0, 0, 0, of_markers.randint(1, plan.logs), plan.logs)))
    if plan.cutters:
        # Cuts are taken, and could split something, mostly while all are up: so they stay up for a while in the end.
        last = Death("stop", 0.5 + of_cuts.random(), shard=of_cuts.randrange(shards))
        plan = replace(plan, deaths=(*(_moved_to_a_cut(death, of_cuts) for death in plan.deaths), last))
    if plan.limited:
        plan = replace(plan, deaths=tuple(_moved_to_a_kept_cut(death, of_limits) for death in plan.deaths))
    else:
        plan = _with_deletions(plan, Random(f"{seed}/deletions"))
    return plan if faults else _without_faults(plan)


def draw_replicas(seed: str, *, faults: bool = True) -> Plan:
    """The plan of a seed for several nodes with a copy each; see `draw`. `shard` of a death is the node's number."""
    rng, of_disks = Random(f"{seed}/plan of replicas"), Random(f"{seed}/disks of replicas")
    nodes = rng.choice((2, 3, 3))
    transactional = rng.randint(1, 4)
    deaths = [_draw_death_of(rng, node) for node in range(nodes) for _ in range(rng.randint(1, 4))]
    plan = Plan(
        seed=seed,
        nodes=nodes,
        logs=rng.randint(1, 4),
        transactional=transactional,
        rivals=rng.choice((0, 0, 1, transactional)),
        plain=rng.randint(0, 2),
        readers=rng.randint(1, 2),
        patient=rng.choice((0, 0, 1)),
        deaths=tuple(replace(death, after_s=death.after_s * 4, everywhere=False) for death in deaths),
        segment_bytes=rng.choice((12 * 1024, 16 * 1024, 64 * 1024)),
        group_journals=rng.randint(1, 2),
        ring=rng.random() < 0.7,
        pause_probability=rng.choice((0.0, 0.0, 0.05)),
        slow_sync_s=rng.choice((0.0005, 0.005, 0.05)),
        lost_requests=rng.choice((0.0, 0.02, 0.1)),
        late_requests=rng.choice((0.0, 0.02, 0.1)),
        lost_messages=rng.choice((0.0, 0.01, 0.1)),
        late_messages=rng.choice((0.0, 0.01, 0.1)),
        doubled_messages=rng.choice((0.0, 0.1, 0.5)),
        cut_ways=rng.choice((0.0, 0.1, 0.3)),
        suspensions=rng.choice((0.0, 0.1, 0.4)),
        markers=rng.choice((0, 0, 0, 1)),
        write_error=of_disks.choice((0.0, 0.0, 0.0, 0.002)),
        sync_error=of_disks.choice((0.0, 0.0, 0.0, 0.01)),
        commit_error=of_disks.choice((0.0, 0.0, 0.0, 0.003)),
    )
    plan = _with_deletions(plan, Random(f"{seed}/deletions"))
    plan = _with_copies(plan, Random(f"{seed}/copies"))
    return plan if faults else _without_faults(plan)


def _with_copies(plan: Plan, rng: Random) -> Plan:
    """With nodes that are not waited for, and get copies of others: in most plans."""
    plan = replace(plan, clocks_apart_s=rng.choice((0.0, 1.0, 600.0)), hasty=rng.choice((0, 0, 1, plan.nodes)))
    if rng.random() < 0.2:
        return plan
    copied = replace(
        plan,
        synced_by=rng.choice((2, plan.nodes)),
        lost_disks=rng.choice((0, 1, 2, 4)),
        comes_late_s=2.0 * rng.random() if plan.nodes > 2 and rng.random() < 0.4 else 0.0,
    )
    return replace(copied, deaths=tuple(_moved_to_a_copy(death, rng) for death in copied.deaths))


def _moved_to_a_copy(death: Death, rng: Random) -> Death:
    """Some of the deaths come when one node gives a copy, and another one gets it."""
    if death.at_point is None or rng.random() < 0.6:
        return death
    return replace(death, at_point=rng.choice(OF_COPIES), nth=rng.choice((1, 3, rng.randint(1, 40))))


def _with_deletions(plan: Plan, rng: Random) -> Plan:
    """With a client that deletes records, in some plans; some of the deaths come when it does."""
    if rng.choice((0, 0, 0, 0, 0, 1)):
        deaths = tuple(_moved_to_a_deletion(death, rng) for death in plan.deaths)
        return replace(plan, deleters=rng.choice((1, 1, 2)), deaths=deaths)
    return plan


def _moved_to_a_deletion(death: Death, rng: Random) -> Death:
    if death.at_point is None or rng.random() < 0.4:
        return death
    return replace(death, at_point=rng.choice(OF_DELETIONS), nth=rng.randint(1, 6))


def draw_grid(seed: str, *, faults: bool = True) -> Plan:
    """The plan of a seed for several shards on several nodes; see `draw`.

    `shard` of a death is the number of the copy: node * shards + shard. `everywhere`: the whole node dies.
    """
    rng = Random(f"{seed}/plan of the grid")
    shards, nodes = rng.choice((2, 2, 3)), rng.choice((2, 2, 3))
    transactional = rng.randint(2, 4)
    deaths = [_draw_death_of(rng, copy) for copy in range(shards * nodes) for _ in range(rng.randint(0, 2))]
    failing = rng.random() < 0.15
    plan = Plan(
        seed=seed,
        shards=shards,
        nodes=nodes,
        logs=rng.randint(shards, 5),
        transactional=transactional,
        rivals=rng.choice((0, 0, 1)),
        plain=rng.randint(0, 1),
        readers=1,
        patient=rng.choice((0, 0, 1)),
        deaths=tuple(replace(death, after_s=death.after_s * 4) for death in deaths),
        segment_bytes=rng.choice((12 * 1024, 16 * 1024, 64 * 1024)),
        group_journals=shards * rng.randint(1, 2),
        ring=rng.random() < 0.7,
        pause_probability=rng.choice((0.0, 0.0, 0.05)),
        slow_sync_s=rng.choice((0.0005, 0.005)),
        lost_requests=rng.choice((0.0, 0.02, 0.1)),
        late_requests=rng.choice((0.0, 0.02, 0.1)),
        lost_messages=rng.choice((0.0, 0.02, 0.1)),
        late_messages=rng.choice((0.0, 0.1, 0.3)),
        doubled_messages=rng.choice((0.0, 0.1, 0.5)),
        cut_ways=rng.choice((0.0, 0.1, 0.3)),
        suspensions=rng.choice((0.0, 0.1, 0.4)),
        epochs=rng.choice((0, 0, 0, transactional)),
        markers=rng.choice((0, 0, 0, 1)),
        zombies=rng.choice((0, 2, 4)),
        write_error=rng.choice((0.0, 0.002)) if failing else 0.0,
        sync_error=rng.choice((0.0, 0.01)) if failing else 0.0,
        commit_error=rng.choice((0.0, 0.003)) if failing else 0.0,
    )
    if plan.zombies:  # what they are about takes its time, and little else may befall the owners meanwhile
        plan = replace(plan, deaths=(), suspensions=0.0, cut_ways=0.0, lost_messages=0.0, lost_requests=0.0)
    return plan if faults else _without_faults(plan)


def _draw_death_of(rng: Random, shard: int) -> Death:
    death = replace(_draw_death(rng), shard=shard, down_s=_draw_down_s(rng), everywhere=rng.random() < 0.4)
    if death.at_point is None or rng.random() < 0.4:
        return death
    return replace(death, at_point=rng.choice(OF_MESSAGES), nth=rng.randint(1, 6))


def _moved_to_a_cut(death: Death, rng: Random) -> Death:
    """Some of the deaths that come when shards have spoken come when they speak of a cut."""
    if death.at_point not in OF_MESSAGES or rng.random() < 0.5:
        return death
    return replace(death, at_point=rng.choice(OF_CUTS), nth=rng.randint(1, 20))


def _moved_to_a_kept_cut(death: Death, rng: Random) -> Death:
    """Some come when shards keep a cut."""
    if death.at_point is None or rng.random() < 0.6:
        return death
    return replace(death, at_point=rng.choice(OF_KEPT_CUTS), nth=rng.randint(1, 12))


def _draw_down_s(rng: Random) -> float:
    return rng.choice((0.0, 0.0, 0.05, 1.0)) * rng.random()


def _moved_to_a_batch(death: Death, rng: Random) -> Death:
    """Half of the deaths that come when a client has been answered come when a sink's driver has."""
    if death.at_point not in ANSWERS or rng.random() < 0.5:
        return death
    return replace(death, at_point="client.batch", nth=rng.randint(1, 6), steps_later=0)


def _draw_death(rng: Random) -> Death:
    kind = rng.choice(("power cut", "power cut", "power cut", "power cut", "kill", "kill", "stop"))
    place = rng.choice(("time", "call", "step", "point", "point", "answer", "answer", "answer"))
    if kind == "stop" or place == "time":
        return Death(kind, rng.choice((0.01, 0.05, 0.3)) * rng.random() + 0.001)
    steps_later = rng.choice((0, 0, rng.randint(0, 30), rng.randint(0, 300)))
    if place == "call":
        return Death(kind, PATIENCE_S, at_call=int(rng.choice((60, 600, 1500)) * rng.random()) + 1)
    if place == "step":
        return Death(kind, PATIENCE_S, at_step=int(rng.choice((100, 1000, 5000)) * rng.random()) + 1)
    if place == "point":
        nth = rng.choice((1, 1, 2, rng.randint(1, 10)))
        return Death(kind, PATIENCE_S, at_point=rng.choice(POINTS), nth=nth, steps_later=steps_later)
    return Death(kind, PATIENCE_S, at_point=rng.choice(ANSWERS), nth=rng.randint(1, 12), steps_later=steps_later)
