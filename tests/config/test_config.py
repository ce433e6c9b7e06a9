"""Settings: where a value comes from, what wins, and what is said of a wrong one."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fairlog.config import KEYS, ConfigError, RequestSettings, Settings
from fairlog.config_sources import load
from fairlog.config_values import (
    Address,
    ListenerAddresses,
    NamedAddresses,
    Secret,
    read_counts_by_address,
    read_counts_by_listener,
)
from fairlog.configuration_page import page
from fairlog.configured_listeners import advertised_endpoints, check_listeners
from fairlog.security.listeners import Listener, SecurityProtocol

REPOSITORY = Path(__file__).resolve().parents[2]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "fairlog.toml"
    file.write_text(text, encoding="utf-8")
    return file


def test_settings_without_sources_are_all_defaults() -> None:
    """`Settings()` and a `load` that finds nothing are the same."""
    assert load(environment={}) == Settings()


def test_settings_of_several_sources_flag_wins_over_environment_over_file(tmp_path: Path) -> None:
    """Each source is beaten by the next; what only the weakest sets stays."""
    file = written(tmp_path, 'listen = "a:1"\nnode_id = 4\ndata_dir = "file"\n[journal]\nfsync = "never"\n')
    environment = {"FAIRLOG_LISTEN": "b:2", "FAIRLOG_DATA_DIR": "environment"}
    settings = load(flags={"listen": "c:3", "data_dir": None}, environment=environment, file=file)
    assert settings.listen == ListenerAddresses.plain(Address("c", 3))
    assert settings.data_dir == Path("environment")
    assert (settings.node_id, settings.journal.fsync) == (4, "never")


# Of keys whose default is not written as a text.
SAMPLES: dict[str, tuple[str, object]] = {
    "advertised": ("h:1", ListenerAddresses.plain(Address("h", 1))),
    "admin.token": ("sixteen-letters-", Secret("sixteen-letters-")),
    "journal.engine": ("files", None),
    "engine.client_properties": ("tls.properties", Path("tls.properties")),
    "trail.file": ("trail.jsonl", Path("trail.jsonl")),
    "authorizer.super_users": ("User:CN=a,O=b; User:c", ("User:CN=a,O=b", "User:c")),
    "sasl.mechanisms": ("PLAIN, SCRAM-SHA-512", ("PLAIN", "SCRAM-SHA-512")),
    "security.protocols": ("clients:ssl", (Listener("CLIENTS", SecurityProtocol.SSL),)),
    "tls.certificate": ("node.pem", Path("node.pem")),
    "tls.client_ca": ("ca.pem", Path("ca.pem")),
    "tls.inner_ca": ("ca.pem", Path("ca.pem")),
    "tls.revoked": ("revoked.pem", Path("revoked.pem")),
    "tls.key": ("key.pem", Path("key.pem")),
    "admin.hosts": ("broker.example, other", ("broker.example", "other")),
}


@pytest.mark.parametrize("name", list(KEYS))
def test_key_of_the_table_can_be_set_by_its_variable(name: str) -> None:
    """Every key of the table reaches the tree, and the text of its default is the default again."""
    row = KEYS[name]
    default = str(row.default).lower() if isinstance(row.default, bool) else str(row.default)
    text, expected = SAMPLES.get(name, (default, row.default))
    settings = load(environment={row.variable: text})
    value: object = settings
    for part in name.split("."):
        value = getattr(value, part)
    assert value == expected


def test_variables_of_the_keys_are_all_different() -> None:
    """No two keys fold into one variable."""
    assert len({row.variable for row in KEYS.values()}) == len(KEYS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[journal]\nfsnyc = 'commit'\n",
            "unknown key journal.fsnyc in the config file {file} (is journal.fsync meant?)",
        ),
        ("[nonsense]\na = 1\n", "unknown key nonsense.a in the config file {file}"),
        ("journal = 3\n", "unknown key journal in the config file {file}"),
        (
            "[journal]\nfsync = 'always'\n",
            "journal.fsync = 'always' in the config file {file}: one of commit, interval, never",
        ),
        ("node_id = '1x'\n", "node_id = '1x' in the config file {file}: a whole number from 0"),
        (
            "[journal]\nfsync_interval_ms = '100'\n",
            "journal.fsync_interval_ms = '100' in the config file {file}: a whole number of at least 1 is needed, "
            "without quotes",
        ),
        (
            "[topics]\nauto_create = 'true'\n",
            "topics.auto_create = 'true' in the config file {file}: true or false is needed, without quotes",
        ),
        ("node_id = true\n", "node_id = 'True' in the config file {file}: a whole number from 0"),
        ("node_id = 1.5\n", "node_id = '1.5' in the config file {file}: a whole number from 0"),
        ("node_id = -1\n", "node_id = '-1' in the config file {file}: a whole number from 0"),
        ("[topics]\nauto_create = 1\n", "topics.auto_create = '1' in the config file {file}: true or false"),
        ("listen = 'nowhere'\n", "listen = 'nowhere' in the config file {file}: an address is HOST:PORT"),
        ("listen = []\n", "listen = '[]' in the config file {file}: a text that is not empty is needed"),
        ("listen = 'a:1,b'\n", "listen = 'a:1,b' in the config file {file}: an address is HOST:PORT"),
        ("processes = 0\n", "processes = '0' in the config file {file}: auto, or a whole number from 1 to 64"),
        ("processes = 'all'\n", "processes = 'all' in the config file {file}: auto, or a whole number from 1 to 64"),
        ("process = 1\n", "unknown key process in the config file {file}"),
        ("listen = {a = 1}\n", "listen = \"{{'a': 1}}\" in the config file {file}: a text"),
        ("data_dir = ''\n", "data_dir = '' in the config file {file}: a text that is not empty"),
        ("a = \n", "the config file {file} is not TOML: "),
    ],
)
def test_file_with_a_mistake_is_refused_naming_key_and_file(tmp_path: Path, text: str, words: str) -> None:
    """One sentence says which key, which value, where, and what would be right."""
    file = written(tmp_path, text)
    with pytest.raises(ConfigError) as raised:
        load(environment={}, file=file)
    assert str(raised.value).startswith(words.format(file=file))
    assert "\n" not in str(raised.value)


def test_file_that_cannot_be_read_is_refused_naming_it(tmp_path: Path) -> None:
    """A config file that was named must be there."""
    with pytest.raises(ConfigError, match=r"cannot read the config file .*missing\.toml: No such file"):
        load(environment={}, file=tmp_path / "missing.toml")


def test_environment_with_an_unknown_variable_is_refused_naming_it() -> None:
    """A misspelt variable is not ignored."""
    with pytest.raises(
        ConfigError, match=r"unknown key FAIRLOG_JOURNAL_FSNYC in the environment \(is FAIRLOG_JOURNAL_FSYNC meant"
    ):
        load(environment={"FAIRLOG_JOURNAL_FSNYC": "commit"})


def test_environment_with_a_bad_value_is_refused_naming_the_variable() -> None:
    """The sentence leads to the place where the value was set."""
    with pytest.raises(
        ConfigError, match="stop_grace_ms = 'soon' in the environment variable FAIRLOG_STOP_GRACE_MS: a whole"
    ):
        load(environment={"FAIRLOG_STOP_GRACE_MS": "soon"})


def test_words_of_a_key_are_taken_in_any_case(tmp_path: Path) -> None:
    """INFO, info and Info are one word, wherever they stand; what is kept is the word of the table."""
    environment = {"FAIRLOG_LOG_LEVEL": "DEBUG", "FAIRLOG_TOPICS_AUTO_CREATE": "False"}
    file = written(tmp_path, "[journal]\nfsync = 'Never'\n")
    settings = load(flags={"admin.listen": "OFF"}, environment=environment, file=file)
    assert (settings.log.level, settings.topics.auto_create) == ("debug", False)
    assert (settings.journal.fsync, settings.admin.listen) == ("never", None)


def test_environment_with_a_bad_number_does_not_speak_of_quotes() -> None:
    """Those are TOML's."""
    with pytest.raises(ConfigError, match=r"is needed$"):
        load(environment={"FAIRLOG_NODE_ID": "one"})


