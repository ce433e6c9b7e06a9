"""The values that settings take: their types, and how each is read from outside.

A reader turns an outside value, which is typed in TOML and text in environment and flags, into ours. It raises
ValueError, with the words that follow the key's name in the message. Pure.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, cast

from fairlog.security.acls import is_address, plain_address
from fairlog.security.client_auth import ClientAuth, ClientAuthByListener
from fairlog.security.listeners import PLAIN, Listener, SecurityProtocol
from fairlog.security.mechanisms import MECHANISMS
from fairlog.security.principal_rules import PrincipalRules

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
        try:
            host.encode("idna")
        except UnicodeError:
            raise ValueError(f"{host!r} is no name of a host") from None
        if not port.isascii() or not port.isdigit() or int(port) > 65535:
            raise ValueError("the port is a number from 0 to 65535")
        return cls(host, int(port))


class NamedAddresses(NamedTuple):
    """The addresses of one listener."""

    name: str
    """In upper case."""
    of_shards: tuple[Address, ...]
    """One, or one for each shard."""


@dataclass(frozen=True, slots=True)
class ListenerAddresses:
    """Where the listeners of a node are, or are reached: at least one, in their order."""

    named: tuple[NamedAddresses, ...]

    def __str__(self) -> str:
        """As settings have it: addresses without a name, if PLAINTEXT is the only one."""
        shown = [(name, address) for name, of_shards in self.named for address in of_shards]
        if len(self.named) == 1 and self.named[0].name == PLAIN.name:
            return ",".join(str(address) for _, address in shown)
        return ",".join(f"{name}://{address}" for name, address in shown)

    @classmethod
    def of(cls, by_name: Mapping[str, Address]) -> ListenerAddresses:
        """One address for each name."""
        return cls(tuple(NamedAddresses(name, (address,)) for name, address in by_name.items()))

    @classmethod
    def plain(cls, address: Address) -> ListenerAddresses:
        """The only listener, without a name."""
        return cls.of({PLAIN.name: address})

    @classmethod
    def parse(cls, text: str) -> ListenerAddresses:
        """Read HOST:PORT, or NAME://HOST:PORT, with commas between. Raises ValueError that says what is wrong."""
        by_name: dict[str, tuple[Address, ...]] = {}
        items = [item.strip() for item in text.split(",")]
        if len({"://" in item for item in items}) > 1:
            raise ValueError("either all addresses have the name of a listener (NAME://HOST:PORT), or none has")
        for item in items:
            name, separator, address = item.rpartition("://")
            name = read_listener_name(name) if separator else PLAIN.name
            by_name[name] = (*by_name.get(name, ()), Address.parse(address))
        return cls(tuple(NamedAddresses(*each) for each in by_name.items()))

    def one_each(self) -> Mapping[str, Address]:
        """By name, of one shard."""
        assert all(len(of_shards) == 1 for _, of_shards in self.named), self
        return {name: of_shards[0] for name, of_shards in self.named}


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
    if re.fullmatch(r"([A-Za-z0-9][A-Za-z0-9._-]{0,199})?", text) is None:
        raise ValueError(
            "a name of letters, digits, '.', '_' and '-' is needed, which begins with a letter or digit and has at "
            "most 200 characters"
        )
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
    if "@" in brokers or "/" in brokers:
        raise ValueError(
            f"{KAFKA_SCHEME}HOST:PORT,… is needed, without user, password and path: engine.client_properties has those"
        )
    addresses = [Address.parse(broker.strip()) for broker in brokers.split(",")]
    if not all(address.port for address in addresses):
        raise ValueError("the port of a broker is not 0")
    return ",".join(map(str, addresses))


def read_directory(value: object) -> Path:
    return Path(value if isinstance(value, Path) else read_text(value))


def read_address(value: object) -> Address:
    return value if isinstance(value, Address) else Address.parse(read_text(value))


def read_listeners(value: object) -> ListenerAddresses:
    """HOST:PORT, or NAME://HOST:PORT; several with commas between them."""
    if isinstance(value, ListenerAddresses):
        return value
    if isinstance(value, Address):
        return ListenerAddresses.plain(value)
    if isinstance(value, list):
        items = cast("list[object]", value) or [""]
        return ListenerAddresses.parse(",".join(read_text(item) for item in items))
    return ListenerAddresses.parse(read_text(value))


