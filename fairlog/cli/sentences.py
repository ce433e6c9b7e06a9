"""Errors of the files of a node, as commands say them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from fairlog.cli.errors import ClientError

_T = TypeVar("_T")


def in_sentences(of: Callable[[], _T]) -> _T:
    """What it answers. Makes a ClientError of an error that is a sentence."""
    from fairlog.cluster.opening import StoreMismatch
    from fairlog.directory import DirectoryInUse, DirectoryUnusable
    from fairlog_types import CorruptStorage, StorageFailure

    try:
        return of()
    except (DirectoryInUse, DirectoryUnusable, StoreMismatch, CorruptStorage, StorageFailure) as error:
        raise ClientError(f"{error}{what_to_do(error.__cause__)}") from error


def what_to_do(cause: BaseException | None) -> str:
    """The end of the sentence, if something can be done about it."""
    return "; run this as the node's user" if isinstance(cause, PermissionError) else ""
