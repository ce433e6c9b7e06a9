"""Stock clients that show a token, each by its own means, and openssl's s_client, at one node."""

from __future__ import annotations

import asyncio
import ssl
import struct
import subprocess
import time
import warnings
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from aiokafka.abc import AbstractTokenProvider
from confluent_kafka import admin as confluent_admin

from fairlog_client_security import ClientSecurity
from pyspark_fairlog.native import Native, NativeError
from pyspark_fairlog.options import Partition, read_options
from pyspark_fairlog.planning import Range
from pyspark_fairlog.reading import read_range
from pyspark_fairlog.sink_options import parse
from pyspark_fairlog.writing import _Lane
from tests.cli.in_process import fairlog_command
from tests.engines.jvm import PLATFORM
from tests.engines.test_tools import MAIN
from tests.security.certificates import Pair
from tests.security.conftest import Node
from tests.security.refusals import poll_until_told
from tests.security.test_tokens import EC, OTHER, RULES, key_set_of, token

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    import kafka
    from kafka.net.sasl.oauth import AbstractTokenProvider as KafkaPythonTokenProvider

pytestmark = pytest.mark.slow

WAIT_S = 15
API_VERSIONS = struct.pack(">hhih", 18, 0, 77, -1)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Node]:
    """With a listener for who has a token, and one for who has a certificate."""
    directory = tmp_path_factory.mktemp("tokens")
    (directory / "jwks.json").write_bytes(key_set_of(ec=EC))
    node = Node(
        directory,
        "SASL_SSL://127.0.0.1:0,MUTUAL://127.0.0.1:0",
        FAIRLOG_SECURITY_PROTOCOLS="MUTUAL:SSL",
        FAIRLOG_TLS_CLIENT_AUTH="MUTUAL:required",
        FAIRLOG_SASL_MECHANISMS="OAUTHBEARER",
        FAIRLOG_OAUTH_JWKS=str(directory / "jwks.json"),
        FAIRLOG_OAUTH_ISSUER=RULES.issuer,
        FAIRLOG_OAUTH_AUDIENCE=RULES.audiences[0],
    )
    yield node
    assert node.process.stop() == 0, node.process.log_tail()
    assert "eyJ" not in node.log  # as every token begins


def address(node: Node, listener: str = "SASL_SSL") -> str:
    return node.listeners[0][listener]


def of_librdkafka(node: Node) -> dict[str, object]:
    return {
        "bootstrap.servers": address(node),
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "ssl.ca.location": str(node.authority.certificate),
        "log_level": 0,
    }


def of_python(node: Node, provider: object) -> dict[str, object]:
    return {
        "bootstrap_servers": address(node),
        "security_protocol": "SASL_SSL",
        "sasl_mechanism": "OAUTHBEARER",
        "sasl_oauth_token_provider": provider,
        "ssl_context": ssl.create_default_context(cafile=str(node.authority.certificate)),
    }


def test_confluent_kafka_has_a_callback(node: Node) -> None:
    def shown(_config: str) -> tuple[str, float]:
        return token(), time.time() + 300

    producer = confluent_kafka.Producer({**of_librdkafka(node), "oauth_cb": shown, "transactional.id": "tokens"})
    producer.init_transactions(WAIT_S)
    producer.begin_transaction()
    producer.produce("confluent", b"value")
    producer.commit_transaction(WAIT_S)

    errors: list[confluent_kafka.KafkaError] = []

    def forged(_config: str) -> tuple[str, float]:
        return token(key=OTHER), time.time() + 300

    refused = confluent_admin.AdminClient({**of_librdkafka(node), "oauth_cb": forged, "error_cb": errors.append})
    with pytest.raises(confluent_kafka.KafkaException):
        refused.list_topics(timeout=2)
    poll_until_told(refused, errors)
    assert confluent_kafka.KafkaError._AUTHENTICATION in {error.code() for error in errors}


def test_aiokafka_has_a_provider(node: Node) -> None:
    class Provider(AbstractTokenProvider):
        async def token(self) -> str:
            return token()

    async def write() -> None:
        async with aiokafka.AIOKafkaProducer(**of_python(node, Provider())) as producer:
            await producer.send_and_wait("aiokafka", b"value")

    asyncio.run(write())


def test_kafka_python_has_a_provider(node: Node) -> None:
    class Provider(KafkaPythonTokenProvider):
        def token(self) -> str:
            return token()

    with closing(kafka.KafkaProducer(**of_python(node, Provider()))) as producer:
        producer.send("kafka-python", b"value").get(WAIT_S)


