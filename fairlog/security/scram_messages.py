"""scramp, which reads and makes SCRAM's messages, behind types. Loaded when the first client signs in. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol, cast

LookUp = Callable[[str], tuple[bytes, bytes, bytes, int]]
"""Of a name: salt, stored key, server key, iterations."""


class BadMessage(Exception):
    """A message, or the proof in it, is wrong. It is told by RFC 5802's word, and quotes nothing."""

    def __init__(self, word: str) -> None:
        super().__init__(word)
        self.word = word


class _Server(Protocol):
    def set_client_first(self, message: str) -> None: ...

    def get_server_first(self) -> str: ...

    def set_client_final(self, message: str) -> None: ...

    def get_server_final(self) -> str: ...


class ServerSide:
    """The server's side of one exchange."""

    def __init__(self, mechanism: str, look_up: LookUp, nonce: str) -> None:
        import scramp  # pyright: ignore[reportMissingTypeStubs]

        made = scramp.ScramMechanism(mechanism).make_server(look_up, s_nonce=nonce)  # pyright: ignore[reportUnknownMemberType]
        self._server = cast("_Server", made)

    def first(self, message: str) -> str:
        """The answer to the client's first message. Raises BadMessage."""

        def exchange() -> str:
            self._server.set_client_first(message)
            return self._server.get_server_first()

        return _checked(exchange)

    def last(self, message: str) -> str:
        """The answer to the client's last message, whose proof is right. Raises BadMessage."""

        def exchange() -> str:
            self._server.set_client_final(message)
            return self._server.get_server_final()

        return _checked(exchange)


def prepared(name: str) -> str | None:
    """A name as SASLprep (RFC 4013) makes it; None if it forbids it."""
    from scramp import core  # pyright: ignore[reportMissingTypeStubs]

    try:
        return core.saslprep(name)  # pyright: ignore[reportUnknownMemberType]
    except core.ScramException:
        return None


def _checked(exchange: Callable[[], str]) -> str:
    from scramp import core  # pyright: ignore[reportMissingTypeStubs]

    try:
        return exchange()
    except core.ScramException as error:
        known = error.server_error
        raise BadMessage("other-error" if known is None else known.value) from None
