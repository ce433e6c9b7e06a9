"""Recovery at its full size: up to a million finished transactions and 5 GB. Only run when it is named.

A million transactions over the protocol take a quarter of an hour with Kafka, half an hour with Fairlog, and one or two
hours with Kafka that flushes every batch, on two cores; they are made once for each peer. The disk needs some 40 GB.
"""

from __future__ import annotations

from benchmarks.recovery import GB, QUICK, Recovery, case_of

SCENARIO = Recovery(
    "recovery-full",
    [case_of(finished, size) for finished in (10_000, 1_000_000) for size in (GB, 5 * GB)],
    QUICK,
)
