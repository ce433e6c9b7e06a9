"""`fairlog produce` and `fairlog consume` as processes, against a real node and its directory."""

from __future__ import annotations

import itertools
import json
import os
import pty
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)

from fairlog.cli.read_directory import open_directory
from fairlog.cli.read_node import open_node
from fairlog.cli.selection import Selection, Start
from fairlog.config_values import Address
from scripts.node_process import ROOT, NodeProcess
from tests.cli.processes import FAIRLOG
from tests.clients.raw_client import RawClient, batch_with_header
from tests.node.nodes import wait_for_the_copy
from tests.processes import one_process_only

pytestmark = pytest.mark.slow

WAIT_S = 30
LITERAL = ResourcePatternType.LITERAL


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[NodeProcess]:
    """One node for all tests of this module."""
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", processes=processes)
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


@pytest.fixture
def run(node: NodeProcess) -> Callable[..., tuple[int, str, str]]:
    """Runs a command against the node: exit code, stdout, stderr."""

    def run_command(*arguments: str, lines: str | bytes = b"") -> tuple[int, str, str]:
        done = subprocess.run(
            [*FAIRLOG, *arguments],
            check=False,
            input=lines.encode() if isinstance(lines, str) else lines,
            capture_output=True,
            cwd=ROOT,
            env=os.environ | {"FAIRLOG_BOOTSTRAP": node.addresses[-1]},
            timeout=WAIT_S,
        )
        return done.returncode, done.stdout.decode(), done.stderr.decode()

    return run_command


Run = Callable[..., tuple[int, str, str]]


_numbers = itertools.count()


@pytest.fixture
def topic(node: NodeProcess) -> str:
    """A topic of two partitions, for one test."""
    return make_topic(node, f"topic-{next(_numbers)}")


def make_topic(node: NodeProcess, name: str, partitions: int = 2, **config: str) -> str:
    """Other than the commands that are tested, and so quicker."""
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, partitions, 1, config=config)])[name].result(timeout=WAIT_S)
    return name


