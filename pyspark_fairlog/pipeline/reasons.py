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
    r"|\[PYTHON_DATA_SOURCE_ERROR\] Failed [^:]*: (?=Traceback)"
    r"|(org\.apache|java|scala|py4j)\.[\w.$]+: )",
    re.DOTALL,
)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w{5}")
_LAST_LINE = re.compile(r"^([\w.]+(?:Error|Exception|Refused|Interrupt|Exit|\w*)): (.+)$")
_OUR_PREFIX = re.compile(r"^(?:[A-Za-z_][\w.]*\.)?[A-Za-z_]\w*$")


def reason(message: str) -> str:
    """The sentence in `message`, which is never empty."""
    text = message.strip()
    if "Traceback (most recent call last):" in text:
        return _of_traceback(text)
    text = _ENDS.split(text, maxsplit=1)[0]
    before = None
    while before != text:
        before, text = text, _WRAPPERS.sub("", text).strip()
    text = _CLASS.sub("", _STATE.sub("", text))
    return " ".join(text.split()) or message.strip() or "Spark does not say why"


def _of_traceback(text: str) -> str:
    """The last exception's message: the first line behind the innermost traceback that does not stand indented."""
    lines = text[text.rindex("Traceback (most recent call last):") :].splitlines()[1:]
    for index, line in enumerate(lines):
        if line and not line.startswith((" ", "\t")):
            name, separator, said = line.partition(": ")
            more = _ENDS.split(
                "\n".join([said if separator and _OUR_PREFIX.match(name) else line, *lines[index + 1 :]])
            )
            return reason(more[0]) if more[0].strip() else name
    return " ".join(text.split())
