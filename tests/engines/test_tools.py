"""Kafka's command line tools, judged by what they print and by what is there afterwards."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Producer

from scripts.node_process import NodeProcess
from tests.clients.modes import BOTH_MODES, MODE_CONFIG, Mode
from tests.clients.raw_client import leader_id_of
from tests.engines import programs, topics
from tests.engines.conftest import ENVIRONMENT
from tests.engines.jvm import PLATFORM

Tool = Callable[..., list[str]]

MAIN = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "kafka.admin.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-delete-records": "org.apache.kafka.tools.DeleteRecordsCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-groups": "org.apache.kafka.tools.GroupsCommand",
    "kafka-leader-election": "org.apache.kafka.tools.LeaderElectionCommand",
    "kafka-log-dirs": "org.apache.kafka.tools.LogDirsCommand",
    "kafka-metadata-quorum": "org.apache.kafka.tools.MetadataQuorumCommand",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
    "kafka-verifiable-consumer": "org.apache.kafka.tools.VerifiableConsumer",
    "kafka-verifiable-producer": "org.apache.kafka.tools.VerifiableProducer",
}
"""What the scripts of Kafka's distribution run."""


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, processes: int) -> Iterator[NodeProcess]:
    """One node for all of these tests, which make topics of their own."""
    PLATFORM.require()
    node = NodeProcess(tmp_path_factory.mktemp("node") / "data", ENVIRONMENT, processes=processes)
    node.start()
    yield node
    assert node.stop() == 0, node.log_tail()


@pytest.fixture
def tool(node: NodeProcess) -> Tool:
    """Runs a tool: `tool("kafka-topics", "--list")`. The lines that it prints; it has to end with status 0."""

    def call(name: str, *arguments: str, text: str = "") -> list[str]:
        # kafka-cluster and kafka-transactions have sub-commands: one wants the address after it, the other before.
        address = ("--bootstrap-server", node.address)
        words = (*arguments, *address) if name == "kafka-cluster" else (*address, *arguments)
        command = PLATFORM.command(MAIN[name], *words)
        return programs.run(command, text=text).splitlines()

    return call


def rows(lines: list[str]) -> list[dict[str, str]]:
    """A table of words, by the names in its first line."""
    header, *others = [line.split() for line in lines if line.strip()]
    return [dict(zip(header, row, strict=False)) for row in others]


def test_kafka_topics_makes_alters_and_deletes(node: NodeProcess, tool: Tool) -> None:
    """The topic is there with its partitions and configs, has more of them when told, and is gone when deleted."""
    tool("kafka-topics", "--create", "--topic", "made", "--partitions", "2", "--config", "retention.ms=3600000")
    tool("kafka-topics", "--alter", "--topic", "made", "--partitions", "3")
    head, *partitions = tool("kafka-topics", "--describe", "--topic", "made")
    assert "PartitionCount: 3" in head
    assert "retention.ms=3600000" in head
    fields = [dict(field.partition(":")[::2] for field in line.strip().split("\t")) for line in partitions]
    assert [each["Partition"].strip() for each in fields] == ["0", "1", "2"]
    assert [each["Leader"] for each in fields] == [each["Isr"] for each in fields]
    assert {int(each["Leader"]) for each in fields} == set(range(1, min(3, node.processes) + 1))
    assert "made" in tool("kafka-topics", "--list")
    tool("kafka-topics", "--delete", "--topic", "made")
    assert "made" not in tool("kafka-topics", "--list")


def test_console_producer_and_consumer_carry_keys_and_values(node: NodeProcess, tool: Tool) -> None:
    """What was typed in comes out with its offsets, and the group's offsets and lags are told."""
    topics.make(node.address, "typed", 2)
    typed = [f"key-{number}\tvalue {number}" for number in range(50)]
    tool("kafka-console-producer", "--topic", "typed", "--reader-property", "parse.key=true", text="\n".join(typed))
    printed = tool(
        "kafka-console-consumer", "--topic", "typed", "--from-beginning", "--max-messages", "50", "--group", "console",
        *("--formatter-property", "print.key=true", "--formatter-property", "print.offset=true"),
        *("--formatter-property", "print.partition=true"),
    )  # fmt: skip
    records = [line.split("\t") for line in printed if line.startswith("Partition:")]
    assert sorted("\t".join(record[2:]) for record in records) == sorted(typed)
    ends = topics.ends(node.address, "typed", 2)
    assert sorted((record[0], int(record[1].removeprefix("Offset:"))) for record in records) == [
        (f"Partition:{partition}", offset) for partition in range(2) for offset in range(ends[partition])
    ]
    assert tool("kafka-get-offsets", "--topic", "typed") == [f"typed:{number}:{ends[number]}" for number in range(2)]
    assert tool("kafka-get-offsets", "--topic", "typed", "--time", "earliest") == ["typed:0:0", "typed:1:0"]

    told = rows(tool("kafka-consumer-groups", "--describe", "--group", "console")[1:])
    assert sorted((row["PARTITION"], row["CURRENT-OFFSET"], row["LOG-END-OFFSET"], row["LAG"]) for row in told) == [
        (str(number), str(ends[number]), str(ends[number]), "0") for number in range(2)
    ]