def write(node: NodeProcess, topic: str, *values: bytes, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": node.address, "reconnect.backoff.max.ms": 100})
    for value in values:
        producer.produce(topic, value, partition=partition)
    assert producer.flush(WAIT_S) == 0


@pytest.fixture(scope="module")
def here(node: NodeProcess) -> str:
    """An empty topic of one partition."""
    return make_topic(node, "here", 1)


OF_ONE_SHARD = one_process_only("the directory of several shards is read through the node")


@pytest.fixture(params=["node", pytest.param("directory", marks=OF_ONE_SHARD)])
def source(request: pytest.FixtureRequest, node: NodeProcess) -> list[str]:
    """The options of both ways to read."""
    return ["--data-dir", str(node.data_dir)] if request.param == "directory" else []


def documents(lines: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines.splitlines()]


def spawn(node: NodeProcess, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*FAIRLOG, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        env=os.environ | {"FAIRLOG_BOOTSTRAP": node.addresses[-1]},
    )


def test_lines_come_out_as_they_went_in(run: Run, topic: str, source: list[str]) -> None:
    """Keys, headers, bytes that are no text; the same from the node and from its directory."""
    lines = b"k:one\nk:two:2\n:\xff\xfe\n"
    code, out, err = run("produce", topic, "--key-separator", ":", "--header", "a=1", "--partition", "1", lines=lines)
    assert (code, out, err) == (0, f"3 records were produced to {topic}\n", "")
    code, out, err = run("consume", topic, "--until-end", "--json", *source)
    assert (code, err) == (0, "")
    found = documents(out)
    assert [(each["partition"], each["offset"], each["key"], each["value"]) for each in found] == [
        (1, 0, "k", "one"),
        (1, 1, "k", "two:2"),
        (1, 2, "", {"base64": "//4="}),
    ]
    assert all(each["headers"] == [["a", "1"]] and each["topic"] == topic for each in found)
    assert abs(found[0]["timestamp_ms"] / 1000 - time.time()) < 60  # pyright: ignore


@OF_ONE_SHARD
def test_header_that_the_client_cannot_read_is_said_in_a_sentence(node: NodeProcess, run: Run) -> None:
    """Its name is no UTF-8. The command's own reader of the directory can, and shows it."""
    topic = make_topic(node, "no-utf-8", 1)
    with RawClient(node.address) as client:
        assert client.produce(topic, 0, batch_with_header(b"v", b"na\xffe"))[0] == 0
    code, out, err = run("consume", topic, "--until-end", "--json")
    assert (code, out) == (1, "")
    assert "offset 0 of no-utf-8, partition 0, has a header whose name is not UTF-8" in err
    assert "--data-dir" in err
    code, out, err = run("consume", topic, "--until-end", "--json", "--data-dir", str(node.data_dir))
    assert (code, err) == (0, "")
    assert [each["headers"] for each in documents(out)] == [[["na\N{REPLACEMENT CHARACTER}e", "1"]]]


def test_consumed_json_lines_can_be_produced_again(node: NodeProcess, run: Run, topic: str) -> None:
    """A topic copied by a pipe is the same, but for its name."""
    records = [
        {"partition": 0, "timestamp_ms": 1000, "key": None, "value": "v", "headers": []},
        {"partition": 1, "timestamp_ms": 2000, "key": "k", "value": None, "headers": [["h", None], ["h", ""]]},
        {"partition": 1, "timestamp_ms": 1, "key": {"base64": "/w=="}, "value": "", "headers": []},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in records)
    code, out, _ = run("produce", topic, "--json", lines=lines)
    assert (code, json.loads(out)) == (0, {"topic": topic, "records": 3, "transactional_id": None})
    copy = make_topic(node, f"{topic}-copy")
    _, first, _ = run("consume", topic, "--until-end", "--json")
    assert run("produce", copy, "--json", lines=first)[0] == 0
    _, second, _ = run("consume", copy, "--until-end", "--json")
    assert sorted(second.replace(copy, topic).splitlines()) == sorted(first.splitlines())
    wanted = [{name: record[name] for name in records[0]} for record in documents(first)]
    assert sorted(wanted, key=str) == sorted(records, key=str)


HANGING = "one"
"""The transactional id that leaves a transaction open in `marked`."""


@pytest.fixture(scope="module")
def marked(node: NodeProcess) -> Iterator[str]:
    """A topic with markers: b and d committed, c aborted, f open, and plain ones around them."""
    name = make_topic(node, "marked", 1, **{"fairlog.transactions": "markers"})
    producers = [
        Producer(
            {
                "bootstrap.servers": node.address,
                "transactional.id": each,
                "transaction.timeout.ms": 900_000,  # it hangs for as long as these tests take
                "reconnect.backoff.max.ms": 100,
            }
        )
        for each in (HANGING, "two")
    ]
    for producer in producers:
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
    write(node, name, b"a")
    for producer, value in zip((*producers, producers[0]), (b"b", b"c", b"d"), strict=True):
        producer.produce(name, value)
        assert producer.flush(WAIT_S) == 0
    producers[1].abort_transaction(WAIT_S)
    producers[0].commit_transaction(WAIT_S)
    write(node, name, b"e")
    producers[0].begin_transaction()
    producers[0].produce(name, b"f")
    assert producers[0].flush(WAIT_S) == 0
    write(node, name, b"g")
    yield name
    producers[0].abort_transaction(WAIT_S)


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ([], ["a", "b", "d", "e"]),
        (["--isolation", "read_committed", "--offset", "-2"], ["e"]),
        (["--isolation", "read_uncommitted"], ["a", "b", "c", "d", "e", "f", "g"]),
    ],
)
def test_consume_shows_what_is_committed_unless_told_otherwise(
    run: Run, marked: str, source: list[str], options: list[str], expected: list[str]
) -> None:
    """A topic with markers ends before an open transaction, and markers are not shown; from the node and from disk."""
    code, out, err = run("consume", marked, "--json", "--until-end", *options, *source)
    assert (code, err) == (0, "")
    assert [each["value"] for each in documents(out)] == expected


