"""Records are gone to which a query has a claim: it fails, or goes on with a warning, as `failOnDataLoss` says."""

from __future__ import annotations

import logging
from collections.abc import Iterable

ADVICE = (
    "Set the option failOnDataLoss to false to go on with what there is, or begin a new query with another checkpoint"
)

_logger = logging.getLogger("pyspark_fairlog")


class DataLost(Exception):
    """Records that the query has a claim to are not there, and `failOnDataLoss` is true."""


def report(losses: Iterable[str], *, fail: bool) -> None:
    """Raise DataLost with the sentences in `losses`, if there are any; or only warn."""
    losses = tuple(losses)
    if losses and fail:
        raise DataLost(f"{'; '.join(losses)}. {ADVICE}")
    for loss in losses:
        _logger.warning("%s; the query goes on without", loss)
