"""What is in the groups of exceptions that trio's nurseries raise. Pure."""

from __future__ import annotations

from collections.abc import Generator
from typing import cast


def leaves(error: BaseException) -> Generator[BaseException]:
    """The exceptions of a group, however deep it is; one that is no group is its own leaf."""
    if isinstance(error, BaseExceptionGroup):
        for inner in cast(BaseExceptionGroup[BaseException], error).exceptions:
            yield from leaves(inner)
    else:
        yield error
