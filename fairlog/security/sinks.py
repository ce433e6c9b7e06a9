"""Sinks as ACLs name them. Pure."""

from __future__ import annotations

PREFIX = "fairlog.sink."


def resource_of_sink(sink: str) -> str:
    """The transactional id that stands for a sink in ACLs: all its lanes, and what is asked about it by name."""
    return PREFIX + sink