def test_kafka_consumer_groups_lists_resets_and_deletes(node: NodeProcess, tool: Tool) -> None:
    """Offsets are where they were reset to; deleted ones, and a deleted group, are gone."""
    topics.make(node.address, "grouped", 2)
    topics.fill(node.address, "grouped", 2, ((str(number), str(number)) for number in range(20)))
    arguments = ["--reset-offsets", "--group", "resettable", "--topic", "grouped", "--execute"]
    told = rows(tool("kafka-consumer-groups", *arguments, "--to-latest"))
    assert sorted((row["PARTITION"], row["NEW-OFFSET"]) for row in told) == [("0", "10"), ("1", "10")]
    tool("kafka-consumer-groups", *arguments, "--shift-by", "-3")
    assert topics.group_offsets(node.address, "resettable") == {("grouped", 0): 7, ("grouped", 1): 7}
    assert "resettable" in tool("kafka-consumer-groups", "--list")
    states = rows(tool("kafka-consumer-groups", "--list", "--state"))
    assert {"GROUP": "resettable", "STATE": "Empty"} in states
    tool("kafka-consumer-groups", "--delete-offsets", "--group", "resettable", "--topic", "grouped:1")
    assert topics.group_offsets(node.address, "resettable") == {("grouped", 0): 7}
    tool("kafka-consumer-groups", "--delete", "--group", "resettable")
    assert "resettable" not in tool("kafka-consumer-groups", "--list")
    assert not topics.group_offsets(node.address, "resettable")
    assert not any("resettable" in line for line in tool("kafka-groups", "--list"))


def test_kafka_configs_alters_and_describes(node: NodeProcess, tool: Tool) -> None:
    """What was set is shown, and what was deleted has its default again."""
    topics.make(node.address, "configured")
    entity = ("--entity-type", "topics", "--entity-name", "configured")
    tool("kafka-configs", "--alter", *entity, "--add-config", "retention.ms=7200000,cleanup.policy=[compact,delete]")

    def described(*more: str) -> dict[str, str]:
        lines = [line.split()[0] for line in tool("kafka-configs", "--describe", *entity, *more)[1:]]
        return dict(line.split("=", 1) for line in lines)

    shown = described()
    assert (shown["retention.ms"], shown["cleanup.policy"]) == ("7200000", "compact,delete")
    tool("kafka-configs", "--alter", *entity, "--delete-config", "retention.ms")
    assert "retention.ms" not in described()
    assert described("--all")["retention.ms"] == "604800000"


def test_kafka_configs_alters_and_describes_groups(node: NodeProcess, tool: Tool) -> None:
    """A group's own configs are shown, and what was deleted has the node's value again; refusals are told."""
    entity = ("--entity-type", "groups", "--entity-name", "configured")
    tool("kafka-configs", "--alter", *entity, "--add-config", "consumer.session.timeout.ms=50000")
    assert any("consumer.session.timeout.ms=50000" in line for line in tool("kafka-configs", "--describe", *entity))
    every = tool("kafka-configs", "--describe", "--entity-type", "groups")
    assert any("configured" in line for line in every)
    tool("kafka-configs", "--alter", *entity, "--delete-config", "consumer.session.timeout.ms")
    assert not any("consumer.session.timeout.ms" in line for line in tool("kafka-configs", "--describe", *entity))


def test_kafka_delete_records_moves_the_start(node: NodeProcess, tool: Tool, tmp_path: Path) -> None:
    """The tool tells the new start, and readers begin there."""
    topics.make(node.address, "shortened")
    topics.fill(node.address, "shortened", 1, [("k", "v")])
    topics.fill(node.address, "shortened", 1, [("k", "w")])
    wanted = tmp_path / "offsets.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "shortened", "partition": 0, "offset": 1}]}), "utf-8"
    )
    assert "partition: shortened-0\tlow_watermark: 1" in tool("kafka-delete-records", "--offset-json-file", str(wanted))
    assert tool("kafka-get-offsets", "--topic", "shortened", "--time", "earliest") == ["shortened:0:1"]


