"""Recovery at its full size: up to a million finished transactions and 5 GB. Runs only if it is named.

The million is made once, beforehand or by the first run (finished.py); later runs begin with copies. The disk needs
about 15 GB for each Fairlog peer, and half of that for each Kafka peer.
"""

from __future__ import annotations

from benchmarks.recovery import GB, QUICK, Recovery, case_of

SCENARIO = Recovery(
    "recovery-full",
    [case_of(finished, size) for finished in (10_000, 1_000_000) for size in (GB, 5 * GB)],
    QUICK,
)
