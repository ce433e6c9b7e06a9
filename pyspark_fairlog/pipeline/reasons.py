"""Why a step failed, in one sentence: out of what Spark says, which is the reason among plans and stack traces. Pure.

Where it speaks of its own processes, what a person can do about it is added.

A message of Spark's is, from the outside in: a line of the query that was stopped, the reason with its class in
brackets and its SQLSTATE, and the plan. Where Python code failed, be it the data source in a worker or a function in
the driver, the reason is a traceback, whose last line says what happened.
"""

from __future__ import annotations

import re

from pyspark_fairlog import losses

_SKIP_LOST = "Give --skip-lost, or skip_lost = true in the file, to go on with what there is"
"""A pipeline's users set no options of the source."""

_NO_ADVICE = re.compile(r" Verify the spelling and correctness of the schema and catalog\..*", re.DOTALL)
"""Of tables that are not there: about catalogs, which pipelines do not have."""

_NO_WATERMARK = "not supported for streaming aggregations without watermark on streaming DataFrames/DataSets."
_WITH_WATERMARK = (
    "not supported for aggregations without a watermark: give one, and group by its column, or the mode update"
)

_ENDS = re.compile(
    r"\n*(=== Streaming Query ===|== SQL|JVM stacktrace:|;\n|\n\s*at [\w.$/]+\("
    r"|This stopped SparkContext was created at:)",
    re.MULTILINE,
)
"""What follows one of these is for who debugs Spark."""
_WRAPPERS = re.compile(
    r"^(\[STREAM_FAILED\] Query \[.*?\] terminated with exception: "
    r"|An error occurred while calling [\w.$]+\s*: "
    r"|Job aborted due to stage failure: .*?\): "
    r"|(org\.apache|java|scala|py4j)\.[\w.$]+: )",
    re.DOTALL,
)
_CLASS = re.compile(r"^\[[A-Z0-9_.]+\] ")
_STATE = re.compile(r"\s*SQLSTATE: \w{5};?")
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]*")
_ADVICE = (
    (
        re.compile(r"[Pp]ython worker (failed )?to connect back"),
        "Spark has started a Python process, which did not answer in time. Run the Python that PYSPARK_PYTHON names "
        "on the machine where that was: it must start, have what docs/spark.md lists for executors, and reach "
        "127.0.0.1, to which the name localhost must resolve. If it does, the machine was too busy: start it again",
    ),
    (
        re.compile(r"Cannot run program"),
        "PYSPARK_PYTHON must name a Python that is under the same path on all of Spark's machines",
    ),
    (
        re.compile(r"methods on a stopped SparkContext"),
        "Spark has stopped while it started, as it does when no master answers at the URL that was given",
    ),
)
"""What Spark says of its own processes, and what to do."""
_TRACEBACK = "Traceback (most recent call last):"


def reason(message: str) -> str:
    """The sentence in `message`; never empty. It ends with what to do, where that is known."""
    text = message.strip()
    if _TRACEBACK in text:
        text = _raised(text)
    text = _ENDS.split(text, maxsplit=1)[0]
    before = None
    while before != text:
        before, text = text, _WRAPPERS.sub("", text).strip()
    text = _STATE.sub("", _CLASS.sub("", text))
    text = _NO_ADVICE.sub("", text).replace(losses.ADVICE, _SKIP_LOST).replace(_NO_WATERMARK, _WITH_WATERMARK)
    sentence = " ".join(text.split()) or "Spark does not say why"
    advice = next((what for said, what in _ADVICE if said.search(sentence)), None)
    return sentence if advice is None else f"{sentence.removesuffix('.')}: {advice}"


def _raised(text: str) -> str:
    """What the last traceback ends with: the exception's message, up to an empty line."""
    lines = text[text.rindex(_TRACEBACK) :].splitlines()[1:]
    at = next((index for index, line in enumerate(lines) if line and not line[0].isspace()), len(lines))
    name, _, said = "\n".join(lines[at:]).partition("\n\n")[0].partition(": ")
    return said if said and _EXCEPTION.fullmatch(name) else f"{name}: {said}".removesuffix(": ")