def test_flag_with_a_bad_value_is_refused_naming_the_flag() -> None:
    """Flags are named as they are typed."""
    with pytest.raises(ConfigError, match="listen = '9092' in the flag --listen: an address is HOST:PORT"):
        load(environment={}, flags={"listen": "9092"})


@pytest.mark.parametrize(
    "variable",
    [
        "FAIRLOG_BOOTSTRAP",
        "FAIRLOG_FAILPOINT",
        "FAIRLOG_SERVICE_HOST",
        "FAIRLOG_SERVICE_PORT_KAFKA",
        "FAIRLOG_PORT",
        "FAIRLOG_PORT_9092_TCP_ADDR",
        "OTHER",
    ],
)
def test_environment_with_variables_that_are_no_settings_is_accepted(variable: str) -> None:
    """What other parts read, and what Kubernetes sets for a service named fairlog, is no mistake."""
    assert load(environment={variable: "tcp://10.0.0.1:9092"}) == Settings()


@pytest.mark.parametrize(
    ("environment", "words"),
    [
        ({"FAIRLOG_TRANSACTIONS_MIN_TIMEOUT_MS": "900001"}, "transactions.min_timeout_ms (900001) is above"),
        (
            {"FAIRLOG_TRANSACTIONS_TRANSACTIONAL_ID_EXPIRATION_MS": "900000"},
            "transactions.transactional_id_expiration_ms (900000) is not above",
        ),
        ({"FAIRLOG_REQUESTS_REQUEST_BYTES_MAX": "2000"}, "requests.message_bytes_max (1048588) is above"),
        ({"FAIRLOG_JOURNAL_SEGMENT_BYTES_MAX": "1048576"}, "requests.message_bytes_max (1048588) is above half of"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(environment: dict[str, str], words: str) -> None:
    """Bounds that cross would otherwise show as a strange error much later."""
    with pytest.raises(ConfigError) as raised:
        load(environment=environment)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("localhost:0", Address("localhost", 0)),
        ("[::1]:9092", Address("::1", 9092)),
        ("10.0.0.1:65535", Address("10.0.0.1", 65535)),
    ],
)
def test_address_reads_back_as_it_is_written(text: str, address: Address) -> None:
    """HOST:PORT, with brackets around IPv6."""
    assert Address.parse(text) == address
    assert str(address) == text


@pytest.mark.parametrize("text", ["", ":1", "a:", "a:b", "a:65536", "a:-1", "::1:9092", "a:²"])
def test_address_that_is_none_is_refused(text: str) -> None:
    """Nothing is guessed."""
    with pytest.raises(ValueError, match=r"HOST:PORT|port|brackets"):
        Address.parse(text)


@pytest.mark.parametrize("host", ["a..b", ".x", "x" * 64])
def test_address_whose_host_is_no_name_is_refused(host: str) -> None:
    """Others would be told of it, and could not connect."""
    with pytest.raises(ValueError, match="is no name of a host"):
        Address.parse(f"{host}:9092")


@pytest.mark.parametrize(
    ("advertised", "bound", "told"),
    [
        (None, Address("127.0.0.1", 41), Address("127.0.0.1", 41)),
        (Address("broker.example", 9092), Address("0.0.0.0", 41), Address("broker.example", 9092)),
        (Address("broker.example", 0), Address("0.0.0.0", 41), Address("broker.example", 41)),
    ],
)
def test_advertised_address_is_the_one_set_or_the_bound_one(
    advertised: Address | None, bound: Address, told: Address
) -> None:
    """Clients are told where to connect; port 0 stands for the port that was picked."""
    settings = Settings(advertised=None if advertised is None else ListenerAddresses.plain(advertised))
    assert advertised_endpoints(settings, {"PLAINTEXT": bound}) == {"PLAINTEXT": told}


@pytest.mark.parametrize("host", ["0.0.0.0", "::"])
def test_advertised_address_that_is_a_wildcard_is_refused(host: str) -> None:
    """No client can connect to "everywhere"."""
    with pytest.raises(ConfigError, match="set advertised"):
        advertised_endpoints(Settings(), {"PLAINTEXT": Address(host, 9092)})


def test_configuration_page_is_made_from_the_table() -> None:
    """docs/configuration.md is what `python -m fairlog.configuration_page` writes."""
    assert (REPOSITORY / "docs" / "configuration.md").read_text(encoding="utf-8") == page()


def test_processes_auto_is_one_for_each_core_that_may_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not for each core of the machine; and not more than one supervisor starts."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: {0, 5, 7})
    assert load(environment={"FAIRLOG_PROCESSES": "Auto"}).processes == 3
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: set(range(200)))
    assert load(environment={"FAIRLOG_PROCESSES": "auto"}).processes == 64


