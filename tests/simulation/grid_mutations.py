"""Planted bugs of several shards whose owners change nodes (`--grid`). Some are those of one of the two alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import get_args

from coordinator.group_journal import GroupJournal
from coordinator.messages import Begin, Resume
from shard import commands
from shard.commands import Commands
from shard.links import Links
from tests.simulation import replica_mutations, shard_mutations
from tests.simulation.planting import Mutation, does_not_wait, patched

_WITHOUT_BEGIN = tuple(each for each in get_args(commands._ANSWERED_BY_OWNERS) if each not in (Begin, Resume))


def _says_it_now(_links: Links, say: Callable[[], None]) -> None:
    say()


_BY_NAME = {it.name: it for it in (*shard_mutations.MUTATIONS, *replica_mutations.MUTATIONS)}

MUTATIONS: tuple[Mutation, ...] = (
    Mutation(
        "deposed-participant-answers",
        "a deposed owner says of what it has never heard of that it is prepared, and visible",
        patched(Commands, "execute", Commands._begin),
    ),
    Mutation(
        "deposed-participant-begins",
        "a deposed owner begins a transaction, or resumes it; the present one takes its batches for the last one",
        patched(commands, "_ANSWERED_BY_OWNERS", _WITHOUT_BEGIN),
    ),
    Mutation(
        "deposed-coordinator-says-all",
        "a deposed coordinator names to a new owner what it goes on with, and the rest is aborted",
        patched(Links, "say_as_owner", _says_it_now),
    ),
    Mutation(
        "applied-before-the-decision-is-accepted",
        "a commit is answered and applied while PREPARE_COMMIT may be void",
        patched(GroupJournal, "flush", does_not_wait),
    ),
)

SHARED: tuple[Mutation, ...] = tuple(
    _BY_NAME[name]
    for name in (
        "participant-decides-alone",
        "not-said-to-the-next-start",
        "told-before-it-is-accepted",
    )
)
"""Of the other forms: what their simulations find, too, where owners change nodes."""
