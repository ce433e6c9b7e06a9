"""Why a step failed, in one sentence: out of what Spark says, which is the reason among plans and stack traces. Pure.

A message of Spark's is, from the outside in: a line of the query that was stopped, the reason with its class in
brackets and its SQLSTATE, and the plan. Where Python code failed, be it the data source in a worker or a function in
the driver, the reason is a traceback, whose last line says what happened.
"""

from __future__ import annotations

import re

_ENDS = re.compile(r"\n*(=== Streaming Query ===|== SQL|JVM stacktrace:|;\n|\n\s*at [\w.$]+\()", re.MULTILINE)
"""What follows one of these is for who debugs Spark."""
_WRAPPERS = re.compile(
    r"^(\[STREAM_FAILED\] Query \[.*?\] terminated with exception: "
    r"|Job aborted due to stage failure: .*?\): "
    r"|(org\.apache|java|scala|py4j)\.[\w.$]+: )",
    re.DOTALL,
)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w{5};?")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*")
_TRACEBACK = "Traceback (most recent call last):"


def reason(message: str) -> str:
    """The sentence in `message`; never empty."""
    text = message.strip()
    if _TRACEBACK in text:
        text = _raised(text)
    text = _ENDS.split(text, maxsplit=1)[0]
    before = None
    while before != text:
        before, text = text, _WRAPPERS.sub("", text).strip()
    text = _STATE.sub("", _CLASS.sub("", text))
    return " ".join(text.split()) or "Spark does not say why"


def _raised(text: str) -> str:
    """What the last traceback ends with: the exception's message, up to an empty line."""
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    at = next((index for index, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    name, _, said = "\n".join(lines[at:]).partition("\n\n")[0].partition(": ")
    return said if said and _EXCEPTION.fullmatch(name) else f"{name}: {said}".removesuffix(": ")
