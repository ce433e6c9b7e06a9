"""What is asked of which log. Pure.

Every data log is dense, with the documented exceptions: they all stand here, and nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass

from fairlog.cluster.interface import Topic


@dataclass(frozen=True, slots=True)
class LogRules:
    """What a data log's batches must keep."""

    dense: bool = True
    """Offsets 0, 1, 2, … without holes (invariant 2), and every batch as it was produced. A compacted log has lost
    records on purpose: its offsets only grow, and a transaction in it may have holes."""


DENSE = LogRules()


def rules_of(topic: Topic | None) -> LogRules:
    """The rules for the logs of `topic`; None for a log that is no topic's."""
    if topic is not None and "compact" in topic.configs.get("cleanup.policy", ""):
        return LogRules(dense=False)
    return DENSE