@BOTH_MODES
def test_kafka_transactions_shows_and_ends_what_is_open(node: NodeProcess, mode: Mode, tool: Tool) -> None:
    """An open transaction is listed and described; forced to end, it is empty, and its records are gone."""
    name = f"open-{mode.value}"
    topics.make(node.address, name, **{MODE_CONFIG: mode.value})
    producer = Producer({"bootstrap.servers": node.address, "transactional.id": name})
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(name, b"never to be seen")
    assert producer.flush(30) == 0

    listed = {row["TransactionalId"]: row for row in rows(tool("kafka-transactions", "list"))}
    assert listed[name]["TransactionState"] == "Ongoing"
    described = rows(tool("kafka-transactions", "describe", "--transactional-id", name))[0]
    assert described["ProducerId"] == listed[name]["ProducerId"]
    assert f"{name}-0" in described.values()
    active = rows(tool("kafka-transactions", "describe-producers", "--topic", name, "--partition", "0"))
    assert [row["ProducerId"] for row in active] == [described["ProducerId"]]

    tool("kafka-transactions", "forceTerminateTransaction", "--transactionalId", name)
    listed = {row["TransactionalId"]: row for row in rows(tool("kafka-transactions", "list"))}
    assert listed[name]["TransactionState"] == "Empty"
    assert not topics.committed(node.address, name, 1, mode)


@BOTH_MODES
def test_producer_performance_writes_whole_transactions(node: NodeProcess, mode: Mode, tool: Tool) -> None:
    """The load generator's records are all there, for readers of committed records."""
    name = f"load-{mode.value}"
    topics.make(node.address, name, 2, **{MODE_CONFIG: mode.value})
    tool(
        "kafka-producer-perf-test", "--topic", name, "--num-records", "5000", "--record-size", "50",
        *("--throughput", "-1", "--transactional-id", name, "--transaction-duration-ms", "50"),
    )  # fmt: skip
    assert len(topics.committed(node.address, name, 2, mode)) == 5000


def test_verifiable_producer_and_consumer_agree(node: NodeProcess, tool: Tool) -> None:
    """The programs of Kafka's own system tests: what one says was written is what the other says was read."""
    topics.make(node.address, "verified", 2)

    def events(lines: list[str], name: str) -> list[dict[str, object]]:
        return [event for event in map(json.loads, lines) if event["name"] == name]

    written = tool("kafka-verifiable-producer", "--topic", "verified", "--max-messages", "500")
    sent = {(event["partition"], event["offset"]) for event in events(written, "producer_send_success")}
    assert len(sent) == 500
    lines = tool(
        "kafka-verifiable-consumer", "--topic", "verified", "--group-id", "verified", "--max-messages", "500",
        *("--reset-policy", "earliest", "--verbose"),
    )  # fmt: skip
    read = {(event["partition"], event["offset"]) for event in events(lines, "record_data")}
    assert read == sent


def test_kafka_cluster_and_api_versions_know_the_brokers(node: NodeProcess, tool: Tool) -> None:
    """Each broker of the cluster is told with its address, and with the versions of each API."""
    endpoints = rows(tool("kafka-cluster", "list-endpoints"))
    assert sorted(f"{row['HOST']}:{row['PORT']}" for row in endpoints) == sorted(node.addresses)
    versions = tool("kafka-broker-api-versions")
    told = sorted(line.partition(" (id: ")[::2] for line in versions if "(id: " in line)
    assert [(address, rest.split()[0]) for address, rest in told] == sorted(
        (address, str(broker_id)) for broker_id, address in enumerate(node.addresses, 1)
    )
    assert any("Produce(0)" in line for line in versions)
    assert not any("UNSUPPORTED" in line for line in versions if "Produce(0)" in line or "Fetch(1)" in line)


