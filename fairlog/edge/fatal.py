"""What the node must not survive, wherever in a request it comes up.

A fault in one request closes one connection, and the others go on. Two are different: a broken assertion (nothing that
the node holds in memory can be trusted any more) and damaged storage.
"""

from __future__ import annotations

from typing import cast

from fairlog_types import CorruptStorage

_FATAL = (AssertionError, CorruptStorage)


def raise_if_fatal(error: Exception) -> None:
    """Pass on what the node must not survive; alone or in a group, as nurseries raise it."""
    if isinstance(error, _FATAL):
        raise error
    if isinstance(error, ExceptionGroup):
        for each in cast("ExceptionGroup[Exception]", error).exceptions:
            raise_if_fatal(each)
