"""What a pipeline is to do: read from a TOML file or the command line's options, and checked. Pure: no I/O, no Spark.

A pipeline is a handful of *steps*. Each reads one topic as a table, runs one SELECT over it, and writes the rows to a
topic or a directory. Steps may be chained: one reads what another one writes. `Pipeline.steps` stand in an order in
which each comes behind those whose output it reads; steps in a circle are refused, because they would never come to an
end.

What only Spark can judge (the schema, the SQL) is kept as text here and judged before the first record is read
(`steps`). All else that is wrong is a `PlanError` before Spark is started, which takes seconds.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from graphlib import CycleError, TopologicalSorter
from typing import Any, Literal, TypeVar, cast

DEFAULT_MASTER = "local[*]"
DEFAULT_CHECKPOINTS = "fairlog-pipelines"
DEFAULT_BOOTSTRAP = "127.0.0.1:9092"
AVAILABLE_NOW = "available-now"
PARQUET = "parquet:"

Mode = Literal["append", "update"]

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_INTERVAL = re.compile(r"[0-9]+ (milliseconds?|seconds?|minutes?|hours?|days?)")
_WATERMARK = re.compile(rf"(\w+) ({_INTERVAL.pattern})")
_MASTER = re.compile(r"local(-cluster)?(\[.*\])?|yarn|(spark|k8s)://.+")
"""As spark-submit judges it, which says so in its log only, and ends."""
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")

T = TypeVar("T")


class PlanError(Exception):
    """A pipeline cannot be what it is said to be. The message is one sentence: where, what, and what to do."""


@dataclass(frozen=True, slots=True)
class Watermark:
    """Rows whose `column` is older by `delay` than the latest one seen are too late: windows before that are closed."""

    column: str
    delay: str


@dataclass(frozen=True, slots=True)
class ToTopic:
    """Rows become records of `topic`."""

    topic: str


@dataclass(frozen=True, slots=True)
class ToParquet:
    """Rows become Parquet files below `directory`, a path of this machine, one directory per micro-batch."""

    directory: str


@dataclass(frozen=True, slots=True)
class Step:
    """One SELECT over one topic."""

    name: str
    source: str
    """The topic that is read, from its first record."""
    sql: str
    to: ToTopic | ToParquet
    schema: str | None = None
    """The columns of the values, as in CREATE TABLE. None: they are what the step that writes the topic puts there."""
    raw: bool = False
    """The table has the records as they are, and the rows are records as they are; no JSON."""
    watermark: Watermark | None = None
    mode: Mode = "append"
    bad: str | None = None
    """The topic for values that are not of the schema. None: the first one ends the pipeline."""
    transactional_id: str = ""
    """The sink's name at the broker; it is made from the names of the pipeline and the step."""
    checkpoint: str = ""
    """The directory of Spark's checkpoint, made from the pipeline's."""

    @property
    def table(self) -> str:
        """What the topic is called in SQL: characters that a name in SQL may not have are underscores."""
        return table_name(self.source)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """Steps, and what they run on."""

    name: str
    steps: tuple[Step, ...]
    checkpoint: str
    """A directory of this machine; each step has one of its own in it."""
    bootstrap: str = DEFAULT_BOOTSTRAP
    master: str = DEFAULT_MASTER
    trigger: str | None = None
    """`available-now`: work off what is there and end. An interval such as `5 seconds`: how often a micro-batch begins.
    None: each begins as soon as the one before it is done."""
    records_per_batch: int | None = None
    skip_lost: bool = False
    """Go on where records are gone that were not read; else they end the pipeline."""
    spark: Mapping[str, str] = field(default_factory=dict[str, str])
    """Settings of Spark, by their full names."""
    client: Mapping[str, str] = field(default_factory=dict[str, str], repr=False)
    """What clients of the broker show and ask for, by librdkafka's names: sasl.…, ssl.… and security.protocol."""

    @property
    def ends(self) -> bool:
        """Does it end by itself?"""
        return self.trigger == AVAILABLE_NOW

    @property
    def topics_read(self) -> tuple[str, ...]:
        """The topics that are read and that no step writes: they must be there."""
        written = set(self.topics_written)
        return tuple(dict.fromkeys(step.source for step in self.steps if step.source not in written))

    @property
    def topics_written(self) -> tuple[str, ...]:
        written = [step.to.topic for step in self.steps if isinstance(step.to, ToTopic)]
        return tuple(dict.fromkeys([*written, *(step.bad for step in self.steps if step.bad is not None)]))


def table_name(topic: str) -> str:
    """The name of a topic's table."""
    return re.sub(r"[^A-Za-z0-9_]", "_", topic)


# --- from a file and from options ---


