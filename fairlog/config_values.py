"""The values that settings take: their types, and how each is read from outside.

A reader turns an outside value, which is typed in TOML and text in environment and flags, into ours. It raises
ValueError, with the words that follow the key's name in the message. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from fairlog.security.mechanisms import MECHANISMS

_SASL = "SASL_PLAINTEXT://"

SECRET_CHARACTERS_MIN = 16
"""So many random ones cannot be tried out."""


@dataclass(frozen=True, slots=True)
class Address:
    """Where a node listens or is reached. `host` is a name or an IP address (v6 without brackets)."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @classmethod
    def parse(cls, text: str) -> Address:
        """Read HOST:PORT, with an IPv6 address in brackets. Raises ValueError that says what is wrong."""
        if "," in text:
            raise ValueError("one HOST:PORT is needed, not several")
        host, separator, port = text.rpartition(":")
        if not separator or not host:
            raise ValueError("an address is HOST:PORT")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ValueError("an IPv6 address stands in brackets, as in [::1]:9092")
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("the port is a number from 0 to 65535")
        return cls(host, int(port))


@dataclass(frozen=True, slots=True)
class SaslAddress(Address):
    """An address where clients have to sign in: SASL_PLAINTEXT://HOST:PORT."""


@dataclass(frozen=True, slots=True)
class FirstAddress(Address):
    """The first process's address, where the addresses of all processes are listed."""

    others: tuple[Address, ...]
    """Those of the processes that follow; at least one."""

    def __str__(self) -> str:
        return ",".join(map(str, (Address(self.host, self.port), *self.others)))


@dataclass(frozen=True, slots=True)
class Secret:
    """A text that no log line and no message shows."""

    text: str = dataclasses.field(repr=False)


class Untyped(str):
    """A value from where there is text only. In TOML a number in quotes is a text, and no number."""

    __slots__ = ()


def read_text(value: object) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError("a text that is not empty is needed")
    return value


def read_text_or_empty(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("a text is needed")  # noqa: TRY004 (what readers raise)
    return value


def read_name_or_empty(value: object) -> str:
    text = read_text_or_empty(value)
    if re.fullmatch(r"[A-Za-z0-9._-]*", text) is None:
        raise ValueError("a name of letters, digits, '.', '_' and '-' is needed")
    return text


def read_file_or_none(value: object) -> Path | None:
    return None if value is None or value == "" else Path(value if isinstance(value, Path) else read_text(value))


KAFKA_SCHEME = "kafka://"


def read_journals(value: object) -> str | None:
    """None for `files`; else the brokers of the Kafka cluster that keeps them, HOST:PORT with commas between."""
    text = read_text(value)
    if text.lower() == "files":
        return None
    scheme, brokers = text[: len(KAFKA_SCHEME)], text[len(KAFKA_SCHEME) :].rstrip("/")
    if scheme.lower() != KAFKA_SCHEME:
        raise ValueError(f"files, or {KAFKA_SCHEME}HOST:PORT,… is needed")
    return ",".join(str(Address.parse(broker.strip())) for broker in brokers.split(","))


def read_directory(value: object) -> Path:
    return Path(value if isinstance(value, Path) else read_text(value))


def read_address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(read_text(value))


def read_addresses(value: object) -> Address:
    """One HOST:PORT, or one for each shard with commas between them: then a FirstAddress."""
    if isinstance(value, Address):
        return value
    if isinstance(value, str) and value.startswith(_SASL):
        address = Address.parse(value.removeprefix(_SASL))
        return SaslAddress(address.host, address.port)
    items: Sequence[object] = [value]
    if isinstance(value, str):
        items = value.split(",")
    elif isinstance(value, list):
        items = cast("list[object]", value) or [""]
    first, *others = (Address.parse(read_text(item).strip()) for item in items)
    return FirstAddress(first.host, first.port, tuple(others)) if others else first


def read_address_or_off(value: object) -> Address | None:
    return None if isinstance(value, str) and value.lower() == "off" else read_address(value)


def read_secret(value: object) -> Secret:
    text = read_text(value)
    if len(text) < SECRET_CHARACTERS_MIN or not text.isascii() or not text.isprintable() or " " in text:
        raise ValueError(f"at least {SECRET_CHARACTERS_MIN} characters of ASCII without spaces are needed")
    return Secret(text)


def read_names(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("names are needed, with commas between them")  # noqa: TRY004 (what readers raise)
    names = tuple(read_text(item).strip() for item in cast("Sequence[object]", items))
    if not all(re.fullmatch(r"[A-Za-z0-9._-]+", name) for name in names):
        raise ValueError("names of hosts are needed, without ports")
    return names


def read_principals(value: object) -> tuple[str, ...]:
    """KIND:NAME with semicolons between them, for the name in a certificate has commas; or a list."""
    items = [item for item in value.split(";") if item.strip()] if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("principals are needed, with semicolons between them")  # noqa: TRY004 (what readers raise)
    principals = tuple(read_text(item).strip() for item in cast("Sequence[object]", items))
    if not all(re.fullmatch(r"[^:]+:.+", principal) for principal in principals):
        raise ValueError("principals are needed, KIND:NAME each, such as User:admin")
    return principals


def read_mechanisms(value: object) -> tuple[str, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, list | tuple):
        raise ValueError("names of mechanisms are needed, with commas between them")  # noqa: TRY004 (what readers raise)
    names = tuple(read_text(item).strip() for item in cast("Sequence[object]", items))
    unknown = [name for name in names if name not in MECHANISMS]
    if unknown or not names:
        raise ValueError(f"mechanisms are {', '.join(MECHANISMS)}{_unquoted(unknown[0]) if unknown else ''}")
    return names


def read_switch(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, Untyped) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError(f"true or false is needed{_unquoted(value)}")


def whole(least: int, most: int | None = None) -> Callable[[object], int]:
    bounds = f"a whole number of at least {least}" if most is None else f"a whole number from {least} to {most}"

    def read(value: object) -> int:
        if isinstance(value, Untyped) and re.fullmatch(r"-?[0-9]+", value):
            value = int(value)
        # TOML's true is an int to Python, but not a number to its writer.
        if isinstance(value, int) and not isinstance(value, bool) and least <= value <= (most or value):
            return value
        raise ValueError(f"{bounds} is needed{_unquoted(value)}")

    return read


def _unquoted(value: object) -> str:
    return ", without quotes" if isinstance(value, str) and not isinstance(value, Untyped) else ""


def one_of(*words: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in words:
            raise ValueError(f"one of {', '.join(words)} is needed")
        return value.lower()

    return read
