"""Settings of clients: which names are understood, what Java's become, and that nothing shows a secret."""

from __future__ import annotations

import base64
import json
import pickle
import socket
from pathlib import Path

import pytest

from fairlog_client_security import (
    OAUTHBEARER,
    ClientSecurity,
    SecurityRefused,
    by_librdkafkas_names,
    for_librdkafka,
)
from pyspark_fairlog.options import OptionRefused, read_options, write_options

SECRET = 'se"c\\ret; of alice'
SCRAM_MODULE = "org.apache.kafka.common.security.scram.ScramLoginModule"
PLAIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"
SIGNED_IN = {
    "security.protocol": "SASL_SSL",
    "sasl.mechanism": "SCRAM-SHA-512",
    "sasl.username": "alice",
    "sasl.password": SECRET,
}


def jaas(module: str = SCRAM_MODULE, options: str = 'username="alice" password="se\\"c\\\\ret; of alice"') -> str:
    return f"{module} required {options};"


@pytest.mark.parametrize(
    ("mechanism", "module", "options"),
    [
        ("SCRAM-SHA-512", SCRAM_MODULE, 'username="alice" password="se\\"c\\\\ret; of alice"'),
        ("SCRAM-SHA-256", SCRAM_MODULE, ' password = "se\\"c\\\\ret; of alice"   username=alice '),
        ("PLAIN", PLAIN_MODULE, 'username="alice"\n  password="se\\"c\\\\ret; of alice"'),
    ],
)
def test_login_module_of_java_becomes_name_and_password(mechanism: str, module: str, options: str) -> None:
    given = {"sasl.mechanism": mechanism, "sasl.jaas.config": jaas(module, options)}
    assert by_librdkafkas_names(given) == {
        "sasl.mechanism": mechanism,
        "sasl.username": "alice",
        "sasl.password": SECRET,
    }


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "cannot be read"),
        (jaas()[:-1], "cannot be read"),
        (jaas() + jaas(), "cannot be read"),
        (jaas().replace("required", "optional"), "cannot be read"),
        (jaas(options='username="alice" password="secret'), "cannot be read"),
        (jaas(options='username="alice" password="secret\\n"'), "cannot be read"),
        (jaas("com.sun.security.auth.module.Krb5LoginModule"), "not understood"),
        (jaas(PLAIN_MODULE), "does not name"),
        (jaas(options='username="alice"'), "other options"),
        (jaas(options='username="alice" password="secret" password="secret"'), "other options"),
        (jaas(options='username="alice" password="secret" tokenauth="true"'), "other options"),
        (jaas(options="=" * 5000), "cannot be read"),
        (jaas(options=" a=b" * 5000 + " a"), "cannot be read"),
    ],
)
def test_other_login_modules_are_refused_without_a_secret(text: str, why: str) -> None:
    with pytest.raises(SecurityRefused, match=why) as refused:
        by_librdkafkas_names({"sasl.mechanism": "SCRAM-SHA-512", "sasl.jaas.config": text}, prefix="kafka.")
    assert "kafka.sasl.jaas.config" in str(refused.value)
    assert "secret" not in str(refused.value).lower()


