"""The simulation in the test suite: fixed seeds, a fresh one, and that it finds what is planted.

Each runs in a process of its own, as by hand: what a seed does depends on the order of sets, which a process fixes at
its start. `docs/reliability.md` says how to run more of them.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from random import SystemRandom

import pytest

from tests.simulation.plan import Plan, draw, draw_grid, draw_replicas, draw_shards

ROOT = Path(__file__).resolve().parent.parent.parent


def simulate(*arguments: str) -> tuple[int, str]:
    """`python -m tests.simulation`: exit status and output."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.simulation", *arguments],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=300,
    )
    return done.returncode, done.stdout


def in_python(program: str) -> subprocess.CompletedProcess[str]:
    """A program of some lines, in a process whose sets have the same order each time."""
    return subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


@pytest.mark.slow
def test_simulation_of_fixed_seeds_finds_nothing() -> None:
    """Whatever the network, the disk and the machine do in these runs, every promise is kept."""
    status, output = simulate("--runs", "40", "--seed", "fixed")
    assert status == 0, output
    crashes = re.findall(r"([\d,]+) (?:power cut|kill)\b", output)
    assert len(crashes) == 2, output
    went_on = re.search(r"(\d+) transactions that went on over a kill and committed", output)
    assert went_on is not None, output
    assert int(went_on[1]) >= 10, output


@pytest.mark.slow
def test_simulation_of_a_fresh_seed_finds_nothing() -> None:
    """Each run of the test suite tries what none has tried before; the seed is printed."""
    seed = f"{SystemRandom().getrandbits(40):x}"
    print(f"simulated with --seed {seed}")  # noqa: T201 (shown if it fails)
    status, output = simulate("--runs", "20", "--seed", seed)
    assert status == 0, output


@pytest.mark.slow
def test_simulation_of_one_seed_is_the_same_each_time() -> None:
    """A seed makes the same run again, to the last line of its transcript, in another process, and behind others."""
    seeds = ("same.2", "same.4", "same.5")
    digests: list[str] = []
    for seed in seeds:
        first, second = simulate("--only", seed), simulate("--only", seed)
        assert first == second
        assert len(first[1].splitlines()) > 30
        digests.append(first[1].splitlines()[-1].partition(":")[0])
    done = in_python(
        "from tests.simulation.plan import draw; from tests.simulation.simulation import run\n"
        f"print(*(run(draw(seed)).digest for seed in {seeds}))\n"
    )
    assert done.stdout.split() == digests, done.stderr


@pytest.mark.slow
def test_simulation_without_faults_finds_nothing() -> None:
    """The clients' own mischief, over stops in good order, breaks nothing either."""
    status, output = simulate("--runs", "2", "--seed", "calm", "--no-faults")
    assert status == 0, output
    assert "power cut" not in output
    assert "2 open transactions that nobody waited for" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["leave-one-log-undecided", "reclaim-without-sync", "fence-not-written", "open-transaction-waited-for"]
)
def test_simulation_finds_a_planted_bug_and_makes_it_small(name: str) -> None:
    """A bug is found within a few seeds, and told in a transcript that ends with what it broke."""
    status, output = simulate("--mutation", name, "--runs", "60", "--seed", "planted", "--shrink-runs", "20")
    assert status == 1, output
    transcript = output.split("shrinking …\n")[1].splitlines()
    assert any("VIOLATION invariant" in line for line in transcript)
    plan = Plan.from_json(next(line for line in transcript if line.startswith("shrunk:")).split("'")[1])
    again, told = simulate("--mutation", name, "--plan", plan.to_json())
    assert again == 1, told
    end = next(at for at, line in enumerate(transcript) if "VIOLATION" in line) + 1
    assert told.splitlines()[:end] == transcript[:end]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "verdict"),
    [
        ("batch-forgotten-at-the-start", "not behind what stands before it|is missing|sees a part"),
        ("deadline-begins-anew", "is open for .* too long"),
        ("fence-lost-at-the-start", "was fenced, and is not now"),
        (
            "count-of-half-a-journal",
            "not behind what stands before it|is missing|sees a part|before all of .* is there",
        ),
        ("open-transaction-aborted-at-the-start", "is open, but its id is MUST_ABORT"),
        ("told-client-begins-anew", "not behind what stands before it|is missing|sees a part"),
    ],
)
def test_simulation_finds_a_planted_bug_of_transactions_that_go_on(name: str, verdict: str) -> None:
    """What a start must know of a transaction that is open; and that one which it does not know is not committed."""
    status, output = simulate("--mutation", name, "--runs", "60", "--seed", "m", "--shrink-runs", "0")
    assert status == 1, output
    assert re.search(verdict, output.splitlines()[0]), output


