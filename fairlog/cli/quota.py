"""`fairlog quota …`: list, set and delete quotas of users, client ids and addresses.

The client is imported when a command runs, as in `group`.
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.output import say, show_json, show_table
from fairlog.security.quotas import BadQuota, EntityType, QuotaKey, keys_of

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable, Mapping

    from fairlog.cli.quotas_admin import Listed

app = typer.Typer(
    name="quota",
    help="Limit how much users, clients and addresses may ask: list, set and delete quotas.",
    epilog="\b\nExample:\n  fairlog quota set --user alice --producer-byte-rate 1048576",
    no_args_is_help=True,
)

User = Annotated[str | None, typer.Option(metavar="NAME", help="A user; ANONYMOUS is who has not signed in.")]
DefaultUser = Annotated[bool, typer.Option("--default-user", help="Users that have no quota of their own.")]
ClientId = Annotated[str | None, typer.Option(metavar="ID", help="A client id; with a user, that user's.")]
DefaultClientId = Annotated[
    bool, typer.Option("--default-client-id", help="Client ids that have no quota of their own.")
]
Ip = Annotated[str | None, typer.Option(metavar="ADDRESS", help="An address that clients connect from.")]
DefaultIp = Annotated[bool, typer.Option("--default-ip", help="Addresses that have no quota of their own.")]

EXAMPLES = """
\b
Examples:
  fairlog quota set --user alice --producer-byte-rate 1048576 --consumer-byte-rate 4194304
  fairlog quota set --default-user --consumer-byte-rate 10485760
  fairlog quota set --user alice --client-id nightly --consumer-byte-rate 1048576
  fairlog quota set --default-ip --connection-rate 20
"""

DELETE_EXAMPLES = """
\b
Examples:
  fairlog quota delete --user alice --consumer-byte-rate
  fairlog quota delete --user alice                       # all that she has
"""


@app.command("list", epilog="\b\nExamples:\n  fairlog quota list\n  fairlog quota list --user alice --json")
def list_all(
    bootstrap: Bootstrap,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    json: Json = False,
) -> None:
    """List quotas: all of them, or those of one entity."""
    from fairlog.cli.client import connect
    from fairlog.cli.quotas_admin import describe_quotas, entity_of

    names = _names(user, default_user, client_id, default_client_id, ip, default_ip)
    with _as_parameter():
        wanted = entity_of(names)
    with connect(bootstrap) as connection:
        found = describe_quotas(connection, wanted)
    _show(found, json=json)


@app.command("set", epilog=EXAMPLES)
def set_quotas(
    bootstrap: Bootstrap,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    producer_byte_rate: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Bytes of Produce requests a second, at each broker.")
    ] = None,
    consumer_byte_rate: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Bytes of records read a second, at each broker.")
    ] = None,
    connection_rate: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="New connections of an address a second, at each broker.")
    ] = None,
    json: Json = False,
) -> None:
    """Set quotas of a user, a client id, both together, or an address. Its others stay."""
    from fairlog.cli.client import connect
    from fairlog.cli.quotas_admin import alter_quotas, describe_quotas
    from fairlog.security.quota_changes import change_untrusted

    given = {
        QuotaKey.PRODUCER: producer_byte_rate,
        QuotaKey.CONSUMER: consumer_byte_rate,
        QuotaKey.CONNECTIONS: connection_rate,
    }
    rates = {key: rate for key, rate in given.items() if rate is not None}
    names = _names(user, default_user, client_id, default_client_id, ip, default_ip)
    if not rates:
        raise typer.BadParameter("say how much: --producer-byte-rate, --consumer-byte-rate or --connection-rate")
    with _as_parameter():
        change = change_untrusted(list(names.items()), [(key.value, float(rate)) for key, rate in rates.items()])
    with connect(bootstrap) as connection:
        alter_quotas(connection, change.entity, rates)
        found = describe_quotas(connection, change.entity)
    _show(found, json=json)


@app.command("delete", epilog=DELETE_EXAMPLES)
def delete(
    bootstrap: Bootstrap,
    user: User = None,
    default_user: DefaultUser = False,
    client_id: ClientId = None,
    default_client_id: DefaultClientId = False,
    ip: Ip = None,
    default_ip: DefaultIp = False,
    producer_byte_rate: Annotated[bool, typer.Option("--producer-byte-rate", help="Only this one.")] = False,
    consumer_byte_rate: Annotated[bool, typer.Option("--consumer-byte-rate", help="Only this one.")] = False,
    connection_rate: Annotated[bool, typer.Option("--connection-rate", help="Only this one.")] = False,
    json: Json = False,
) -> None:
    """Delete quotas: those named, or all that the user, client id or address has."""
    from fairlog.cli.client import connect
    from fairlog.cli.quotas_admin import alter_quotas, describe_quotas
    from fairlog.security.quota_changes import change_untrusted

    flags = {
        QuotaKey.PRODUCER: producer_byte_rate,
        QuotaKey.CONSUMER: consumer_byte_rate,
        QuotaKey.CONNECTIONS: connection_rate,
    }
    named = [key for key, is_named in flags.items() if is_named]
    names = _names(user, default_user, client_id, default_client_id, ip, default_ip)
    with _as_parameter():
        change = change_untrusted(list(names.items()), [(key.value, None) for key in named])
    with connect(bootstrap) as connection:
        before = describe_quotas(connection, change.entity)
        alter_quotas(connection, change.entity, dict.fromkeys(named or keys_of(change.entity)))
        left = describe_quotas(connection, change.entity)
    if not json and before != left:
        say(f"the quotas of {_words(names)} were deleted{'; left:' if left else ''}")
        if not left:
            return
    _show(left, json=json)


@contextmanager
def _as_parameter() -> Generator[None]:
    """Makes an error of the command line of a quota that there cannot be."""
    try:
        yield
    except BadQuota as bad:
        raise typer.BadParameter(str(bad)) from bad


def _names(
    user: str | None,
    default_user: bool,
    client_id: str | None,
    default_client_id: bool,
    ip: str | None,
    default_ip: bool,
) -> dict[str, str | None]:
    """The names of an entity, by type."""
    names: dict[str, str | None] = {}
    for of_type, name, is_default in (
        (EntityType.USER, user, default_user),
        (EntityType.CLIENT_ID, client_id, default_client_id),
        (EntityType.IP, ip, default_ip),
    ):
        if name is not None and is_default:
            raise typer.BadParameter(f"--{of_type} and --default-{of_type} exclude each other")
        if name is not None or is_default:
            names[of_type.value] = name
    return names


def _words(names: Mapping[str, str | None]) -> str:
    """An entity for people, as `user alice and default client-id`."""
    return " and ".join(f"default {type_}" if name is None else f"{type_} {name}" for type_, name in names.items())


def _show(found: Iterable[Listed], *, json: bool) -> None:
    if json:
        show_json([{"entity": dict(each.entity), "quotas": dict(each.rates)} for each in found])
        return
    columns = (*(of_type.value for of_type in EntityType), "quota", "a second")
    rows = [
        (*(_name(each.entity, of_type) for of_type in EntityType), key, f"{rate:.15g}")
        for each in found
        for key, rate in each.rates.items()
    ]
    show_table(columns, rows, empty="there are no such quotas")


def _name(entity: Mapping[str, str | None], of_type: EntityType) -> str:
    if of_type.value not in entity:
        return ""
    name = entity[of_type.value]
    return "<default>" if name is None else name