@pytest.mark.parametrize("listed", ["'a:1, [::1]:2'", "['a:1', '[::1]:2']"])
def test_listen_that_lists_addresses_is_read_as_the_first_and_the_others(tmp_path: Path, listed: str) -> None:
    """As one text, and as TOML's list."""
    settings = load(environment={}, file=written(tmp_path, f"listen = {listed}\nprocesses = 2\n"))
    both = (Address("a", 1), Address("::1", 2))
    assert settings.listen == ListenerAddresses((NamedAddresses("PLAINTEXT", both),))
    assert str(settings.listen) == "a:1,[::1]:2"


def test_admin_listener_is_on_loopback_unless_told_otherwise() -> None:
    """Nobody looks into a node from outside, and `off` closes it altogether."""
    assert load(environment={}).admin.listen == Address("127.0.0.1", 9644)
    assert load(environment={"FAIRLOG_ADMIN_LISTEN": "off"}).admin.listen is None
    with pytest.raises(ConfigError, match="the flag --admin: an address"):
        load(flags={"admin.listen": "9644"}, environment={})


@pytest.mark.parametrize("token", ["short", "with spaces in it, long", "umlaute-täuschen-hier", ""])
def test_admin_token_that_is_none_is_refused_and_not_shown(token: str) -> None:
    """A token that could be guessed, or not be sent, is refused; no message and no `repr` shows one."""
    with pytest.raises(ConfigError) as refused:
        load(environment={"FAIRLOG_ADMIN_TOKEN": token})
    assert not token or token not in str(refused.value)
    good = "0123456789abcdef"
    assert good not in repr(load(environment={"FAIRLOG_ADMIN_TOKEN": good}))