@pytest.mark.slow
def test_simulation_of_several_shards_finds_nothing() -> None:
    """Fixed seeds, and fresh ones, of several processes that die one by one, or lose power together."""
    faults = ("jumps of a wall clock", "suspensions of 10 s and more", "full disks")
    seed = f"{SystemRandom().getrandbits(40):x}"
    print(f"simulated with --shards --seed {seed}")  # noqa: T201 (shown if it fails)
    for arguments in (("--runs", "12", "--seed", "fixed"), ("--runs", "8", "--seed", seed)):
        status, output = simulate("--shards", *arguments)
        assert status == 0, output
        assert re.search(r"[\d,]+ messages between shards", output), output
        assert re.search(r"[1-9][\d,]* cuts over shards,", output), output
        assert "fixed" not in arguments or all(fault in output for fault in faults), output


@pytest.mark.slow
def test_simulation_of_several_shards_is_the_same_each_time() -> None:
    """As of one: also behind others in the same process."""
    seeds = ("same.2", "same.4")
    outputs = [simulate("--shards", "--only", seed) for seed in seeds]
    assert outputs[0] == simulate("--shards", "--only", seeds[0])
    done = in_python(
        "from tests.simulation.plan import draw_shards; from tests.simulation.simulation import run\n"
        f"print(*(run(draw_shards(seed)).digest for seed in {seeds}))\n"
    )
    assert done.stdout.split() == [output.splitlines()[-1].partition(":")[0] for _, output in outputs], done.stderr


@pytest.mark.slow
def test_simulation_of_several_shards_without_faults_finds_nothing() -> None:
    """Stops in good order, one after the other, break nothing either."""
    status, output = simulate("--shards", "--runs", "2", "--seed", "calm", "--no-faults")
    assert status == 0, output
    assert "power cut" not in output
    assert "2 open transactions that nobody waited for" in output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "verdict"),
    [
        ("committed-before-others-can-read", "s.2", "was answered to be committed at (), is at"),
        ("not-said-to-the-next-start", "s.1", "has waited for 60.0 s on a healthy node"),
        ("goes-on-while-it-holds", "s.21", "cut 0 has a part"),
        ("held-with-commits-under-way", "s.24", "cut 1 has a part"),
        ("batch-apart-elsewhere", "s.49", "sees a part of s0#11.16"),
        ("lost-one-ends-after-the-next-has-begun", "t.187", "would end OpenInLog"),
        ("apply-number-skipped", "i.0", "t0#1 and t1#2 stand in one order here, in another there"),
        ("time-outs-by-the-wall-clock", "s.7", "a request was refused beside hung#1, which is open"),
    ],
)
def test_simulation_of_several_shards_finds_a_planted_bug(name: str, seed: str, verdict: str) -> None:
    """The seeds are those of the table in docs/reliability.md."""
    status, output = simulate("--shards", "--mutation", name, "--only", seed)
    assert status == 1, output
    assert verdict in output.splitlines()[-1], output


