"""The console of a listener that asks who its callers are, used as a person would."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Callable

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from fairlog.admin_http.users import change_document
from scripts.node_process import NodeProcess
from tests.console.conftest import TOKEN, WAIT_S, Clients, Console, until
from tests.security.signing_in import credentials_of

pytestmark = pytest.mark.slow


def change_user(node: NodeProcess, action: str, name: str) -> None:
    """As the node's own user does."""
    credentials = credentials_of(f"secret of {name}") if action == "add" else {}
    headers = {"content-type": "application/json", "authorization": f"Bearer {TOKEN}"}
    body = json.dumps(change_document(action, name, credentials)).encode()
    with urllib.request.urlopen(urllib.request.Request(f"{node.console}api/users/change", body, headers)):
        pass


def sign_in(console: Console, name: str, password: str) -> None:
    """With the keyboard; the focus is where the user's name belongs."""
    until(lambda: console.shown("#sign-in"))
    assert console.driver.switch_to.active_element == console.find("#sign-in-user")
    console.press(name, Keys.TAB)
    console.press(password, Keys.ENTER)


def test_users_sign_in_see_and_do_what_they_may(
    new_node: Callable[..., NodeProcess], new_console: Callable[[NodeProcess], Console]
) -> None:
    """One who may see finds the hung transaction and no button; one who may operate ends it, without a token."""
    node = new_node(
        FAIRLOG_ADMIN_PROTOCOL="SASL_PLAINTEXT",
        FAIRLOG_SASL_SECRETS_WITHOUT_TLS="true",
        FAIRLOG_AUTHORIZER_ENABLE="true",
        FAIRLOG_AUTHORIZER_SUPER_USERS="User:alice;User:ANONYMOUS",
    )
    for name in ("alice", "bob", "carol"):
        change_user(node, "add", name)
    may_see = AclBinding(
        ResourceType.BROKER,
        "kafka-cluster",
        ResourcePatternType.LITERAL,
        "User:bob",
        "*",
        AclOperation.DESCRIBE,
        AclPermissionType.ALLOW,
    )
    admin = AdminClient({"bootstrap.servers": node.address})
    for future in admin.create_acls([may_see]).values():
        future.result(WAIT_S)
    clients = Clients(node.address)
    clients.make_topic("orders", 1)
    hanging = clients.hang("billing-7", "orders", ["x"])
    console = new_console(node).open()

    assert until(lambda: console.text("#health") == "serving")
    sign_in(console, "bob", "a guess")
    until(lambda: "the user or the password is wrong" in console.text("#sign-in"))
    assert not console.shown("#main")
    console.press("secret of bob", Keys.ENTER)  # what was wrong has the focus
    card = until(lambda: console.card("billing-7", "#hung-list"))
    assert "bob" in console.text("#who")
    assert not console.shown("#sign-in")
    assert not card.find_element(By.TAG_NAME, "button").is_displayed()

    console.find("#who button").click()
    sign_in(console, "carol", "secret of carol")
    until(lambda: "carol may not see this node" in console.text("#denied"))
    assert not console.shown("#main")

    console.find("#who button").click()
    sign_in(console, "alice", "secret of alice")
    card = until(lambda: console.card("billing-7", "#hung-list"))
    card.find_element(By.TAG_NAME, "button").click()
    assert not console.shown("#abort-token")
    console.find("#abort-ask [type=submit]").click()
    console.find("#abort-sure [type=submit]").click()
    until(lambda: "is aborted" in console.text("#done"))

    change_user(node, "delete", "alice")
    until(lambda: "The session has ended." in console.text("#sign-in"))
    assert not console.shown("#main")
    del hanging