def test_consume_reads_what_the_options_say(node: NodeProcess, run: Run, topic: str, source: list[str]) -> None:
    """From the beginning, from an offset, the last ones, a number of them, one partition."""
    for partition in (0, 1):
        write(node, topic, *(b"%d%d" % (partition, number) for number in range(10)), partition=partition)

    def values(*options: str) -> list[object]:
        code, out, err = run("consume", topic, "--json", *options, *source)
        assert (code, err) == (0, "")
        return [each["value"] for each in documents(out)]

    assert sorted(map(str, values("--until-end"))) == [f"{p}{n}" for p in (0, 1) for n in range(10)]
    assert values("--partition", "1", "--offset", "8", "--until-end") == ["18", "19"]
    assert values("--partition", "0", "--offset", "-3", "--until-end") == ["07", "08", "09"]
    assert len(values("--from-beginning", "--count", "15")) == 15
    assert values("--partition", "0", "--offset", "10", "--until-end") == []


def test_consume_follows_until_it_is_told_to_stop(node: NodeProcess, topic: str, source: list[str]) -> None:
    """Without an end it shows what comes, at once; Ctrl-C and SIGTERM are how it is meant to end."""
    for number in (signal.SIGINT, signal.SIGTERM):
        process = spawn(node, "consume", topic, "--json", "--offset", "-1", *source)
        assert process.stdout is not None
        seen: list[str] = []
        shown = threading.Event()

        def read(
            process: subprocess.Popen[str] = process, seen: list[str] = seen, shown: threading.Event = shown
        ) -> None:
            assert process.stdout is not None
            for line in process.stdout:
                seen.append(json.loads(line)["value"])
                shown.set()

        reading = threading.Thread(target=read)
        reading.start()
        deadline = time.monotonic() + WAIT_S
        while not shown.is_set():
            assert time.monotonic() < deadline
            write(node, topic, b"tick")
        process.send_signal(number)
        reading.join(WAIT_S)
        assert process.wait(WAIT_S) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""
        assert set(seen) == {"tick"}
        process.communicate()


@pytest.mark.parametrize("direct", [False, pytest.param(True, marks=OF_ONE_SHARD)])
def test_reading_until_the_end_ends_where_the_topic_ended_when_it_began(
    node: NodeProcess, topic: str, direct: bool
) -> None:
    """What comes while it reads is left for the next time: a topic that is written to without pause has an end, too."""
    write(node, topic, b"1", b"2")
    write(node, topic, b"3", partition=1)
    if direct:
        wait_for_the_copy(node.address, topic, partitions=2)
    selection = Selection((topic,), None, Start.EARLIEST, None, until_end=True)
    opened = (
        open_directory(node.data_dir, selection)
        if direct
        else open_node(Address.parse(node.addresses[-1]), selection, None)
    )
    with opened as reading:
        write(node, topic, b"late")
        write(node, topic, b"late", partition=1)
        found = [record.value for chunk in reading.chunks(threading.Event()) for record in chunk]
    assert sorted(map(str, found)) == [str(b"1"), str(b"2"), str(b"3")]
    assert reading.total == 3


def test_consume_waits_for_a_node_that_is_restarted(tmp_path: Path, processes: int) -> None:
    """A tail goes on when its node comes back."""
    node = NodeProcess(tmp_path / "data", processes=processes)
    node.start()
    try:
        write(node, "t", b"before")
        process = spawn(node, "consume", "t", "--json", "--from-beginning", "--count", "2")
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["value"] == "before"
        node.kill()
        node.start()
        write(node, "t", b"after")
        out, err = process.communicate(timeout=WAIT_S)
        assert (err, process.returncode) == ("", 0)
        assert json.loads(out)["value"] == "after"
    finally:
        node.kill()


