"""Sessions of people who have signed in at the console: a random id in a cookie, and whom it stands for. Pure.

Only hashes of ids are kept: whoever reads the memory of the node does not learn an id that is good. A session ends

- when nothing has been asked with it for IDLE_S, and in any case after LIFE_S;
- when its user is deleted, or gets another password: that is looked at whenever it is used;
- when its user signs out, or in once more often than OF_USER_MAX: then the one that was unused for longest goes.

They are in memory and outlive no restart.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fairlog.security.exchange import SignedIn

IDLE_S = 30 * 60.0
"""An open console asks every second, while it is in view."""
LIFE_S = 12 * 3600.0
OF_USER_MAX = 20
SESSIONS_MAX = 1000
"""Of all users."""


class End(Enum):
    """Why a session has ended by itself."""

    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(slots=True)
class _Session:
    signed_in: SignedIn
    began_s: float
    used_s: float


class Sessions:
    """Those of one listener."""

    def __init__(
        self, now_s: Callable[[], float], new_id: Callable[[], str], ended: Callable[[str, End], None]
    ) -> None:
        """`new_id` gives ids that cannot be guessed. `ended` is told of a user whose session has ended, and why."""
        self._now_s = now_s
        self._new_id = new_id
        self._ended = ended
        self._sessions: OrderedDict[bytes, _Session] = OrderedDict()
        """By the hash of the id; the one that was used last comes last."""

    def open(self, signed_in: SignedIn) -> str:
        """Begin a session; its id, which is told to nobody else."""
        now_s = self._now_s()
        for key, session in list(self._sessions.items()):
            self._end_if_over(key, session, now_s)
        of_user = [key for key, each in self._sessions.items() if each.signed_in.name == signed_in.name]
        if len(of_user) >= OF_USER_MAX:
            del self._sessions[of_user[0]]
        elif len(self._sessions) >= SESSIONS_MAX:
            self._sessions.popitem(last=False)
        session_id = self._new_id()
        self._sessions[_hash(session_id)] = _Session(signed_in, now_s, now_s)
        return session_id

    def user_of_untrusted(self, session_id: str) -> str | None:
        """Whose session it is, which counts as its use; None if there is none of this id any more."""
        key, now_s = _hash(session_id), self._now_s()
        session = self._sessions.get(key)
        if session is None or self._end_if_over(key, session, now_s):
            return None
        session.used_s = now_s
        self._sessions.move_to_end(key)
        return session.signed_in.name

    def close_untrusted(self, session_id: str) -> None:
        """End the session of this id, if there is one."""
        self._sessions.pop(_hash(session_id), None)

    def _end_if_over(self, key: bytes, session: _Session, now_s: float) -> bool:
        """Whether it is over."""
        if not session.signed_in.still_holds():
            end = End.REVOKED
        elif now_s >= min(session.used_s + IDLE_S, session.began_s + LIFE_S):
            end = End.EXPIRED
        else:
            return False
        del self._sessions[key]
        self._ended(session.signed_in.name, end)
        return True


def _hash(session_id: str) -> bytes:
    return hashlib.sha256(session_id.encode(errors="replace")).digest()
