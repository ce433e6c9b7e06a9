"""All strains, and how one is endured and judged."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tests.limits import idling, reading, transacting, writing
from tests.limits.site import SETTLE_S, Seen, open_site
from tests.limits.strain import MIB, Strain
from tests.limits.wire import Refused

STRAINS = (*idling.STRAINS, *reading.STRAINS, *writing.STRAINS, *transacting.STRAINS)

_UNDISTURBED_S, _SMALL_UNDISTURBED_S = 5.0, 0.2


@dataclass(frozen=True, slots=True)
class Result:
    seen: Seen
    ended: str
    wrong: list[str]
    """What should not have been; empty if all was well."""


def endure(strain: Strain, directory: Path, *, small: bool) -> Result:
    """Do it to a new node below `directory`."""
    environment = strain.environment
    if small and strain.small_environment is not None:
        environment = strain.small_environment
    ended, wrong = "", list[str]()
    with open_site(
        directory,
        environment,
        everywhere=strain.everywhere,
        undisturbed_s=_SMALL_UNDISTURBED_S if small else _UNDISTURBED_S,
        settle_s=0.0 if small else SETTLE_S,
    ) as site:
        try:
            ended = (strain.run_small if small else strain.run)(site)
        except (AssertionError, OSError, Refused, RuntimeError) as error:
            ended = f"FAILED: {type(error).__name__}: {error}"
            wrong.append(ended)
    seen = site.seen
    wrong.extend(seen.faults)
    grows_bytes_max = strain.small_grows_bytes_max if small else strain.grows_bytes_max
    if seen.grown_bytes > grows_bytes_max:
        wrong.append(f"the node grew by {seen.grown_bytes / MIB:.0f} MiB; {grows_bytes_max / MIB:.0f} are its bound")
    return Result(seen, ended, wrong)