def read_listener_name(text: str) -> str:
    """In upper case, as Kafka has it."""
    if re.fullmatch(r"[A-Za-z0-9._-]+", text) is None:
        raise ValueError("the name of a listener has letters, digits, '.', '_' and '-'")
    return text.upper()


def read_protocol(value: object) -> SecurityProtocol:
    try:
        return SecurityProtocol(read_text(value).upper())
    except ValueError:
        raise ValueError(f"one of {', '.join(SecurityProtocol.__members__)} is needed") from None


def read_listener_name_or_empty(value: object) -> str:
    text = read_text_or_empty(value)
    return read_listener_name(text) if text else text


def read_protocols(value: object) -> tuple[Listener, ...]:
    """NAME:PROTOCOL, with commas between: Kafka's listener.security.protocol.map."""
    found: dict[str, Listener] = {}
    for name, word in _pairs(value, "NAME:PROTOCOL"):
        if word.upper() not in SecurityProtocol.__members__:
            raise ValueError(f"{word!r} is none of the protocols {', '.join(SecurityProtocol.__members__)}")
        listener = Listener(name, SecurityProtocol[word.upper()])
        if name in SecurityProtocol.__members__ and listener.protocol.name != name:
            raise ValueError(f"{name} is a protocol itself, and stands for no other one")
        found[name] = listener
    return tuple(found.values())


def read_client_auth(value: object) -> ClientAuthByListener:
    """none, requested or required; or NAME:WORD for single listeners, with commas between: the others ask for none."""
    if isinstance(value, ClientAuthByListener):
        return value
    words = one_of(*(auth.value for auth in ClientAuth))
    if isinstance(value, str) and ":" not in value:
        return ClientAuthByListener(ClientAuth(words(value)))
    named = {name: ClientAuth(words(word)) for name, word in _pairs(value, "none, requested, required or NAME:WORD")}
    return ClientAuthByListener(named=tuple(named.items()))


def _pairs(value: object, form: str) -> Iterator[tuple[str, str]]:
    """The names of listeners, each once, and a word for each."""
    names: set[str] = set()
    if not isinstance(value, str):
        raise ValueError(f"{form} is needed, with commas between several")  # noqa: TRY004 (what readers raise)
    for item in value.split(",") if value else ():
        name, separator, word = item.partition(":")
        if not separator:
            raise ValueError(f"{form} is needed, with commas between several")
        read = read_listener_name(name.strip())
        if read in names:
            raise ValueError(f"{read} is named twice")
        names.add(read)
        yield read, word.strip()


@dataclass(frozen=True, slots=True)
class CountsByName:
    """Numbers for some names."""

    named: tuple[tuple[str, int], ...] = ()

    def of(self, name: str) -> int | None:
        """The number of this name; None if it has none."""
        return next((count for known, count in self.named if known == name), None)

    def __str__(self) -> str:
        return ",".join(f"{name}:{count}" for name, count in self.named)


def read_counts_by_listener(value: object) -> CountsByName:
    """NAME:COUNT, with commas between."""
    if isinstance(value, CountsByName):
        return value
    count = whole(0, 2**31 - 1)
    pairs = _pairs(value, "NAME:COUNT")
    return CountsByName(tuple((name, count(Untyped(word))) for name, word in pairs))


def read_counts_by_address(value: object) -> CountsByName:
    """ADDRESS:COUNT, with commas between; the addresses in their short form."""
    if isinstance(value, CountsByName):
        return value
    count = whole(0, 2**31 - 1)
    found: dict[str, int] = {}
    for item in read_text_or_empty(value).split(",") if value else ():
        address, separator, word = item.strip().rpartition(":")
        plain = plain_address(address.removeprefix("[").removesuffix("]"))
        if not separator or not is_address(plain):
            raise ValueError("ADDRESS:COUNT is needed, with commas between several")
        if plain in found:
            raise ValueError(f"{plain} is named twice")
        found[plain] = count(Untyped(word))
    return CountsByName(tuple(found.items()))


def read_principal_rules(value: object) -> PrincipalRules:
    return value if isinstance(value, PrincipalRules) else PrincipalRules(read_text(value))


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