def pipeline_of_file(text: str, *, where: str, overrides: Mapping[str, object]) -> Pipeline:
    """The pipeline that a TOML file describes. `overrides` are settings of the pipeline that win over the file's.

    Raises PlanError, whose message begins with `where`.
    """
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise PlanError(f"{where} is no TOML: {error}") from error
    try:
        steps = _tables(document.pop("step", None))
        return _pipeline(document | dict(overrides), steps, one_line=False)
    except PlanError as error:
        raise PlanError(f"{where}: {error}") from error


def pipeline_of_options(settings: Mapping[str, object], step: Mapping[str, object]) -> Pipeline:
    """The pipeline of one step that the command line's options describe, by the names that a file has for them.

    Raises PlanError.
    """
    return _pipeline(dict(settings), [dict(step)], one_line=True)


def _tables(value: object) -> list[dict[str, object]]:
    steps = cast("list[object]", value) if isinstance(value, list) else []
    if not steps or not all(isinstance(step, dict) for step in steps):
        raise PlanError("there is no [[step]], of which a pipeline has at least one")
    return cast("list[dict[str, object]]", steps)


def _pipeline(settings: dict[str, object], steps: list[dict[str, object]], *, one_line: bool) -> Pipeline:
    taken = _Settings(settings, "")
    tables = [_Settings(step, f"step {number}: ") for number, step in enumerate(steps, start=1)]
    bare = [_step(table) for table in tables]
    name = taken.take("name", _name, default=bare[0].name if one_line else None)
    checkpoint = taken.take("checkpoint", _directory, default=f"{DEFAULT_CHECKPOINTS}/{name}")
    pipeline = Pipeline(
        name=name,
        steps=_ordered(
            replace(
                step,
                name=name if one_line else step.name,
                checkpoint=f"{checkpoint}/{name if one_line else step.name}",
                transactional_id=name if one_line else f"{name}.{step.name}",
            )
            for step in bare
        ),
        checkpoint=checkpoint,
        bootstrap=taken.take("bootstrap", _text, default=DEFAULT_BOOTSTRAP),
        master=taken.take("master", _master, default=DEFAULT_MASTER),
        trigger=taken.take_optional("trigger", _trigger),
        records_per_batch=taken.take_optional("records_per_batch", _count),
        skip_lost=taken.take("skip_lost", _switch, default=False),
        spark=taken.take("spark", _spark_settings, default={}),
    )
    taken.done()
    _check_chain(pipeline)
    return pipeline


def _step(table: _Settings) -> Step:
    source = table.take("from", _topic)
    to = table.take("to", _destination)
    target = to.topic if isinstance(to, ToTopic) else to.directory.rstrip("/").rpartition("/")[2]
    name = table.take("name", _name, default=f"{source}-to-{target}"[:100])
    table.where = f"step {name}: "
    step = Step(
        name=name,
        source=source,
        to=to,
        sql=table.take("sql", _text),
        schema=table.take_optional("schema", _text),
        raw=table.take("raw", _switch, default=False),
        watermark=table.take_optional("watermark", _watermark),
        mode=table.take("mode", _mode, default="append"),
        bad=table.take_optional("bad", _topic),
    )
    table.done()
    for wrong, sentence in (
        (step.raw and step.schema is not None, "raw records have the columns that they have: leave out the schema"),
        (step.raw and step.bad is not None, "no raw record is a bad one: leave out the topic for bad ones"),
        (step.bad is not None and isinstance(to, ToParquet), "a topic for bad values goes with an output topic only"),
        (step.bad == source, f"bad values of {source} cannot go to {source} itself"),
    ):
        if wrong:
            raise PlanError(f"{table.where}{sentence}")
    return step


def _ordered(unordered: Iterable[Step]) -> tuple[Step, ...]:
    """Writers before readers; otherwise as they stand."""
    steps = list(unordered)
    by_name = {step.name: step for step in steps}
    if len(by_name) < len(steps):
        double = next(step.name for step in steps if sum(other.name == step.name for other in steps) > 1)
        raise PlanError(f"two steps have the name {double}: give them others")
    before = {step.name: [other.name for other in steps if step.source in _writes(other)] for step in steps}
    try:
        order = TopologicalSorter(before).static_order()
        return tuple(by_name[name] for name in order)
    except CycleError as error:
        circle = " → ".join(reversed(error.args[1]))
        raise PlanError(f"the steps run in a circle, which never ends: {circle}") from error


def _writes(step: Step) -> tuple[str, ...]:
    """The topics that a step writes."""
    return (*((step.to.topic,) if isinstance(step.to, ToTopic) else ()), *((step.bad,) if step.bad else ()))


