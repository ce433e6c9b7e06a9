"""All targets, by name."""

from __future__ import annotations

from collections.abc import Mapping

from tests.fuzz import (
    checkpoint_targets,
    damaged_log_targets,
    data_log_targets,
    journal_targets,
    node_targets,
    protocol_targets,
    sign_in_targets,
)
from tests.fuzz.target import Target

TARGETS: Mapping[str, Target] = {
    target.name: target
    for module in (
        journal_targets,
        data_log_targets,
        damaged_log_targets,
        node_targets,
        protocol_targets,
        sign_in_targets,
        checkpoint_targets,
    )
    for target in module.TARGETS
}
