"""The admin listeners of a cluster's nodes with TLS and sign-in: users and ACLs are those of the cluster."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from cryptography.x509.oid import NameOID
from peers.kafka_cluster import KafkaCluster

from fairlog.admin_http.users import change_document
from tests.on_kafka.brokers import three_nodes
from tests.security.certificates import Authority, name_of
from tests.security.signing_in import credentials_of
from tests.security.test_admin_page import JSON, Page, basic, secret_of, until

pytestmark = pytest.mark.slow

TOKEN = "the-token-of-these-tests"


def test_users_of_the_cluster_sign_in_at_each_node(kafka: KafkaCluster, tmp_path: Path) -> None:
    """A user that one node makes is known to the others, and so is that it was deleted: its sessions end."""
    authority = Authority(tmp_path / "ca")
    pair = authority.issue("node", name_of((NameOID.COMMON_NAME, "localhost")))
    settings = {
        "FAIRLOG_ADMIN_PROTOCOL": "SASL_SSL",
        "FAIRLOG_ADMIN_TOKEN": TOKEN,
        "FAIRLOG_TLS_CERTIFICATE": str(pair.certificate),
        "FAIRLOG_TLS_KEY": str(pair.key),
        "FAIRLOG_AUTHORIZER_ENABLE": "true",
        "FAIRLOG_AUTHORIZER_SUPER_USERS": "User:root",
    }
    with three_nodes(kafka, tmp_path, more=settings) as cluster:
        pages = [Page(f"https://{cluster.admin(node)}/", authority.certificate) for node in cluster.nodes]

        def change(action: str, name: str, headers: dict[str, str]) -> Any:
            credentials = {} if action == "delete" else credentials_of(secret_of(name))
            return pages[0].ask("/api/users/change", JSON | headers, change_document(action, name, credentials))[0]

        until(lambda: [page.ask("/health")[0] for page in pages] == [200] * 3)
        assert [page.ask("/api/cluster")[0] for page in pages] == [401] * 3
        assert change("add", "root", {"authorization": f"Bearer {TOKEN}"}) == 200
        assert change("add", "bob", basic("root")) == 200
        for page in pages:
            until(lambda page=page: page.ask("/api/cluster", basic("root"))[0] == 200)
            until(lambda page=page: page.ask("/api/cluster", basic("bob"))[0] == 403)
        session = pages[2].sign_in("bob", secret_of("bob"))
        assert pages[2].ask("/api/me", session)[1]["user"] == "bob"
        assert change("delete", "bob", basic("root")) == 200
        until(lambda: pages[2].ask("/api/me", session)[1]["user"] is None)
        counted = pages[2].ask("/metrics", basic("root"))[1]
        assert 'fairlog_sign_ins_total{mechanism="page",outcome="revoked"} 1.0' in counted
