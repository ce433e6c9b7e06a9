"""Where the values of settings come from: a file, the environment, flags; how they are read, and what must hold.

    the default  <  TOML file: [journal] fsync = "never"  <  environment: FAIRLOG_JOURNAL_FSYNC=never  <  flag

From weak to strong. A name that is not in the table (`fairlog.config`), or a value that its reader refuses, is a
`ConfigError`: one sentence that names the key and the source. Nothing is guessed and nothing is ignored, because a
misspelt `journal.fsnyc = "commit"` that goes unnoticed is a lost record on a bad day.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib.util
import os
import re
import tomllib
import typing
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast
from urllib.parse import urlsplit

from fairlog.config import ENVIRONMENT_PREFIX, KEYS, PROCESS_VARIABLE, ConfigError, GroupSettings, Settings
from fairlog.config_values import Untyped, read_secret
from fairlog.configured_listeners import check_listeners
from fairlog.security.mechanisms import OAUTHBEARER

_FLAGS = {"admin.listen": "--admin", "journal.engine": "--journals", "cluster.name": "--cluster"}
"""Flags that are not called like their key."""

# Read elsewhere: the address that the command line's clients use, who they are, and the failpoint of the crash tests.
_NOT_SETTINGS = frozenset({"FAIRLOG_BOOTSTRAP", "FAIRLOG_CLIENT_PROPERTIES", "FAIRLOG_FAILPOINT", PROCESS_VARIABLE})
# Kubernetes puts these into every container's environment when there is a service named "fairlog".
_SERVICE_LINK = re.compile(r"FAIRLOG_(SERVICE_(HOST|PORT)(_\w+)?|PORT(_\d+_(TCP|UDP)(_(PROTO|PORT|ADDR))?)?)")

_VARIABLES = {row.variable: row.name for row in KEYS.values()}


def load(
    *,
    flags: Mapping[str, object] | None = None,
    environment: Mapping[str, str] | None = None,
    file: Path | None = None,
) -> Settings:
    """Settings out of all sources, checked.

    `flags` maps full key names to values (a None is a flag that was not given); `environment` is
    `os.environ` unless given; `file` is a TOML file. Raises ConfigError, also when `file` cannot be read.
    """
    values: dict[str, object] = {}
    if file is not None:
        values.update(_from_file(file))
    values.update(_from_environment(os.environ if environment is None else environment))
    for name, value in (flags or {}).items():
        if value is not None:
            flag = _FLAGS.get(name) or "--" + name.replace(".", "-").replace("_", "-")
            values[name] = _read(name, value, f"the flag {flag}")
    settings = _build(Settings, "", values)
    _check(settings)
    return settings


def with_texts(settings: Settings, texts: Mapping[str, str], source: str) -> Settings:
    """`settings` with some keys, by full name, read from texts, and checked. Raises ConfigError that names `source`."""
    values = {name: _read(name, Untyped(text), source) for name, text in texts.items()}
    changed = _replaced(settings, "", values)
    try:
        _check(changed)
    except ConfigError as error:
        raise ConfigError(f"{source} does not fit: {error}") from error
    return changed


def _from_file(file: Path) -> dict[str, object]:
    try:
        tree = tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the config file {file}: {error.strerror}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the config file {file} is not TOML: {error}") from error
    source = f"the config file {file}"
    return {name: _read(name, value, source) for name, value in _flatten(tree, "")}


def _flatten(tree: Mapping[str, object], prefix: str) -> Iterator[tuple[str, object]]:
    for name, value in tree.items():
        if isinstance(value, dict) and prefix + name not in KEYS:
            yield from _flatten(cast(dict[str, object], value), f"{prefix}{name}.")
        else:
            yield prefix + name, value


def _from_environment(environment: Mapping[str, str]) -> dict[str, object]:
    values: dict[str, object] = {}
    for variable, text in environment.items():
        if (
            not variable.startswith(ENVIRONMENT_PREFIX)
            or variable in _NOT_SETTINGS
            or _SERVICE_LINK.fullmatch(variable)
        ):
            continue
        name = _VARIABLES.get(variable)
        if name is None:
            _unknown(variable, "the environment", _VARIABLES)
        values[name] = _read(name, Untyped(text), f"the environment variable {variable}")
    return values


def _read(name: str, value: object, source: str) -> object:
    row = KEYS.get(name)
    if row is None:
        _unknown(name, source, KEYS)
    try:
        return row.read(value)
    except ValueError as error:
        shown = "(a secret)" if row.read is read_secret else repr(str(value))
        raise ConfigError(f"{name} = {shown} in {source}: {error}") from error


def _unknown(name: str, source: str, known: Mapping[str, object]) -> NoReturn:
    near = difflib.get_close_matches(name, known, n=1)
    hint = f" (is {near[0]} meant?)" if near else ""
    raise ConfigError(f"unknown key {name} in {source}{hint}")


Tree = TypeVar("Tree")


def _build(tree: type[Tree], prefix: str, values: Mapping[str, object]) -> Tree:
    hints = typing.get_type_hints(tree)
    arguments: dict[str, object] = {}
    for field in dataclasses.fields(cast(type[Any], tree)):
        name = prefix + field.name
        if name in values:
            arguments[field.name] = values[name]
        elif name not in KEYS and dataclasses.is_dataclass(hints[field.name]):
            arguments[field.name] = _build(hints[field.name], f"{name}.", values)
    return tree(**arguments)


def _replaced(tree: Tree, prefix: str, values: Mapping[str, object]) -> Tree:
    changes: dict[str, Any] = {}
    for field in dataclasses.fields(cast(Any, tree)):
        name = prefix + field.name
        if name in values:
            changes[field.name] = values[name]
        elif name not in KEYS and dataclasses.is_dataclass(value := getattr(tree, field.name)):
            changes[field.name] = _replaced(value, f"{name}.", values)
    return dataclasses.replace(cast(Any, tree), **changes)


def _check_consumer_groups(groups: GroupSettings) -> None:
    """What must hold between keys of groups of the new protocol, as in Kafka."""
    session_ms, interval_ms = groups.consumer_session_timeout_ms, groups.consumer_heartbeat_interval_ms
    for name, value, least, most in (
        (
            "session_timeout_ms",
            session_ms,
            groups.consumer_min_session_timeout_ms,
            groups.consumer_max_session_timeout_ms,
        ),
        (
            "heartbeat_interval_ms",
            interval_ms,
            groups.consumer_min_heartbeat_interval_ms,
            groups.consumer_max_heartbeat_interval_ms,
        ),
    ):
        if not least <= value <= most:
            raise ConfigError(
                f"groups.consumer_{name} ({value}) is not from groups.consumer_min_{name} ({least}) "
                f"to groups.consumer_max_{name} ({most})"
            )
    if session_ms <= interval_ms:
        raise ConfigError(
            f"groups.consumer_session_timeout_ms ({session_ms}) is not above "
            f"groups.consumer_heartbeat_interval_ms ({interval_ms})"
        )


def _check_cluster(settings: Settings) -> None:
    """What must hold between keys where journals are kept on a replicated log, and where they are not."""
    cluster, engine = settings.cluster, settings.engine
    if settings.journal.engine is None:
        if cluster.name:
            raise ConfigError(
                f"cluster.name ({cluster.name}) is set, and journals are in files: several machines need a Kafka "
                "cluster that keeps their journals; name it with journal.engine (--journals kafka://HOST:PORT,…)"
            )
        return
    if not cluster.name:
        raise ConfigError(
            "journal.engine is set, and cluster.name is not: give the cluster a name (--cluster), the same on all nodes"
        )
    if settings.processes != 1:
        raise ConfigError(
            f"processes ({settings.processes}) is for one machine with journals in files: with journal.engine a node "
            "is one process, and a machine with several cores runs several nodes"
        )
    if engine.min_insync_replicas > engine.replicas:
        raise ConfigError(
            f"engine.min_insync_replicas ({engine.min_insync_replicas}) is above engine.replicas ({engine.replicas})"
        )


def _check_tokens(settings: Settings) -> None:
    """What must hold where clients sign in with tokens."""
    if OAUTHBEARER not in settings.sasl.mechanisms:
        return
    for name in ("jwks", "issuer", "audience", "principal_claim"):
        if not getattr(settings.oauth, name):
            raise ConfigError(f"sasl.mechanisms has {OAUTHBEARER}, and oauth.{name} is not set")
    if not all(map(str.strip, settings.oauth.audience.split(","))):
        raise ConfigError(f"oauth.audience ({settings.oauth.audience!r}) has an empty name between commas")
    jwks = settings.oauth.jwks
    if "://" in jwks:
        _require_https("oauth.jwks", jwks)
    if importlib.util.find_spec("jwt") is None or importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            f"sasl.mechanisms has {OAUTHBEARER}, which needs the packages PyJWT and cryptography: "
            "pip install 'fairlog[oauth]'"
        )


def _require_https(name: str, url: str) -> None:
    """Raises ConfigError, which does not quote a password in a URL."""
    try:
        parts = urlsplit(url)
        _ = parts.port  # raises ValueError if it is none
    except ValueError as error:
        raise ConfigError(f"{name} is not a URL: {error}") from None
    if "@" in parts.netloc:
        raise ConfigError(f"{name} has a user or a password in its URL: the keys are public, leave it out")
    if parts.scheme != "https" or not parts.hostname:
        raise ConfigError(f"{name} ({url}) is neither a file nor an https URL")
    if not url.isascii() or not url.isprintable() or " " in url:
        raise ConfigError(f"{name} ({url!r}) has characters that a URL cannot have: write them as %20 and so on")


def _check(settings: Settings) -> None:
    """What must hold between keys."""
    _check_cluster(settings)
    _check_tokens(settings)
    check_listeners(settings)
    transactions, requests, journal = settings.transactions, settings.requests, settings.journal
    if transactions.min_timeout_ms > transactions.max_timeout_ms:
        raise ConfigError(
            f"transactions.min_timeout_ms ({transactions.min_timeout_ms}) is above "
            f"transactions.max_timeout_ms ({transactions.max_timeout_ms})"
        )
    if transactions.transactional_id_expiration_ms <= transactions.max_timeout_ms:
        raise ConfigError(
            f"transactions.transactional_id_expiration_ms ({transactions.transactional_id_expiration_ms}) is not above "
            f"transactions.max_timeout_ms ({transactions.max_timeout_ms}): an id must outlive its transactions"
        )
    if settings.groups.min_session_timeout_ms > settings.groups.max_session_timeout_ms:
        raise ConfigError(
            f"groups.min_session_timeout_ms ({settings.groups.min_session_timeout_ms}) is above "
            f"groups.max_session_timeout_ms ({settings.groups.max_session_timeout_ms})"
        )
    _check_consumer_groups(settings.groups)
    if requests.message_bytes_max > requests.request_bytes_max:
        raise ConfigError(
            f"requests.message_bytes_max ({requests.message_bytes_max}) is above "
            f"requests.request_bytes_max ({requests.request_bytes_max})"
        )
    if requests.message_bytes_max > journal.segment_bytes_max // 2:
        raise ConfigError(
            f"requests.message_bytes_max ({requests.message_bytes_max}) is above half of "
            f"journal.segment_bytes_max ({journal.segment_bytes_max}): a segment must hold a batch and its decisions"
        )
