"""`fairlog acl …`: say who may do what, with the words of Kafka's kafka-acls.

The client is imported when a command runs, as in `group`.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import StrEnum
from typing import Annotated

import typer

from fairlog.cli.acl_words import Resources, Who, acls_of, filter_of, filters_of, forbid_more, operation_of
from fairlog.cli.bootstrap import Bootstrap, Json
from fairlog.cli.output import say, show_json, show_table
from fairlog.security.acls import Acl, BadAcl, PatternType, Permission

app = typer.Typer(
    name="acl",
    help="Say who may do what: add, list and remove ACLs.",
    epilog="\b\nExample:\n  fairlog acl add --allow-principal User:alice --operation READ --topic orders",
    no_args_is_help=True,
)


class Pattern(StrEnum):
    """Of ACLs."""

    LITERAL = "literal"
    PREFIXED = "prefixed"


class AnyPattern(StrEnum):
    """In filters."""

    LITERAL = "literal"
    PREFIXED = "prefixed"
    MATCH = "match"
    ANY = "any"


_Texts = list[str] | None

Topic = Annotated[_Texts, typer.Option(metavar="NAME", help="A topic, or * for all; may be repeated.")]
Group = Annotated[_Texts, typer.Option(metavar="NAME", help="A consumer group, or * for all; may be repeated.")]
TransactionalId = Annotated[
    _Texts,
    typer.Option(metavar="ID", help="A transactional id, or * for all; fairlog.sink.NAME for a sink. May be repeated."),
]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster itself.")]
PatternOption = Annotated[
    Pattern, typer.Option("--resource-pattern-type", help="Whether the names are whole, or prefixes.")
]
AnyPatternOption = Annotated[
    AnyPattern,
    typer.Option(
        "--resource-pattern-type",
        help="literal and prefixed: only such ACLs. match: all that count for a resource of this name.",
    ),
]
AllowPrincipal = Annotated[
    _Texts, typer.Option(metavar="KIND:NAME", help="Who may, as User:alice; User:* is everyone. May be repeated.")
]
DenyPrincipal = Annotated[
    _Texts, typer.Option(metavar="KIND:NAME", help="Who may not, whatever else allows it; may be repeated.")
]
AllowHost = Annotated[
    _Texts, typer.Option(metavar="ADDRESS", help="From where they may; may be repeated.", show_default="everywhere")
]
DenyHost = Annotated[
    _Texts, typer.Option(metavar="ADDRESS", help="From where they may not; may be repeated.", show_default="everywhere")
]
OperationOption = Annotated[
    _Texts, typer.Option(metavar="OPERATION", help="Such as READ or WRITE; may be repeated.", show_default="ALL")
]
ProducerOption = Annotated[
    bool, typer.Option("--producer", help="All that a producer needs on --topic, and on --transactional-id.")
]
ConsumerOption = Annotated[bool, typer.Option("--consumer", help="All that a consumer needs on --topic and --group.")]
IdempotentOption = Annotated[
    bool, typer.Option("--idempotent", help="Also to write idempotently, as brokers before Kafka 2.8 ask for.")
]

EXAMPLES = """
\b
Examples:
  fairlog acl add --allow-principal User:alice --operation READ --topic orders
  fairlog acl add --allow-principal User:shop --producer --topic shop. --resource-pattern-type prefixed
  fairlog acl add --allow-principal User:billing --consumer --topic orders --group billing
  fairlog acl add --deny-principal 'User:*' --deny-host 10.0.0.9 --operation ALL --topic '*'
