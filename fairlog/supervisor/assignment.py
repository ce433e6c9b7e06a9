"""What a supervisor and the processes that it starts tell each other, as lines of JSON. Pure.

    FAIRLOG_PROCESS, in its environment      which process it is
    on its standard input                    serve this shard, with this `Assignment`; halt that one
    on its standard output                   this shard is ready, and how that is announced; that one is halted

All else the process reads from the flags, the environment and the file of its supervisor. It is told the addresses of a
shard, although they follow from the settings, because the supervisor has picked the ports where the settings have port
0, and a shard must be found where clients look for it, whichever process serves it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fairlog.config import PROCESS_VARIABLE, ConfigError, Settings
from fairlog.config_values import Address, ListenerAddresses
from fairlog.supervisor.addresses import settings_of_shard


@dataclass(frozen=True, slots=True)
class Assignment:
    """What a process has to know of a shard that it serves."""

    shard: int
    """Its number, from 0."""
    shards: int
    """How many there are."""
    listen: ListenerAddresses
    """One address for each listener."""
    admins: tuple[Address, ...]
    """Where the admin listener of each shard is, by number; empty if there are none."""

    @property
    def admin(self) -> Address | None:
        return self.admins[self.shard] if self.admins else None

    def apply(self, settings: Settings) -> Settings:
        """The settings with which the shard is served, from those that all have in common. Raises ConfigError."""
        own = settings_of_shard(settings, self.shard, self.shards)
        return dataclasses.replace(
            own,
            listen=self.listen,
            admin=dataclasses.replace(own.admin, listen=self.admin),
            admin_listeners=self.admins if self.shards > 1 else (),
        )


@dataclass(frozen=True, slots=True)
class Serve:
    """Serve a shard."""

    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Halt:
    """End the service of a shard in good order."""

    shard: int


@dataclass(frozen=True, slots=True)
class Ready:
    """A shard accepts clients."""

    shard: int
    announcement: str
    """Whole lines, for the standard output of the node."""


@dataclass(frozen=True, slots=True)
class Halted:
    """A shard is served no more, and its files are closed."""

    shard: int


def environment_of(process: int) -> Mapping[str, str]:
    """What tells a process which one it is."""
    return {PROCESS_VARIABLE: str(process)}


def process_in(environment: Mapping[str, str]) -> int | None:
    """Which process this is; None if no supervisor has started it. Raises ConfigError."""
    text = environment.get(PROCESS_VARIABLE)
    if text is None:
        return None
    if not (text.isascii() and text.isdecimal()):
        raise ConfigError(f"{PROCESS_VARIABLE} is no setting: fairlog serve sets it for the processes that it starts")
    return int(text)


def to_line(said: Serve | Halt | Ready | Halted) -> bytes:
    match said:
        case Serve(Assignment(shard, shards, listen, admins)):
            told: list[object] = ["serve", shard, shards, str(listen), list(map(str, admins))]
        case Halt(shard):
            told = ["halt", shard]
        case Ready(shard, announcement):
            told = ["ready", shard, announcement]
        case Halted(shard):
            told = ["halted", shard]
    return json.dumps(told).encode() + b"\n"


def from_line(line: bytes) -> Serve | Halt | Ready | Halted:
    """What `to_line` has written. The other end is this program's own: raises ValueError for all else."""
    told: Any = json.loads(line)
    match told:
        case ["serve", int(shard), int(shards), str(listen), [*admins]]:
            parsed = tuple(Address.parse(each) for each in admins)
            return Serve(Assignment(shard, shards, ListenerAddresses.parse(listen), parsed))
        case ["halt", int(shard)]:
            return Halt(shard)
        case ["ready", int(shard), str(announcement)]:
            return Ready(shard, announcement)
        case ["halted", int(shard)]:
            return Halted(shard)
        case _:
            raise ValueError(f"no line between a supervisor and its processes: {line!r}")