@OF_ONE_SHARD
def test_consume_reads_the_directory_of_a_node_that_is_stopped(tmp_path: Path, processes: int) -> None:
    """No broker is needed, and nothing is written there."""
    node = NodeProcess(tmp_path / "data", processes=processes)
    node.start()
    write(node, "t", b"kept")
    assert node.stop() == 0
    before = {path: path.stat().st_mtime_ns for path in node.data_dir.rglob("*") if path.name != "lock.mdb"}
    command = [*FAIRLOG, "consume", "t", "--data-dir", str(node.data_dir), "--until-end", "--json"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, cwd=ROOT, timeout=WAIT_S)
    assert (json.loads(done.stdout)["value"], done.stderr, done.returncode) == ("kept", "", 0)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_produce_in_a_transaction_shows_all_or_nothing(run: Run, topic: str) -> None:
    """A bad line aborts what went before it; good ones can be found by the transaction's id."""
    code, out, err = run("produce", topic, "--transaction", "--key-separator", ":", lines="a:1\nb\n")
    assert (code, out) == (1, "")
    assert err == (
        "fairlog: line 2: it does not contain the key separator :; the transaction was not committed; none of its "
        "records is visible\n"
    )
    code, out, _ = run("produce", topic, "--transaction", "--json", lines='{"value": "1", "partition": 1}\n' * 3)
    assert code == 0
    told = json.loads(out)
    (shown,) = json.loads(run("txn", "show", told["transactional_id"], "--json")[1])
    assert [(part["partition"], part["base_offset"], part["count"]) for part in shown["records"]] == [(1, 0, 3)]
    assert [each["value"] for each in documents(run("consume", topic, "--until-end", "--json")[1])] == ["1"] * 3


@pytest.mark.parametrize(
    ("arguments", "lines", "sentence"),
    [
        (
            ["--key-separator", ":"],
            "a:1\nb\n",
            "line 2: it does not contain the key separator :; 1 record was produced",
        ),
        (["--json"], '{"value": "a"}\n{"vlaue": "b"}\n', "line 2: it has the unknown field 'vlaue'"),
        (["--json"], '{"value": "a", "partition": 7}\n', "line 1: topic {topic} has no partition 7; it has 2, from 0"),
        (["--partition", "2"], "a\n", "line 1: topic {topic} has no partition 2"),
        ([], "x" * 2_000_000 + "\n", "line 1: MSG_SIZE_TOO_LARGE"),
    ],
)
def test_produce_of_a_line_that_is_no_record_names_the_line(
    run: Run, topic: str, arguments: Sequence[str], lines: str, sentence: str
) -> None:
    """The first bad line ends it, and the message says what was produced before."""
    code, out, err = run("produce", topic, *arguments, lines=lines)
    assert (code, out) == (1, "")
    assert err.startswith(f"fairlog: {sentence.format(topic=topic)}")
    assert err.count("\n") == 1


@pytest.mark.parametrize("transaction", [False, True])
def test_produce_interrupted_says_what_became_of_its_lines(
    node: NodeProcess, topic: str, run: Run, transaction: bool
) -> None:
    """Ctrl-C in the midst of typing: plain records are there, a transaction's are not; the code is a shell's 130."""
    process = spawn(node, "produce", topic, *(["--transaction"] if transaction else []))
    assert process.stdin is not None
    process.stdin.write("a\nb\n")
    process.stdin.flush()
    deadline = time.monotonic() + WAIT_S
    while not (ongoing(run) if transaction else run("consume", topic, "--until-end", "--json")[1].count("\n") == 2):
        assert time.monotonic() < deadline
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=WAIT_S)
    assert (process.returncode, out) == (130, "")
    if transaction:
        assert err == "fairlog: interrupted; the transaction was not committed; none of its records is visible\n"
        assert not ongoing(run)
    else:
        assert err == "fairlog: interrupted; 2 records were produced before that\n"