def test_pem_files_of_javas_stores_become_librdkafkas() -> None:
    given = {
        "ssl.truststore.type": "PEM",
        "ssl.truststore.location": "/ca.pem",
        "ssl.keystore.type": "pem",
        "ssl.keystore.location": "/me.pem",
        "ssl.endpoint.identification.algorithm": "",
        "linger.ms": "5",
    }
    assert by_librdkafkas_names(given) == {
        "ssl.ca.location": "/ca.pem",
        "ssl.certificate.location": "/me.pem",
        "ssl.key.location": "/me.pem",
        "ssl.endpoint.identification.algorithm": "none",
        "linger.ms": "5",
    }


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({"ssl.truststore.type": "JKS", "ssl.truststore.location": "/ca.jks"}, "ssl.truststore.type can only be PEM"),
        ({"ssl.keystore.location": "/me.jks"}, "ssl.keystore.location is one of Java's key stores unless"),
        (
            {"ssl.truststore.type": "PEM", "ssl.truststore.location": "/a", "ssl.ca.location": "/b"},
            "ssl.truststore.location says the same as ssl.ca.location",
        ),
        (SIGNED_IN | {"sasl.mechanisms": "PLAIN"}, "sasl.mechanisms says the same as sasl.mechanism:"),
        ({"security.protocol": "SSL", "ssl.key.location": "/key.pem"}, "ssl.key.location is the key of a certificate"),
        (SIGNED_IN | {"sasl.jaas.config": jaas()}, "sasl.jaas.config says the same as sasl.username"),
        ({"sasl.kerberos.service.name": "kafka"}, "sasl.kerberos.service.name is not understood"),
        ({"ssl.cipher.suites": "x"}, "ssl.cipher.suites is not understood"),
        ({"security.providers": "x"}, "security.providers is not understood"),
        ({"security.protocol": "TLS"}, "security.protocol is one of"),
        ({"security.protocol": "SASL_SSL"}, "sasl.mechanism is one of"),
        ({"sasl.username": "alice"}, "sasl.username is set, and (kafka.)?security.protocol is not: it would not"),
        (
            {"security.protocol": "SASL_PLAINTEXT", "ssl.ca.location": "/ca.pem"},
            "ssl.ca.location is set, and (kafka.)?security.protocol is SASL_PLAINTEXT, without TLS: it would not",
        ),
        (SIGNED_IN | {"sasl.mechanism": "GSSAPI"}, "sasl.mechanism is one of"),
        (SIGNED_IN | {"sasl.password": ""}, "sasl.username and sasl.password are needed"),
        (SIGNED_IN | {"sasl.mechanism": OAUTHBEARER}, "sasl.oauthbearer.token.endpoint.url is needed"),
    ],
)
def test_settings_that_cannot_be_used_are_refused_by_name(given: dict[str, str], why: str) -> None:
    with pytest.raises(SecurityRefused, match=why):
        ClientSecurity.of(by_librdkafkas_names(given))
    # And as options of a data source, by the names that they have there.
    options = {f"kafka.{name}": value for name, value in given.items()}
    for read in (read_options, lambda all_: write_options(all_, forbidden={})):
        with pytest.raises(OptionRefused, match=r"^kafka\.") as refused:
            read(
                {"kafka.bootstrap.servers": "here:1", **options} | ({"subscribe": "t"} if read is read_options else {})
            )
        assert SECRET not in str(refused.value)


def test_options_of_a_data_source_are_for_both_of_its_clients() -> None:
    """What is checked is compared, hashed and pickled, as connections are kept and options sent to tasks; not shown."""
    given = {f"kafka.{name}": value for name, value in SIGNED_IN.items()}
    options = read_options({"kafka.bootstrap.servers": "here:1", "subscribe": "t", **given, "kafka.linger.ms": "5"})
    assert options.client == {**SIGNED_IN, "linger.ms": "5"}
    assert options.security.settings == SIGNED_IN
    assert (options.security.has_tls, options.security.mechanism) == (True, "SCRAM-SHA-512")
    assert pickle.loads(pickle.dumps(options)).security == options.security == ClientSecurity.of(SIGNED_IN)
    assert len({options.security, ClientSecurity.of(SIGNED_IN), ClientSecurity()}) == 2
    assert SECRET not in repr(options)
    assert "alice" not in repr(options)


def test_files_that_cannot_be_used_are_named(tmp_path: Path) -> None:
    for name, more in (("ssl.ca.location", {}), ("ssl.certificate.location", {"ssl.key.location": "/none"})):
        security = ClientSecurity.of({"security.protocol": "SSL", name: "/none.pem", **more}, prefix="kafka.")
        stream, other = socket.socketpair()
        with other, pytest.raises(SecurityRefused, match=rf"kafka\.{name}, /none\.pem, cannot be used: No such file"):
            security.secured(stream, "localhost")
        assert stream.fileno() < 0, "the connection is not closed"


def test_token_is_read_from_its_file_each_time_it_is_asked_for(tmp_path: Path) -> None:
    """By our own client and by librdkafka, which asks again before the token expires."""
    file = tmp_path / "a token"
    url = f"file://{str(file).replace(' ', '%20')}"
    settings = {
        "security.protocol": "SASL_SSL",
        "sasl.mechanism": OAUTHBEARER,
        "sasl.oauthbearer.token.endpoint.url": url,
    }
    security, taken = ClientSecurity.of(settings), for_librdkafka(settings)
    assert taken.keys() == {"security.protocol", "sasl.mechanism", "oauth_cb"}
    for expires_s in (10, 20):
        claims = base64.urlsafe_b64encode(json.dumps({"exp": expires_s}).encode()).decode().rstrip("=")
        file.write_text(f"header.{claims}.signature\n", encoding="ascii")
        assert taken["oauth_cb"]("") == (f"header.{claims}.signature", expires_s)
        said: list[bytes] = []
        security.sign_in(lambda message, said=said: said.append(message) or b"")
        assert said == [f"n,,\1auth=Bearer header.{claims}.signature\1\1".encode()]
    for text in ("", "no token", "a.b.c"):
        file.write_text(text, encoding="ascii")
        with pytest.raises(SecurityRefused, match="has no token"):
            taken["oauth_cb"]("")
    file.unlink()
    with pytest.raises(SecurityRefused, match="cannot be read"):
        taken["oauth_cb"]("")