@pytest.mark.slow
def test_simulation_of_several_nodes_finds_nothing() -> None:
    """Fixed seeds, and fresh ones, of nodes with a copy of one shard each, whose owners die, pause and are cut off."""
    seed = f"{SystemRandom().getrandbits(40):x}"
    print(f"simulated with --replicas --seed {seed}")  # noqa: T201 (shown if it fails)
    for arguments in (("--runs", "4", "--seed", "fixed"), ("--runs", "3", "--seed", seed)):
        status, output = simulate("--replicas", *arguments)
        assert status == 0, output
        owners = re.search(r"([\d,]+) owners,", output)
        assert owners is not None, output
        assert int(owners[1]) >= 10, output
        assert "reads at any node" in output
        assert "fixed" not in arguments or re.search(r"[1-9][\d,]* copies of other nodes", output), output


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "verdict"),
    [
        ("answered-before-the-position-was-compared", "r.0", "but the stream goes on at"),
        ("void-entry-copied", "r.0", "but the stream goes on at"),
        ("told-before-it-is-accepted", "r.0", "is known by epoch -1"),
        ("any-fence-is-ones-own", "r.0", "invariant M2: "),
        ("old-fence-is-ones-own", "r.0", "invariant M7: "),
        ("later-fence-wins", "r.0", "contradicts itself"),
        ("any-sequence-will-do", "r.0", "but the stream goes on at"),
        ("heartbeat-of-another-epoch-counts", "r.14", "invariant M1: "),
        ("unknown-append-repeated", "r.0", "invariant M7: "),
        ("unknown-append-answered", "r.0", "was granted, and is not accepted"),
        ("fence-in-a-gap-passed-over", "r.29", "invariant M1: "),
        ("deletion-here-only", "r.5", "was answered to begin at"),
        ("start-passed", "r.5", "was answered to begin at"),
        ("deletion-not-flushed", "r.11", "the nodes' data logs differ"),
        ("copy-not-synced", "synced.21", "segment missing or short"),
        ("mark-before-sync", "r.0", "but the stream goes on at"),
        ("trimmed-too-far", "r.0", "invariant M9: "),
        ("trimmed-before-what-was-read", "r.0", "invariant M9: "),
        ("trimmed-with-a-copy-less", "r.0", "invariant M9: "),
    ],
)
def test_simulation_of_several_nodes_finds_a_planted_bug(name: str, seed: str, verdict: str) -> None:
    """The seeds are those of the table in docs/reliability.md."""
    status, output = simulate("--replicas", "--mutation", name, "--only", seed)
    assert status == 1, output
    assert verdict in output.splitlines()[-1], output


@pytest.mark.slow
def test_simulation_of_several_nodes_is_the_same_each_time() -> None:
    """As of one."""
    assert simulate("--replicas", "--only", "same.2") == simulate("--replicas", "--only", "same.2")


@pytest.mark.slow
def test_simulation_of_several_shards_on_several_nodes_finds_nothing() -> None:
    """Fixed seeds, and a fresh one, of transactions over shards whose owners change nodes, and hear deposed ones."""
    seed = f"{SystemRandom().getrandbits(40):x}"
    print(f"simulated with --grid --seed {seed}")  # noqa: T201 (shown if it fails)
    for arguments in (("--runs", "4", "--seed", "fixed"), ("--runs", "1", "--seed", seed)):
        status, output = simulate("--grid", *arguments)
        assert status == 0, output
        assert re.search(r"[1-9][\d,]* commits,", output) or "fixed" not in arguments, output
        assert "messages between shards" in output
    assert simulate("--grid", "--only", "same.2") == simulate("--grid", "--only", "same.2")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "seed", "verdict"),
    [
        ("deposed-participant-begins", "h.12", "sees a part of t0#12, but not t0.40 in a"),
        ("participant-decides-alone", "g.1", "b commits 1000.1.0, which run.shard-1: a aborts"),
    ],
)
def test_simulation_of_several_shards_on_several_nodes_finds_a_planted_bug(name: str, seed: str, verdict: str) -> None:
    """The seeds are those of the table in docs/reliability.md."""
    status, output = simulate("--grid", "--mutation", name, "--only", seed)
    assert status == 1, output
    assert verdict in output.splitlines()[-1], output


@pytest.mark.slow
def test_simulation_of_kills_in_the_first_start_and_a_power_cut_behind_them_finds_nothing() -> None:
    """Regression, of seed groups.32: a start took the names for durable that one before it, killed, had just given.

    Killed at any of the system calls with which directories and first segments are made; then the power fails.
    """
    program = (
        "from dataclasses import replace; from tests.simulation.plan import Death, draw; "
        "from tests.simulation.simulation import run\n"
        "plan = replace(draw('early.1'), pause_probability=0.3)\n"
        "for call in range(1, 75, 2):\n"
        "    outcome = run(replace(plan, deaths=(Death('kill', 0.5, at_call=call), Death('power cut', 0.1))))\n"
        "    assert outcome.violation is None, (call, outcome.violation)\n"
    )
    done = in_python(program)
    assert done.returncode == 0, done.stderr


def test_plan_survives_being_said() -> None:
    """A plan is printed and read back as it is."""
    for seed in range(50):
        for plan in (draw(str(seed)), draw_shards(str(seed)), draw_replicas(str(seed)), draw_grid(str(seed))):
            assert Plan.from_json(plan.to_json()) == plan
