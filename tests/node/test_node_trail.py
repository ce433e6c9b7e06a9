"""The audit trail of a real node: what clients and operators have done, in a file of its own."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from scripts.node_process import NodeProcess

pytestmark = pytest.mark.slow


def test_trail_has_a_line_for_each_thing_that_was_done_or_refused(
    new_node: Callable[..., NodeProcess], tmp_path: Path
) -> None:
    """Also for what an operator was refused for want of a token; and none for what was only asked about."""
    file = tmp_path / "trail.jsonl"
    node = new_node(FAIRLOG_TRAIL_FILE=str(file), FAIRLOG_ADMIN_LISTEN="127.0.0.1:0")
    node.start()
    admin = AdminClient({"bootstrap.servers": node.address, "client.id": "operator"})
    for name, only_asks in (("orders", True), ("orders", False)):
        admin.create_topics([NewTopic(name, 1)], validate_only=only_asks)[name].result(15)
    with pytest.raises(Exception, match="TOPIC_ALREADY_EXISTS"):
        admin.create_topics([NewTopic("orders", 1)])["orders"].result(15)
    admin.create_partitions([NewPartitions("orders", 3)])["orders"].result(15)
    entry = ConfigEntry("retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    config = ConfigResource(ResourceType.TOPIC, "orders", incremental_configs=[entry])
    admin.incremental_alter_configs([config])[config].result(15)
    place = TopicPartition("orders", 0, 0)
    admin.delete_records([place])[place].result(15)
    with pytest.raises(Exception, match="GROUP_ID_NOT_FOUND"):
        admin.delete_consumer_groups(["billing"])["billing"].result(15)
    admin.delete_topics(["orders"])["orders"].result(15)
    assert refused_abort(node) == 401

    lines = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    assert [(line["action"], line["on"], line["outcome"]) for line in lines] == [
        ("create topic", "orders", "done"),
        ("create topic", "orders", "TOPIC_ALREADY_EXISTS"),
        ("create partitions", "orders", "done"),
        ("alter configs", "orders", "done"),
        ("delete records", "orders-0", "done"),
        ("delete group", "billing", "GROUP_ID_NOT_FOUND"),
        ("delete topic", "orders", "done"),
        ("abort transaction", "/api/transactions/abort", "a token is needed: Authorization: Bearer <admin token>"),
    ]
    assert {(line["principal"], line["client_id"]) for line in lines[:-1]} == {("User:ANONYMOUS", "operator")}
    assert all(line["peer"].startswith("127.0.0.1:") for line in lines)


def refused_abort(node: NodeProcess) -> Any:
    request = urllib.request.Request(
        f"{node.console}api/transactions/abort", b"{}", {"Content-Type": "application/json"}
    )
    try:
        with urllib.request.urlopen(request, timeout=15) as answer:
            return answer.status
    except urllib.error.HTTPError as refused:
        return refused.code
