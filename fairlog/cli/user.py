"""`fairlog user …`: list, add and delete users, and give them passwords.

    --bootstrap given       DescribeUserScramCredentials and AlterUserScramCredentials of any broker
    --admin https://…       that admin listener, as a user of the client properties
    else, a node that runs  its admin listener, with the token in its data directory
    else                    its files, which it must not have open

The last two are for whoever has the data directory, on the node's machine: so the first user comes to be. With both
--admin and --data-dir, that listener is shown the token. A password is asked for on the terminal, or read from a file
or a pipe. It is on no command line, and goes nowhere: what is sent, and kept, is hashed here.
"""

from __future__ import annotations

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fairlog.cli.bootstrap import Json, OptionalBootstrap
from fairlog.cli.errors import ClientError
from fairlog.cli.node_options import Config, DataDir
from fairlog.cli.output import say, show_json, show_table
from fairlog.security.plain import PASSWORD_BYTES_MAX

if TYPE_CHECKING:
    from fairlog.cli.accounts import Accounts

app = typer.Typer(
    name="user",
    help="List, add and delete users, and give them passwords.",
    epilog="\b\nExample:\n  fairlog user add alice",
    no_args_is_help=True,
)

Name = Annotated[str, typer.Argument(metavar="USER", help="The user's name.")]
Admin = Annotated[
    str | None,
    typer.Option(
        metavar="[https://]HOST:PORT",
        help="The node's admin listener, if it runs.",
        show_default="as for fairlog serve",
    ),
]
PasswordFile = Annotated[
    str | None,
    typer.Option(
        metavar="FILE",
        help="A file whose first line is the password; - for standard input.",
        show_default="it is asked for on the terminal",
    ),
]


@app.command("list", epilog="\b\nExample:\n  fairlog user list --json")
def list_all(
    bootstrap: OptionalBootstrap = None,
    data_dir: DataDir = None,
    admin: Admin = None,
    config: Config = None,
    json: Json = False,
) -> None:
    """List the users, and by which mechanisms they can sign in."""
    users = _accounts(bootstrap, data_dir, admin, config).users()
    if json:
        show_json([{"user": name, "mechanisms": dict(mechanisms)} for name, mechanisms in users.items()])
    else:
        rows = [(name, ", ".join(mechanisms)) for name, mechanisms in users.items()]
        show_table(("user", "mechanisms"), rows, empty="there are no users")


@app.command(
    "add", epilog="\b\nExamples:\n  fairlog user add alice\n  fairlog user add alice --password-file secret.txt"
)
def add(
    name: Name,
    password_file: PasswordFile = None,
    bootstrap: OptionalBootstrap = None,
    data_dir: DataDir = None,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Add a user, who can sign in by SCRAM-SHA-256, SCRAM-SHA-512 and PLAIN."""
    accounts = _accounts(bootstrap, data_dir, admin, config)
    accounts.change("add", name, _password(name, password_file))
    say(f"user {name} was added")


@app.command("password", epilog="\b\nExample:\n  fairlog user password alice")
def password(
    name: Name,
    password_file: PasswordFile = None,
    bootstrap: OptionalBootstrap = None,
    data_dir: DataDir = None,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Give a user another password. Connections that were opened with the old one are closed."""
    accounts = _accounts(bootstrap, data_dir, admin, config)
    accounts.change("password", name, _password(name, password_file))
    say(f"user {name} has another password")


@app.command("delete", epilog="\b\nExample:\n  fairlog user delete alice")
def delete(
    name: Name,
    bootstrap: OptionalBootstrap = None,
    data_dir: DataDir = None,
    admin: Admin = None,
    config: Config = None,
) -> None:
    """Delete a user. Its connections are closed."""
    _accounts(bootstrap, data_dir, admin, config).change("delete", name, None)
    say(f"user {name} was deleted")


def _accounts(bootstrap: object, data_dir: Path | None, admin: str | None, config: Path | None) -> Accounts:
    from fairlog.cli.accounts import accounts_of
    from fairlog.config_values import Address

    if isinstance(bootstrap, Address):
        if any(each is not None for each in (data_dir, admin, config)):
            raise typer.BadParameter("--bootstrap goes without --data-dir, --admin and --config")
        return accounts_of(bootstrap)
    return accounts_of(None, data_dir, admin, config)


def _password(name: str, file: str | None) -> str:
    """The password, from where it is to come. Raises ClientError."""
    if file is not None:
        found = _first_line(file)
    elif sys.stdin.isatty():
        found = getpass.getpass(f"Password of {name}: ")
        if found != getpass.getpass("Once more: "):
            raise ClientError("the two passwords are not the same; nothing was changed")
    else:
        raise ClientError("standard input is no terminal to ask for a password on: name a file (--password-file), or -")
    if not 0 < len(found.encode()) <= PASSWORD_BYTES_MAX:
        raise ClientError(f"a password has 1 to {PASSWORD_BYTES_MAX} bytes; nothing was changed")
    from fairlog.security.scram_messages import prepared

    if prepared(found) != found:
        raise ClientError(
            "the password has characters that SASLprep (RFC 4013) forbids or changes, such as unusual spaces, "
            "ligatures or accents of their own: some clients could not sign in with it; nothing was changed"
        )
    return found


def _first_line(file: str) -> str:
    try:
        if file == "-":
            line = sys.stdin.buffer.readline(PASSWORD_BYTES_MAX + 3)
        else:
            with Path(file).open("rb") as opened:
                line = opened.readline(PASSWORD_BYTES_MAX + 3)
        return line.removesuffix(b"\n").removesuffix(b"\r").decode()
    except OSError as error:
        raise ClientError(f"cannot read the password from {file}: {error.strerror}") from error
    except UnicodeDecodeError:
        raise ClientError(f"the password in {file} is not UTF-8") from None