def test_produce_whose_transaction_another_takes_over_ends_with_a_sentence(
    node: NodeProcess, topic: str, run: Run
) -> None:
    """That is fatal to its client, which raises it from its reports on records, or at the next call."""
    process = spawn(node, "produce", topic, "--transaction")
    assert process.stdin is not None
    process.stdin.write("a\n")
    process.stdin.flush()
    deadline = time.monotonic() + WAIT_S
    while not (opened := ongoing(run)):
        assert time.monotonic() < deadline
    other = Producer({"bootstrap.servers": node.address, "transactional.id": opened[0]["transactional_id"]})
    other.init_transactions(WAIT_S)
    out, err = process.communicate("b\n" * 100, timeout=WAIT_S)
    assert (process.returncode, out) == (1, "")
    assert err.startswith("fairlog: ")
    assert err.endswith("; the transaction was not committed; none of its records is visible\n")
    assert err.count("\n") == 1
    assert "Traceback" not in err
    assert run("consume", topic, "--until-end")[1] == ""


@pytest.fixture
def refusing(tmp_path: Path) -> Iterator[NodeProcess]:
    """A node with the topic `orders`, to which nobody may write."""
    settings = {"AUTHORIZER_ENABLE": "true", "AUTHORIZER_ALLOW_EVERYONE_IF_NO_ACL_FOUND": "true"}
    node = NodeProcess(tmp_path / "data", {f"FAIRLOG_{name}": value for name, value in settings.items()})
    node.start()
    make_topic(node, "orders", 1)
    everyone = ("User:*", "*")
    acls = [
        AclBinding(ResourceType.TOPIC, "orders", LITERAL, *everyone, AclOperation.DESCRIBE, AclPermissionType.ALLOW),
        AclBinding(ResourceType.TOPIC, "*", LITERAL, *everyone, AclOperation.WRITE, AclPermissionType.DENY),
        AclBinding(
            ResourceType.BROKER,
            "kafka-cluster",
            LITERAL,
            *everyone,
            AclOperation.IDEMPOTENT_WRITE,
            AclPermissionType.DENY,
        ),
    ]
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_acls(acls).values():
        future.result(WAIT_S)
    yield node
    assert node.stop() == 0, node.log_tail()


def test_produce_of_who_may_not_write_says_so_in_one_sentence(refusing: NodeProcess) -> None:
    """It is fatal to the client, plain and in a transaction; its own word on it is not shown beside the sentence."""
    for transaction, code in ([], "CLUSTER_AUTHORIZATION_FAILED"), (["--transaction"], "TOPIC_AUTHORIZATION_FAILED"):
        with spawn(refusing, "produce", "orders", *transaction) as process:
            out, err = process.communicate("a\n", timeout=WAIT_S)
        assert (process.returncode, out) == (1, "")
        assert err.startswith(f"fairlog: producing to orders: {code}: "), err
        assert err.count("\n") == 1, err


def ongoing(run: Run) -> list[dict[str, object]]:
    """The transactions that the command has open; HANGING is not its."""
    listed = json.loads(run("txn", "list", "--state", "Ongoing", "--json")[1])
    return [each for each in listed if each["transactional_id"] != HANGING]


def test_records_are_a_table_on_a_terminal(node: NodeProcess, run: Run, topic: str) -> None:
    """Columns stand below each other over several chunks, headers below their value, escape sequences are defused."""
    lines = b"key:first\nkey:\x1b[31mred\xc3\xa9\nkey:\xff\n"
    assert run("produce", topic, "--key-separator", ":", "--header", "h=1", lines=lines)[0] == 0
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*FAIRLOG, "consume", topic, "--until-end"],
        stdout=theirs,
        cwd=ROOT,
        env=os.environ | {"FAIRLOG_BOOTSTRAP": node.addresses[-1], "COLUMNS": "110", "TERM": "dumb"},
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux says so when the last writer has gone
            break
        if not part:
            break
        shown += part
    os.close(ours)
    assert process.wait(WAIT_S) == 0
    assert b"\x1b" not in shown
    head, *rows = [line.rstrip() for line in shown.decode().splitlines()]
    assert head.split() == ["partition", "offset", "time", "(UTC)", "key", "value"]
    at = head.index("value")
    assert [row[at:] for row in rows] == ["first", "h: 1", r"\x1b[31mredé", "h: 1", r"b'\xff'", "h: 1"]