def test_commands_and_sparks_client_read_a_file(
    node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By Kafka's protocol, the native one, and confluent-kafka, which the commands write and read records with."""
    file, properties = tmp_path / "token", tmp_path / "client.properties"
    settings = {
        **{name: str(value) for name, value in of_librdkafka(node).items() if name.startswith(("sec", "sasl", "ssl"))},
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    fairlog = fairlog_command(monkeypatch, capsys)
    security = ClientSecurity.of(settings)

    def run(*command: str) -> tuple[int, str, str]:
        return fairlog("--client-properties", properties, *command, "--bootstrap", address(node))

    file.write_text(token(), encoding="ascii")
    for command in (("topic", "create", "commands"), ("sink", "list"), ("consume", "commands", "--until-end")):
        code, _, error = run(*command)
        assert code == 0, error
    with Native.connect(address(node), security=security) as native:
        assert native.topics()["commands"] == 1
    options = {"kafka.bootstrap.servers": address(node), **{f"kafka.{name}": value for name, value in settings.items()}}
    lane = _Lane("lane", parse(options, streaming=False), "commands")
    lane.write(iter([("commands", b"value", None, 0)]))
    lane.flush()
    lane._producer.commit_transaction(WAIT_S)
    (rows,) = read_range(
        read_options({**options, "subscribe": "commands"}), ["value"], Range(Partition("commands", 0), 0, 1)
    )
    assert rows.column("value").to_pylist() == [b"value"]
    file.write_text(token(key=OTHER), encoding="ascii")
    for command in (("topic", "list"), ("sink", "list")):
        code, _, error = run(*command)
        assert code == 1
        assert "invalid credentials" in error
    with pytest.raises(NativeError, match="does not let the client in"):
        Native.connect(address(node), security=security)


def test_java_client_reads_a_file(node: Node, tmp_path: Path) -> None:
    """With the token's file at `sasl.oauthbearer.token.endpoint.url`; which files it may read, it is told."""
    PLATFORM.require()
    file, properties = tmp_path / "token", tmp_path / "client.properties"
    file.write_text(token({"scope": "any"}), encoding="ascii")
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": "OAUTHBEARER",
        "sasl.jaas.config": "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule required;",
        "sasl.login.callback.handler.class": (
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginCallbackHandler"
        ),
        "sasl.oauthbearer.token.endpoint.url": file.as_uri(),
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": str(node.authority.certificate),
    }
    properties.write_text("".join(f"{name}={value}\n" for name, value in settings.items()), encoding="utf-8")
    command = PLATFORM.command(
        MAIN["kafka-topics"],
        *("--bootstrap-server", address(node), "--command-config", str(properties)),
        *("--create", "--topic", "java"),
        options=(
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.urls={file.as_uri()}",
            f"-Dorg.apache.kafka.sasl.oauthbearer.allowed.files={file}",
        ),
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Created topic java" in done.stdout


def ask_by_openssl(node: Node, listener: str, *options: str, pair: Pair | None = None) -> tuple[bytes, str]:
    """What openssl's client gets as the answer to ApiVersions, and what it says of the connection."""
    shown = () if pair is None else ("-cert", str(pair.certificate), "-key", str(pair.key))
    trusted = ("-CAfile", str(node.authority.certificate), "-verify_return_error", "-verify_hostname", "localhost")
    command = ["openssl", "s_client", "-connect", address(node, listener), "-quiet", *trusted, *shown, *options]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert client.stderr is not None
        client.stdin.write(struct.pack(">i", len(API_VERSIONS)) + API_VERSIONS)
        client.stdin.flush()
        head = client.stdout.read(4)
        body = client.stdout.read(struct.unpack(">i", head)[0]) if len(head) == 4 else b""
        client.kill()
        return body, client.stderr.read().decode()


@pytest.mark.parametrize("version", ["-tls1_2", "-tls1_3"])
def test_openssl_s_client_gets_an_answer(node: Node, version: str) -> None:
    """Without a certificate and with one; and none where one is asked for and not shown."""
    for listener, pair in (("SASL_SSL", None), ("MUTUAL", node.client)):
        body, said = ask_by_openssl(node, listener, version, pair=pair)
        assert struct.unpack_from(">ih", body) == (77, 0), said
        assert "verify return:1" in said
    body, said = ask_by_openssl(node, "MUTUAL", version)
    assert body == b""
    assert "alert" in said
    body, _ = ask_by_openssl(node, "SASL_SSL", "-tls1_1", "-cipher", "ALL:@SECLEVEL=0")
    assert body == b""
