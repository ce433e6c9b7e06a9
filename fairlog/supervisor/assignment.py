"""What a supervisor tells a process that it starts, in the environment variable FAIRLOG_PROCESS. Pure.

All else the process reads from the flags, the environment and the file of its supervisor. It is told its addresses,
although they follow from the settings, because the supervisor has picked the ports where the settings have port 0, and
a process that is started again must listen where clients look for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlog.config import PROCESS_VARIABLE, ConfigError, Settings
from fairlog.config_values import Address
from fairlog.supervisor.addresses import settings_of_process


@dataclass(frozen=True, slots=True)
class Assignment:
    """The part of one process."""

    process: int
    """Its number, from 0."""
    listen: Address
    admins: tuple[Address, ...]
    """Where the admin listener of each process is, by number; empty if there are none."""
    supervisor: int
    """A descriptor that the process inherits: the reading end of a pipe that ends with the supervisor."""

    @property
    def admin(self) -> Address | None:
        return self.admins[self.process] if self.admins else None

    def to_environment(self) -> Mapping[str, str]:
        admins = [str(each) for each in self.admins]
        return {PROCESS_VARIABLE: json.dumps([self.process, str(self.listen), admins, self.supervisor])}

    def apply(self, settings: Settings) -> Settings:
        """The settings with which the process runs, from those that all have in common. Raises ConfigError."""
        own = settings_of_process(settings, self.process)
        return dataclasses.replace(
            own,
            listen=self.listen,
            admin=dataclasses.replace(own.admin, listen=self.admin),
            admin_listeners=self.admins,
        )


def assignment_in(environment: Mapping[str, str]) -> Assignment | None:
    """What this process was told; None if no supervisor has started it. Raises ConfigError."""
    text = environment.get(PROCESS_VARIABLE)
    if text is None:
        return None
    try:
        return _read(json.loads(text))
    except (ValueError, TypeError, AttributeError) as error:
        raise ConfigError(
            f"{PROCESS_VARIABLE} is no setting: fairlog serve sets it for the processes that it starts"
        ) from error


def _read(told: Any) -> Assignment:
    process, listen, admins, supervisor = told
    if admins and not 0 <= process < len(admins):
        raise ValueError("the process has no admin listener")
    return Assignment(
        int(process), Address.parse(listen), tuple(Address.parse(each) for each in admins), int(supervisor)
    )
