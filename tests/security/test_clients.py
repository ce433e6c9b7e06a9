"""Stock clients at a real node that asks who they are, and `fairlog user`, which says who there is."""

from __future__ import annotations

import asyncio
import json
import stat
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from confluent_kafka import admin as confluent_admin

from scripts.node_process import NodeProcess
from tests.cli.in_process import fairlog_command
from tests.security.refusals import poll_until_told

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    import kafka.errors

pytestmark = pytest.mark.slow

PASSWORD = "a secret, of alice"
MECHANISMS = ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"]


class Node:
    """A node with a user, and what clients need for it."""

    def __init__(self, process: NodeProcess) -> None:
        self.process = process

    @property
    def address(self) -> str:
        return self.process.address.rpartition("//")[2]

    def user(self, *arguments: str, password: str = "") -> subprocess.CompletedProcess[str]:
        """Run `fairlog user` on the node's machine."""
        admin = [] if self.process.console is None else ["--admin", self.process.console[len("http://") : -1]]
        return subprocess.run(
            [sys.executable, "-m", "fairlog.cli", "user", *arguments, "--data-dir", str(self.process.data_dir)]
            + (admin if self.process.running else []),
            input=password + "\n",
            capture_output=True,
            text=True,
            check=False,
        )

    def librdkafka(self, mechanism: str, name: str = "alice", password: str = PASSWORD) -> dict[str, object]:
        return {
            "bootstrap.servers": self.address,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": mechanism,
            "sasl.username": name,
            "sasl.password": password,
            "log_level": 0,
        }

    def python(self, mechanism: str, name: str = "alice", password: str = PASSWORD) -> dict[str, object]:
        return {
            "bootstrap_servers": self.address,
            "security_protocol": "SASL_PLAINTEXT",
            "sasl_mechanism": mechanism,
            "sasl_plain_username": name,
            "sasl_plain_password": password,
        }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    process = NodeProcess(
        tmp_path_factory.mktemp("sasl") / "node",
        {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0", "FAIRLOG_SASL_SECRETS_WITHOUT_TLS": "true"},
        arguments=["--listen", "SASL_PLAINTEXT://127.0.0.1:0"],
    )
    process.start()
    node = Node(process)
    added = node.user("add", "alice", "--password-file", "-", password=PASSWORD)
    assert (added.returncode, added.stdout) == (0, "user alice was added\n"), added.stderr
    yield node
    process.kill()
    assert PASSWORD not in process.log_path.read_text(encoding="utf-8")


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_librdkafka_writes_and_reads(node: Node, mechanism: str) -> None:
    topic = f"confluent-{mechanism}"
    producer = confluent_kafka.Producer({**node.librdkafka(mechanism), "transactional.id": mechanism})
    producer.init_transactions(15)
    producer.begin_transaction()
    producer.produce(topic, b"value")
    producer.commit_transaction(15)
    consumer = confluent_kafka.Consumer(
        {**node.librdkafka(mechanism), "group.id": topic, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    message = consumer.poll(20)
    assert message is not None
    assert message.value() == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_kafka_python_writes_and_reads(node: Node, mechanism: str) -> None:
    topic = f"kafka-python-{mechanism}"
    producer = kafka.KafkaProducer(**node.python(mechanism))
    producer.send(topic, b"value").get(15)
    producer.close()
    consumer = kafka.KafkaConsumer(
        topic, **node.python(mechanism), auto_offset_reset="earliest", consumer_timeout_ms=15_000
    )
    assert next(consumer).value == b"value"
    consumer.close()


@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_aiokafka_writes_and_reads(node: Node, mechanism: str) -> None:
    topic = f"aiokafka-{mechanism}"

    async def write_and_read() -> bytes | None:
        async with AIOKafkaProducer(**node.python(mechanism)) as producer:
            await producer.send_and_wait(topic, b"value")
        async with AIOKafkaConsumer(topic, **node.python(mechanism), auto_offset_reset="earliest") as consumer:
            return (await asyncio.wait_for(consumer.getone(), 15)).value

    assert asyncio.run(write_and_read()) == b"value"


def test_client_with_a_wrong_password_is_told_so(node: Node) -> None:
    """It is an error that clients take as final, not a connection that breaks."""
    errors: list[confluent_kafka.KafkaError] = []
    client = confluent_admin.AdminClient(
        {**node.librdkafka("SCRAM-SHA-256", password="wrong"), "error_cb": errors.append}
    )
    with pytest.raises(confluent_kafka.KafkaException):
        client.list_topics(timeout=2)
    poll_until_told(client, errors)
    assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in errors}


def test_users_are_changed_by_a_stock_client(node: Node) -> None:
    """KIP-554, by librdkafka: whoever may do so makes users, describes them, and deletes them."""
    client = confluent_admin.AdminClient(node.librdkafka("SCRAM-SHA-512"))
    info = confluent_admin.ScramCredentialInfo(confluent_admin.ScramMechanism.SCRAM_SHA_256, 8192)
    made = confluent_admin.UserScramCredentialUpsertion("bob", info, b"secret of bob")
    client.alter_user_scram_credentials([made])["bob"].result(15)
    described = client.describe_user_scram_credentials(["bob"])["bob"].result(15)
    (found,) = described.scram_credential_infos
    assert (found.mechanism, found.iterations) == (info.mechanism, 8192)
    as_bob = confluent_admin.AdminClient(node.librdkafka("SCRAM-SHA-256", "bob", "secret of bob"))
    assert as_bob.list_topics(timeout=15).brokers
    gone = confluent_admin.UserScramCredentialDeletion("bob", info.mechanism)
    client.alter_user_scram_credentials([gone])["bob"].result(15)
    with pytest.raises(confluent_kafka.KafkaException, match="no such user"):
        client.describe_user_scram_credentials(["bob"])["bob"].result(15)


def test_users_are_changed_on_the_nodes_machine_while_it_runs_and_while_it_does_not(node: Node, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("first of carol\n", encoding="utf-8")
    assert node.user("add", "carol", "--password-file", str(secret)).returncode == 0
    again = node.user("add", "carol", "--password-file", str(secret))
    assert (again.returncode, again.stdout) == (1, "")
    assert "there is such a user already" in again.stderr
    assert node.user("password", "carol", "--password-file", "-", password="second of carol").returncode == 0
    as_carol = confluent_admin.AdminClient(node.librdkafka("SCRAM-SHA-256", "carol", "second of carol"))
    assert as_carol.list_topics(timeout=15).brokers
    assert "no terminal" in node.user("add", "dave").stderr
    assert node.process.stop() == 0
    try:
        assert node.user("add", "dave", "--password-file", "-", password="secret of dave").returncode == 0
        assert node.user("delete", "carol").returncode == 0
        assert "there is no such user" in node.user("delete", "carol").stderr
        listed = node.user("list")
        assert (listed.returncode, "dave" in listed.stdout, "carol" in listed.stdout) == (0, True, False)
    finally:
        node.process.start()
    # A change of the files is no start that went wrong.
    ready = [line for line in node.process.log_path.read_text(encoding="utf-8").splitlines() if '"tail_kept"' in line]
    assert '"tail_kept": true' in ready[-1]
    as_dave = confluent_admin.AdminClient(node.librdkafka("SCRAM-SHA-512", "dave", "secret of dave"))
    assert as_dave.list_topics(timeout=15).brokers
    assert node.user("delete", "dave").returncode == 0


def test_backup_says_that_it_has_users_and_keeps_them_to_its_owner(node: Node, tmp_path: Path) -> None:
    """Neither the backup's summary nor an inspection shows what is kept of a password."""
    backup = tmp_path / "backup"

    def fairlog(*arguments: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "fairlog.cli", *arguments], capture_output=True, text=True, check=True
        ).stdout

    said = fairlog("backup", str(backup), "--data-dir", str(node.process.data_dir))
    assert "1 users, " in said
    assert json.loads((backup / "backup.json").read_bytes())["users"] == 1
    for file in ("cluster/data.mdb", "shards/0/datalog/data.mdb"):
        assert stat.S_IMODE((backup / file).stat().st_mode) == 0o600
    assert stat.S_IMODE((backup / "cluster").stat().st_mode) == 0o700
    shown = fairlog("inspect", str(backup / "cluster" / "data.mdb"), "--json")
    records = [json.loads(line) for line in shown.splitlines()]
    assert {"what": "user", "name": "alice"} in [{**each, "what": each["what"]} for each in records]
    assert all(each.keys() == {"what", "name"} for each in records if each["what"] in ("user", "secret"))


@pytest.mark.parametrize("mechanism", ["SCRAM-SHA-256", "SCRAM-SHA-512", "PLAIN"])
def test_commands_sign_in_with_a_file_of_properties(
    node: Node, tmp_path: Path, mechanism: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """On Kafka's protocol, by our client and by confluent-kafka, and on the native one."""
    file = tmp_path / "client.properties"
    lines = ["# who I am", "security.protocol=SASL_PLAINTEXT", f"sasl.mechanism={mechanism}", "sasl.username=alice"]
    file.write_text("\n".join([*lines, f"sasl.password={PASSWORD}"]), encoding="utf-8")
    fairlog = fairlog_command(monkeypatch, capsys)
    signed_in = ("--client-properties", file)
    topic, bootstrap = f"commands-{mechanism}", ("--bootstrap", node.address)
    assert fairlog(*signed_in, "topic", "create", topic, *bootstrap)[0] == 0
    assert fairlog(*signed_in, "sink", "list", *bootstrap)[:2] == (0, "there are no sinks\n")
    producer = confluent_kafka.Producer(node.librdkafka(mechanism))
    producer.produce(topic, b"value")
    assert producer.flush(15) == 0
    code, said, _ = fairlog(*signed_in, "consume", topic, "--until-end", *bootstrap)
    assert (code, "value" in said) == (0, True)
    assert "alice" in fairlog(*signed_in, "user", "list", *bootstrap)[1]
    file.write_text("\n".join([*lines, "sasl.password=wrong"]), encoding="utf-8")
    for command in (("topic", "list"), ("sink", "list")):
        code, said, error = fairlog(*signed_in, *command, *bootstrap)
        assert (code, said) == (1, "")
        assert "invalid credentials" in error
    assert fairlog("topic", "list", *bootstrap)[0] == 1