def test_records_are_a_line_each_in_a_pipe(run: Run, topic: str, source: list[str]) -> None:
    """Without --json, what goes into a pipe is for people too, but never folded."""
    value = "v" * 500
    assert run("produce", topic, "--key-separator", ":", "--header", "h=1", lines=f"key:{value}\n")[0] == 0
    code, out, _ = run("consume", topic, "--until-end", *source)
    head, line = out.splitlines()
    assert (code, head.split()) == (0, ["topic", "partition", "offset", "time", "(UTC)", "key", "value", "headers"])
    assert line.split()[0] == topic
    assert line.split()[5:] == ["key", value, "h=1"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["consume", "nowhere"], "there is no topic nowhere"),
        pytest.param(["consume", "nowhere", "--data-dir", "DATA"], "there is no topic nowhere", marks=OF_ONE_SHARD),
        (["consume", "here", "--data-dir", "/dev/null"], "/dev/null is not the data directory of a node"),
        (["consume", "here", "--offset", "1"], "partition 0 of here goes from offset 0 to 0, not to 1"),
        pytest.param(
            ["consume", "here", "--offset", "1", "--data-dir", "DATA"],
            "partition 0 of here goes from offset 0 to 0",
            marks=OF_ONE_SHARD,
        ),
        (["consume", "here", "--partition", "1"], "topic here has no partition 1; it has 1, from 0"),
        (["produce", "nowhere"], "there is no topic nowhere; create it with: fairlog topic create nowhere"),
    ],
)
def test_command_that_cannot_be_carried_out_is_one_sentence(
    node: NodeProcess, here: str, run: Run, arguments: Sequence[str], sentence: str
) -> None:
    """What is wrong is told at once, and no topic is made by asking for it."""
    code, out, err = run(*(str(node.data_dir) if each == "DATA" else each for each in arguments))
    assert (code, out) == (1, "")
    assert err.startswith(f"fairlog: {sentence}")
    assert err.count("\n") == 1
    assert "nowhere" not in AdminClient({"bootstrap.servers": node.address}).list_topics(timeout=WAIT_S).topics


@pytest.mark.parametrize(
    "arguments",
    [
        ["consume", "t", "--group", "g", "--partition", "0"],
        ["consume", "t", "--group", "g", "--offset", "0"],
        ["consume", "t", "--group", "g", "--data-dir", "d"],
        ["consume", "t", "--offset", "0", "--from-beginning"],
        ["produce", "t", "--json", "--key-separator", ":"],
        ["produce", "t", "--key-separator", ""],
        ["produce", "t", "--header", "novalue"],
    ],
)
def test_options_that_exclude_each_other_are_refused(fairlog: Run, arguments: Sequence[str]) -> None:
    """A wrong command line is exit code 2, and nothing is asked of anybody."""
    code, out, err = fairlog(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("Usage: fairlog ")


@OF_ONE_SHARD
def test_records_without_the_stock_client_name_the_extra(node: NodeProcess, here: str) -> None:
    """A node's installation has no confluent-kafka: the message says what to install. The directory needs none."""
    program = """
import sys
sys.modules["confluent_kafka"] = sys.modules["hypothesis"] = None
sys.argv[0] = "fairlog"
from fairlog.cli import main
main()
"""

    def run_without(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", program, *arguments],
            check=False,
            input="",
            capture_output=True,
            text=True,
            cwd=ROOT,
            env=os.environ | {"FAIRLOG_BOOTSTRAP": node.addresses[-1]},
            timeout=WAIT_S,
        )

    for command in ("produce", "consume"):
        done = run_without(command, here)
        assert (done.returncode, done.stdout) == (1, "")
        assert done.stderr.startswith(
            f"fairlog: {command} needs the package confluent-kafka: pip install 'fairlog[client]' ("
        )
    done = run_without("consume", here, "--until-end", "--json", "--data-dir", str(node.data_dir))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_output_that_nobody_reads_any_more_ends_consume(node: NodeProcess, topic: str) -> None:
    """`| head` is a usual way to look at a topic."""
    write(node, topic, *[b"line"] * 20_000)
    with spawn(node, "consume", topic, "--until-end", "--json") as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(WAIT_S) == 1
