"""What a command says when it cannot be carried out. Apart from the client, so that `main` need not load kio."""

from __future__ import annotations


class ClientError(Exception):
    """A command could not be carried out. The message is one sentence: where, what, and what to do if known."""

    exit_code = 1


class Interrupted(ClientError):
    """The user has ended the command before it was done. The message says what is done by now."""

    exit_code = 130
    """As shells report a process that SIGINT has ended."""