@pytest.mark.parametrize("names", ["a:80", "a b", "http://a", "a,,b"])
def test_admin_hosts_that_are_no_names_are_refused(names: str) -> None:
    """Names of hosts, without ports."""
    with pytest.raises(ConfigError, match=r"admin\.hosts"):
        load(environment={"FAIRLOG_ADMIN_HOSTS": names})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cluster.name": "orders"}, r"cluster\.name \(orders\) is set, and journals are in files"),
        ({"journal.engine": "kafka://k:9092"}, r"journal\.engine is set, and cluster\.name is not"),
        ({"journal.engine": "kafka:k:9092"}, "files, or kafka://HOST:PORT,… is needed"),
        ({"journal.engine": "kafka://"}, "an address is HOST:PORT"),
        ({"journal.engine": "kafka://k:9092", "cluster.name": "a b"}, "a name of letters, digits"),
        ({"journal.engine": "kafka://k:9092", "cluster.name": ".."}, "begins with a letter or digit"),
        ({"journal.engine": "kafka://k:9092", "cluster.name": "a" * 201}, "most 200 characters"),
        ({"journal.engine": "kafka://k:0", "cluster.name": "a"}, "the port of a broker is not 0"),
        ({"journal.engine": "kafka://u:p@k:1", "cluster.name": "a"}, "without user, password and path"),
        ({"journal.engine": "kafka://k:1/path", "cluster.name": "a"}, "without user, password and path"),
        ({"journal.engine": "kafka://k:1", "cluster.name": "a", "processes": 2}, "a node is one process"),
        (
            {"journal.engine": "kafka://k:1", "cluster.name": "a", "engine.replicas": 1},
            r"engine\.min_insync_replicas \(2\) is above engine\.replicas \(1\)",
        ),
    ],
)
def test_settings_of_a_cluster_that_do_not_go_together_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(flags=settings, environment={})


def test_engine_of_several_brokers_is_read() -> None:
    settings = load(flags={"journal.engine": "kafka://a:1, b:2,[::1]:3", "cluster.name": "orders"}, environment={})
    assert (settings.journal.engine, settings.cluster.name) == ("a:1,b:2,[::1]:3", "orders")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", ()),
        ("10.0.0.1:5", (("10.0.0.1", 5),)),
        ("10.0.0.1:5, [2001:DB8::1]:0,::ffff:10.0.0.2:7", (("10.0.0.1", 5), ("2001:db8::1", 0), ("10.0.0.2", 7))),
    ],
)
def test_counts_by_address_are_read(text: str, named: tuple[tuple[str, int], ...]) -> None:
    read = read_counts_by_address(text)
    assert read.named == named
    assert read_counts_by_address(str(read)) == read


@pytest.mark.parametrize(
    "text", ["5", "host.example:5", "10.0.0.1:", "10.0.0.1:-1", "10.0.0.1:5,10.0.0.1:6", "10.0.0.1:x"]
)
def test_counts_by_address_that_are_none_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"needed|twice"):
        read_counts_by_address(text)


def test_counts_by_listener_are_of_listeners_that_there_are() -> None:
    assert read_counts_by_listener("clients:5,INNER:6").named == (("CLIENTS", 5), ("INNER", 6))
    with pytest.raises(ValueError, match="twice"):
        read_counts_by_listener("A:5,a:6")
    settings = dataclasses.replace(
        Settings(), requests=RequestSettings(connections_max_by_listener=read_counts_by_listener("OTHER:5"))
    )
    with pytest.raises(ConfigError, match=r"requests\.connections_max_by_listener names the listener OTHER"):
        check_listeners(settings)