"""


@app.command("add", epilog=EXAMPLES)
def add(
    bootstrap: Bootstrap,
    allow_principal: AllowPrincipal = None,
    allow_host: AllowHost = None,
    deny_principal: DenyPrincipal = None,
    deny_host: DenyHost = None,
    operation: OperationOption = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    pattern: PatternOption = Pattern.LITERAL,
    producer: ProducerOption = False,
    consumer: ConsumerOption = False,
    idempotent: IdempotentOption = False,
    json: Json = False,
) -> None:
    """Add ACLs: one for each principal, address, operation and resource. Those that exist stay."""
    from fairlog.cli.acls_admin import create_acls
    from fairlog.cli.client import connect

    resources = Resources(topic or (), group or (), transactional_id or (), cluster)
    who = _who(allow_principal, allow_host, deny_principal, deny_host)
    try:
        acls = acls_of(
            resources,
            PatternType[pattern.name],
            who,
            [operation_of(word) for word in operation or ()],
            producer=producer,
            consumer=consumer,
            idempotent=idempotent,
        )
    except BadAcl as bad:
        raise typer.BadParameter(str(bad)) from bad
    with connect(bootstrap) as connection:
        create_acls(connection, acls)
    _show(acls, json=json)


@app.command("list", epilog="\b\nExamples:\n  fairlog acl list\n  fairlog acl list --topic orders --json")
def list_all(
    bootstrap: Bootstrap,
    principal: Annotated[str | None, typer.Option(metavar="KIND:NAME", help="Only ACLs of this principal.")] = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    pattern: AnyPatternOption = AnyPattern.ANY,
    json: Json = False,
) -> None:
    """List ACLs: all of them, or those on the named resources."""
    from fairlog.cli.acls_admin import describe_acls
    from fairlog.cli.client import connect

    resources = Resources(topic or (), group or (), transactional_id or (), cluster)
    with connect(bootstrap) as connection:
        found = describe_acls(connection, filters_of(resources, PatternType[pattern.name], principal))
    _show(found, json=json)


REMOVE_EXAMPLES = """
\b
Examples:
  fairlog acl remove --allow-principal User:alice --operation READ --topic orders
  fairlog acl remove --topic orders --all                # every ACL on this topic
"""


@app.command("remove", epilog=REMOVE_EXAMPLES)
def remove(
    bootstrap: Bootstrap,
    allow_principal: AllowPrincipal = None,
    allow_host: AllowHost = None,
    deny_principal: DenyPrincipal = None,
    deny_host: DenyHost = None,
    operation: OperationOption = None,
    topic: Topic = None,
    group: Group = None,
    transactional_id: TransactionalId = None,
    cluster: Cluster = False,
    pattern: PatternOption = Pattern.LITERAL,
    producer: ProducerOption = False,
    consumer: ConsumerOption = False,
    idempotent: IdempotentOption = False,
    everything: Annotated[
        bool, typer.Option("--all", help="All ACLs on the named resources, whoever and whatever they are about.")
    ] = False,
    json: Json = False,
) -> None:
    """Remove the ACLs that `add` has added with the same options, or with --all every one on the named resources."""
    from fairlog.cli.acls_admin import delete_acls
    from fairlog.cli.client import connect

    resources = Resources(topic or (), group or (), transactional_id or (), cluster)
    who = _who(allow_principal, allow_host, deny_principal, deny_host)
    try:
        if everything:
            forbid_more(who, operation, producer or consumer or idempotent)
            filters = filters_of(resources, PatternType[pattern.name], needs_some=True)
        else:
            acls = acls_of(
                resources,
                PatternType[pattern.name],
                who,
                [operation_of(word) for word in operation or ()],
                producer=producer,
                consumer=consumer,
                idempotent=idempotent,
            )
            filters = [filter_of(acl) for acl in acls]
    except BadAcl as bad:
        raise typer.BadParameter(str(bad)) from bad
    with connect(bootstrap) as connection:
        removed = delete_acls(connection, filters)
    if not json:
        say("removed:" if removed else "nothing was removed")
    if removed or json:
        _show(removed, json=json)


def _who(allow: _Texts, allow_host: _Texts, deny: _Texts, deny_host: _Texts) -> list[Who]:
    return [
        Who(Permission.ALLOW, allow or (), allow_host or ()),
        Who(Permission.DENY, deny or (), deny_host or ()),
    ]


def _show(acls: Iterable[Acl], *, json: bool) -> None:
    columns = ("resource", "name", "pattern", "permission", "operation", "principal", "host")
    rows = [
        (
            acl.resource_type.name.lower(),
            acl.resource_name,
            acl.pattern_type.name.lower(),
            acl.permission.name.lower(),
            acl.operation.name,
            acl.principal,
            acl.host,
        )
        for acl in acls
    ]
    if json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        show_table(columns, rows, empty="there are no such ACLs")
