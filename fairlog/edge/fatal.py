"""Errors that must stop the node, wherever in a request they occur.

A fault in one request closes one connection, and the others continue. There are two exceptions: a broken assertion (the
state in memory can no longer be trusted) and damaged storage.
"""

from __future__ import annotations

from typing import cast

from fairlog_types import CorruptStorage

_FATAL = (AssertionError, CorruptStorage)


def fatal_in(error: Exception) -> Exception | None:
    """What the node must not survive of this; alone or in a group, as nurseries raise it. None if it may go on."""
    if isinstance(error, _FATAL):
        return error
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            if (fatal := fatal_in(each)) is not None:
                return fatal
    return None


def raise_if_fatal(error: Exception) -> None:
    """Pass on what the node must not survive."""
    fatal = fatal_in(error)
    if fatal is not None:
        raise fatal
