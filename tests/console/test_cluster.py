"""The console of a node of several machines, in Chromium, over a model of what its nodes say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest
from selenium.webdriver.common.by import By

from fairlog.cluster_node.status import CopyStatus, ShardStatus
from tests.cluster_admin import WELL, ClusterAdmin, cluster_status, shard_status
from tests.console.conftest import Console, until
from tests.console.test_console import CONTRAST, XSS

pytestmark = pytest.mark.slow


@pytest.fixture
def admin() -> Iterator[ClusterAdmin]:
    admin = ClusterAdmin()
    with admin.served():
        yield admin


@pytest.fixture
def console(admin: ClusterAdmin, new_console: Callable[[str], Console]) -> Console:
    return new_console(f"http://{admin.address}/")


def lines(console: Console, rows: str) -> list[list[str]]:
    """A table, cell by cell."""
    return [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, ":scope > span")]
        for row in console.all(f"{rows} .line")
    ]


def figures(console: Console) -> dict[str, str]:
    return {each.get_attribute("data-figure") or "": each.text.splitlines()[0] for each in console.all(".figures li")}


def alarming(console: Console) -> list[str]:
    return [each.get_attribute("data-figure") or "" for each in console.all(".figures .alarming")]


def test_page_shows_nodes_shards_copies_and_the_engine(admin: ClusterAdmin, console: Console) -> None:
    """And again what has changed."""
    console.open()
    assert console.text("#health") == "serving"
    assert [console.text(f"#{name}") for name in ("cluster-name", "node-id")] == ["orders", "1"]
    assert console.text("#node-roles") == "shard 0 (owner), shard 1 (replica), shard 2 (replica)"
    assert figures(console) == {
        "nodes": "3 of 3", "owned": "3 of 3", "in-sync": "9 of 9", "lag": "30", "changes": "3",
    }  # fmt: skip
    assert alarming(console) == []
    assert lines(console, "#shards-rows") == [
        ["0", "node 1", "1", "3 of 3", "30", "–"],
        ["1", "node 2", "2", "3 of 3", "30", "–"],
        ["2", "node 3", "3", "3 of 3", "20", "–"],
    ]
    assert lines(console, "#nodes-rows")[1] == ["2", "host-2.example", "rack-2", "up", "1", "0, 2"]
    assert lines(console, "#engine") == [["answers", "1 m 30 s", "1,234", "4.8 MiB", "1"]]

    console.all("#shards-rows .fold")[1].click()
    cells = [cell.text for cell in console.all("#shards-rows td")]
    assert cells[:10] == ["node 1", "replica", "yes", "10", "0 s ago", "node 2", "owner", "yes", "0", "0 s ago"]
    joining = CopyStatus(3, "joining", False, None, None)
    admin.change_shard(ShardStatus(1, 2, 2, 3, [*shard_status(1, 2).copies[:2], joining]))
    until(lambda: [cell.text for cell in console.all("#shards-rows td")][10:] == ["node 3", "joining", "no", "–", "–"])
    assert lines(console, "#shards-rows")[1] == ["1", "node 2", "2", "2 of 3", "10", "node 3"]
    assert alarming(console) == ["in-sync"]


def test_failover_is_told(admin: ClusterAdmin, console: Console) -> None:
    """A node is not heard any more, its shard has no owner for a while, and then another one."""
    console.open()
    until(lambda: console.text("[data-figure=owned] b") == "3 of 3")
    assert admin.status is not None
    nodes = [replace(node, is_up=node.number != 3) for node in admin.status.nodes]
    admin.status = replace(admin.status, nodes=nodes)
    admin.change_shard(shard_status(2, 1, epoch=4))
    until(lambda: console.text("#done") == "Shard 2 went from node 3 to node 1.")
    assert console.text("#said") == console.text("#done")
    assert (figures(console)["nodes"], figures(console)["changes"]) == ("2 of 3", "4")
    assert alarming(console) == ["nodes"]
    assert lines(console, "#nodes-rows")[2][3:] == ["not heard", "–", "0, 1, 2"]
    admin.change_shard(shard_status(2, None, epoch=4))
    until(lambda: alarming(console) == ["nodes", "owned"])
    assert lines(console, "#shards-rows")[2][1] == "none"


def test_engine_that_is_away_is_said_with_the_reason(admin: ClusterAdmin, console: Console) -> None:
    console.open()
    assert not console.shown("#trouble")
    admin.status = replace(cluster_status(), engine=replace(WELL, answers=False, since_s=3, said="3 of 3 are down"))
    until(lambda: console.shown("#trouble"))
    assert console.text("#trouble") == "The engine does not answer: 3 of 3 are down"
    assert lines(console, "#engine")[0][:2] == ["away", "3 s"]
    console.run(
        "window.changes = 0; new MutationObserver(all => { window.changes += all.length; })"
        ".observe(document.getElementById('trouble'), {attributes: true, childList: true, subtree: true})"
    )
    admin.status = replace(admin.status, engine=replace(admin.status.engine, since_s=4))
    until(lambda: lines(console, "#engine")[0][1] == "4 s")
    assert console.run("return window.changes") == 0, "a screen reader would read it out again and again"
    admin.status = cluster_status()
    until(lambda: not console.shown("#trouble"))


def test_node_that_knows_no_cluster_yet_says_so_and_shows_it_later(admin: ClusterAdmin, console: Console) -> None:
    admin.status = None
    console.open()
    until(lambda: console.text("#health") == "starting")
    assert console.text("#trouble") == "Starting: the node waits for the engine."
    admin.status = cluster_status()
    until(lambda: console.text("#health") == "serving")
    assert not console.shown("#trouble")
    assert len(lines(console, "#shards-rows")) == 3


def test_names_are_text_whatever_stands_in_them(admin: ClusterAdmin, console: Console) -> None:
    status = cluster_status()
    nodes = [replace(status.nodes[0], number=number, address=text, rack=text) for number, text in enumerate(XSS)]
    admin.status = replace(status, nodes=nodes, name=XSS[0])
    console.open()
    until(lambda: len(lines(console, "#nodes-rows")) == len(XSS))
    assert (
        console.run("return [...document.querySelectorAll('#nodes-rows .line')].map(r => r.children[1].textContent)")
        == XSS
    )
    assert console.driver.title == "Cluster · Fairlog"


@pytest.mark.parametrize("dark", [False, True])
def test_text_has_contrast_in_both_schemes(admin: ClusterAdmin, console: Console, dark: bool) -> None:
    status = cluster_status()
    nodes = [replace(node, is_up=node.number != 2) for node in status.nodes]
    admin.status = replace(status, nodes=nodes, engine=replace(WELL, answers=False, said="gone"))
    console.look(dark=dark)
    console.open()
    until(lambda: alarming(console) == ["nodes"])
    console.find(".legend summary").click()
    console.all("#shards-rows .fold")[0].click()
    found, ground = console.run(CONTRAST)
    assert found == []
    assert (sum(map(int, ground[4:-1].split(","))) < 200) == dark


def test_page_fits_a_phone(console: Console) -> None:
    """Nothing is wider than the screen; each cell says what it is."""
    console.look(width=360, height=740)
    console.open()
    until(lambda: len(lines(console, "#shards-rows")) == 3)
    assert console.run("return document.documentElement.scrollWidth") <= 360
    label = console.run(
        "return getComputedStyle(document.querySelector('#shards-rows [data-label=owner]'), '::before').content"
    )
    assert label == '"owner"'