def test_kafka_log_dirs_tells_what_partitions_take(node: NodeProcess, tool: Tool) -> None:
    """The node's directory at each broker, with the partitions that it leads; what was written to takes room."""
    topics.make(node.address, "weighed", 2)
    topics.fill_partition(node.address, "weighed", 1, [("k", "v" * 1000)])
    [answer] = [line for line in tool("kafka-log-dirs", "--describe", "--topic-list", "weighed") if line[:1] == "{"]
    brokers = json.loads(answer)["brokers"]
    assert len(brokers) == node.processes
    directories = [directory for broker in brokers for directory in broker["logDirs"]]
    assert [(each["error"], each["logDir"]) for each in directories] == [(None, str(node.data_dir))] * node.processes
    sizes = {each["partition"]: each["size"] for directory in directories for each in directory["partitions"]}
    assert set(sizes) == {"weighed-0", "weighed-1"}
    assert sizes["weighed-1"] > 1000


def test_tools_of_a_cluster_find_nothing_to_be_done(node: NodeProcess, tool: Tool, tmp_path: Path) -> None:
    """The quorum is the first broker; an election and a reassignment change nothing, and say that they are done."""
    topics.make(node.address, "led")
    leader = leader_id_of(node.address, "led", 0)
    status = dict(line.split(":", 1) for line in tool("kafka-metadata-quorum", "describe", "--status"))
    assert (status["LeaderId"].strip(), status["MaxFollowerLag"].strip()) == ("1", "0")
    tool("kafka-leader-election", "--election-type", "preferred", "--topic", "led", "--partition", "0")
    wanted = tmp_path / "reassignment.json"
    wanted.write_text(
        json.dumps({"version": 1, "partitions": [{"topic": "led", "partition": 0, "replicas": [leader]}]}), "utf-8"
    )
    tool("kafka-reassign-partitions", "--reassignment-json-file", str(wanted), "--execute")
    assert "Reassignment of partition led-0 is completed." in tool(
        "kafka-reassign-partitions", "--reassignment-json-file", str(wanted), "--verify"
    )
    assert tool("kafka-reassign-partitions", "--list") == ["No partition reassignments found."]
    assert f"\tTopic: led\tPartition: 0\tLeader: {leader}\tReplicas: {leader}\tIsr: {leader}" in "".join(
        tool("kafka-topics", "--describe", "--topic", "led")
    )


def test_kafka_configs_sets_shows_and_deletes_quotas(tool: Tool) -> None:
    """Of a user's clients, and of addresses."""
    clients = ("--entity-type", "users", "--entity-name", "carol", "--entity-type", "clients", "--entity-default")
    addresses = ("--entity-type", "ips", "--entity-default")
    tool("kafka-configs", "--alter", *clients, "--add-config", "producer_byte_rate=1000,consumer_byte_rate=2000")
    tool("kafka-configs", "--alter", *addresses, "--add-config", "connection_creation_rate=300")
    (told,) = tool("kafka-configs", "--describe", *clients)
    assert "user-principal 'carol', the default client-id are " in told
    assert "producer_byte_rate=1000.0" in told
    assert "consumer_byte_rate=2000.0" in told
    assert "connection_creation_rate=300.0" in "".join(tool("kafka-configs", "--describe", *addresses))
    tool("kafka-configs", "--alter", *clients, "--delete-config", "producer_byte_rate")
    (told,) = tool("kafka-configs", "--describe", *clients)
    assert "producer_byte_rate" not in told
    tool("kafka-configs", "--alter", *addresses, "--delete-config", "connection_creation_rate")


def test_kafka_acls_adds_lists_and_removes(tmp_path: Path) -> None:
    """On a node with an authorizer, on which whoever has not signed in is the operator."""
    PLATFORM.require()
    locked = {"FAIRLOG_AUTHORIZER_ENABLE": "true", "FAIRLOG_AUTHORIZER_SUPER_USERS": "User:ANONYMOUS"}
    node = NodeProcess(tmp_path / "data", ENVIRONMENT | locked)
    node.start()

    def acls(*arguments: str) -> str:
        return programs.run(PLATFORM.command(MAIN["kafka-acls"], "--bootstrap-server", node.address, *arguments))

    alice = ("--allow-principal", "User:alice", "--consumer", "--topic", "t", "--group", "g")
    told = acls("--add", *alice)
    assert "(principal=User:alice, host=*, operation=READ, permissionType=ALLOW)" in told
    listed = acls("--list", "--topic", "t")
    assert "resourceType=TOPIC, name=t, patternType=LITERAL" in listed
    assert "operation=DESCRIBE" in listed
    assert "GROUP" not in listed
    acls("--remove", "--force", *alice)
    assert "User:alice" not in acls("--list")
    assert node.stop() == 0, node.log_tail()