def _check_chain(pipeline: Pipeline) -> None:
    for step in pipeline.steps:
        writers = [other for other in pipeline.steps if other.to == ToTopic(step.source)]
        if step.schema is None and not step.raw and (len(writers) != 1 or writers[0].raw):
            raise PlanError(
                f"step {step.name}: which columns do the values of {step.source} have? Give a schema, or say raw"
            )
    directories = [step.to for step in pipeline.steps if isinstance(step.to, ToParquet)]
    if len(set(directories)) < len(directories):
        raise PlanError("two steps write to one directory: a directory of Parquet files belongs to one step")


class _Settings:
    """Settings by name, each taken once; what nobody has taken was misspelt."""

    def __init__(self, values: Mapping[str, object], where: str) -> None:
        self.where = where
        self._values = dict(values)
        self._known: list[str] = []

    def take(self, name: str, read: Callable[[object], T], *, default: T | None = None) -> T:
        self._known.append(name)
        if name not in self._values:
            if default is None:
                raise PlanError(f"{self.where}{name} is missing")
            return default
        try:
            return read(self._values.pop(name))
        except ValueError as error:
            raise PlanError(f"{self.where}{name}: {error}") from error

    def take_optional(self, name: str, read: Callable[[object], T]) -> T | None:
        if name in self._values:
            return self.take(name, read)
        self._known.append(name)
        return None

    def done(self) -> None:
        for name in self._values:
            near = difflib.get_close_matches(name, self._known, 1)
            meant = f"did you mean {near[0]}?" if near else f"there is {', '.join(self._known)}"
            raise PlanError(f"{self.where}nothing is called {name}; {meant}")


# --- readers: an outside value to ours, or ValueError ---


def _text(value: object) -> str:
    if not isinstance(value, str) or not value.strip():
        raise ValueError("a text that is not empty is needed")
    return value


def _name(value: object) -> str:
    text = _text(value)
    if not _NAME.fullmatch(text):
        raise ValueError(f"{text!r} is no name: at most 100 letters, digits, and . _ - behind the first")
    return text


def _topic(value: object) -> str:
    text = _text(value)
    if not _TOPIC.fullmatch(text):
        raise ValueError(f"{text!r} is no name of a topic: at most 249 letters, digits, and . _ -")
    return text


def _directory(value: object) -> str:
    text = _text(value)
    if _SCHEME.match(text):
        raise ValueError(f"{text} is no directory: a path of this machine, or of a file system that it has mounted")
    return text.rstrip("/") or "/"


def _destination(value: object) -> ToTopic | ToParquet:
    text = _text(value)
    if text.startswith(PARQUET):
        return ToParquet(_directory(text.removeprefix(PARQUET)))
    return ToTopic(_topic(text))


def _watermark(value: object) -> Watermark:
    found = _WATERMARK.fullmatch(_text(value))
    if found is None:
        raise ValueError(f"{value!r} is not a column and how late it may be, as in 'at 10 minutes'")
    return Watermark(found[1], found[2])


def _master(value: object) -> str:
    text = _text(value)
    if not _MASTER.fullmatch(text):
        raise ValueError(f"{text!r} is none of Spark's: local[2], local[*], spark://HOST:PORT, yarn, k8s://URL")
    return text


def _trigger(value: object) -> str:
    text = _text(value)
    if text != AVAILABLE_NOW and not _INTERVAL.fullmatch(text):
        raise ValueError(f"{text!r} is neither {AVAILABLE_NOW} nor an interval, as in '5 seconds'")
    return text


def _mode(value: object) -> Mode:
    if value not in ("append", "update"):
        raise ValueError(f"{value!r} is neither append (a row is written once, when it is final) nor update")
    return value


def _switch(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false is needed")  # noqa: TRY004 (what readers raise)
    return value


def _count(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError("a whole number from 1 is needed")
    return value


def _spark_settings(value: object) -> Mapping[str, str]:
    if not isinstance(value, dict):
        raise ValueError("a table of Spark's settings is needed")  # noqa: TRY004 (what readers raise)
    return dict(_flattened("spark", cast("dict[str, Any]", value)))


def _flattened(prefix: str, table: Mapping[str, Any]) -> Iterable[tuple[str, str]]:
    # In TOML `sql.shuffle.partitions = 4` makes tables in tables.
    for key, value in table.items():
        name = f"{prefix}.{key}"
        if isinstance(value, dict):
            yield from _flattened(name, cast("dict[str, Any]", value))
        elif isinstance(value, bool):
            yield name, str(value).lower()
        elif isinstance(value, str | int | float):
            yield name, str(value)
        else:
            raise ValueError(f"{name} must be a text, a number, true or false")  # noqa: TRY004 (what readers raise)
