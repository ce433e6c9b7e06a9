"""Every target with its seeds, with what was found once, and with some inputs that nobody has tried before."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from random import Random

import pytest

from tests.fuzz.catalogue import TARGETS
from tests.fuzz.mutating import mutations
from tests.fuzz.target import REGRESSIONS, digest
from tests.seeds import seed_of_the_code

INPUTS = 400
"""New ones for each target: some seconds in all."""


@pytest.mark.slow
def test_readers_raise_what_they_say_and_take_what_they_may(tmp_path):
    """No seed, no regression and none of some new inputs ends in anything but the errors that a reader names."""
    seed = seed_of_the_code()
    print(f"seed {seed}")
    command = [sys.executable, "-W", "ignore", "-m", "tests.fuzz.plain", "--seed", seed, "--inputs", str(INPUTS)]
    done = subprocess.run(
        [*command, "--findings", str(tmp_path), *TARGETS], capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"seed {seed}: {done.stdout}\n{done.stderr}"
    told = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["target"] for line in told] == list(TARGETS)
    assert all(line["inputs"] > INPUTS for line in told)


def test_regressions_belong_to_targets_and_bear_their_digests():
    """A file that no target reads, or that was changed, would be a regression that nobody tries."""
    for path in REGRESSIONS.rglob("*"):
        if path.is_file():
            assert path.parent.name in TARGETS
            assert path.name == digest(path.read_bytes())


def test_mutations_of_a_seed_are_repeatable_and_keep_to_their_size():
    """The same generator state makes the same inputs; none is longer than it may be."""
    seeds = [b"a seed", bytes(range(256))]
    first, again = ((mutations(seeds, Random(7), bytes_max=300)) for _ in range(2))
    made = [next(first) for _ in range(500)]
    assert made == [next(again) for _ in range(500)]
    assert max(map(len, made)) <= 300
    assert len(set(made)) > 400


FAULTY = """
from pathlib import Path
from tests.fuzz import plain
from tests.fuzz.target import Target

def run(data):
    if data != b"seed":
        {fault}

plain.TARGETS = {{"faulty": Target("faulty", "nothing", run, lambda: [b"seed"])}}
raise SystemExit(plain.main(["faulty", "--seed", "1", "--inputs", "9", "--findings", {findings!r}]))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("raise KeyError(data)", "KeyError"),
        ("while True: pass", "TooSlow"),
        ("bytearray(b'x') * (300 << 20)", "TooLarge"),
        ("bytearray(b'x') * (3 << 30)", "MemoryError"),
    ],
)
def test_fault_of_a_reader_is_found_and_kept(tmp_path: Path, fault, said):
    """What is not named, what takes too long and what takes too much: the input is in a file, and the run is red."""
    program = FAULTY.format(fault=fault, findings=str(tmp_path))
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert said in done.stderr
    (kept,) = (tmp_path / "faulty").iterdir()
    assert kept.name == digest(kept.read_bytes())
    assert json.loads(done.stdout)["found"]
