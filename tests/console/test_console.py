"""The console, used as a person would: in Chromium, over a real node, with stock clients."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

import pytest
from confluent_kafka import Producer
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from pyspark_fairlog.native import Native
from scripts.node_process import NodeProcess
from tests.console.conftest import TOKEN, Clients, Console, Tail, until

pytestmark = pytest.mark.slow

CONTRAST = """
    const channel = (of255) => of255 / 255 <= .04045 ? of255 / 3294.6 : ((of255 / 255 + .055) / 1.055) ** 2.4;
    const light = ([r, g, b]) => .2126 * channel(r) + .7152 * channel(g) + .0722 * channel(b);
    const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
    function ground(node) {
      for (; node; node = node.parentElement) {
        const colour = parts(getComputedStyle(node).backgroundColor);
        if (colour.length < 4 || colour[3] === 1) return colour;
      }
      return [255, 255, 255];
    }
    const found = [];
    for (const node of document.body.querySelectorAll("*")) {
      const text = [...node.childNodes].filter((each) => each.nodeType === 3).map((each) => each.data.trim()).join("");
      if (!text || !node.checkVisibility() || node.closest(".skip")) continue;
      const [a, b] = [light(parts(getComputedStyle(node).color)), light(ground(node))];
      const ratio = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
      if (ratio < 4.5) found.push(`${text.slice(0, 30)}: ${ratio.toFixed(2)}`);
    }
    return [found, getComputedStyle(document.body).backgroundColor];
"""
"""Texts with too little contrast (WCAG 2.2, 1.4.3), and the page's ground."""

XSS = [
    "<img src=x onerror=document.title='owned'>",
    "<script>document.title='owned'</script>",
    "\"'><svg/onload=document.title='owned'>",
    "javascript:document.title='owned'",
    "{{7*7}}${7*7}",
    "\u202eevil\u0000\u200b",
]


def hung(console: Console, transactional_id: str) -> bool:
    return console.card(transactional_id, "#hung-list") is not None


def abort(console: Console, transactional_id: str) -> None:
    card = console.card(transactional_id, "#hung-list")
    assert card is not None
    card.find_element(By.TAG_NAME, "button").click()
    console.find("#abort-token").send_keys(TOKEN)
    console.find("#abort-ask [type=submit]").click()
    console.find("#abort-sure [type=submit]").click()


def test_hung_transaction_is_found_on_top_and_aborted_while_readers_notice_nothing(
    node: NodeProcess, clients: Clients, console: Console
) -> None:
    """The whole task: find it, be asked twice, name the token, see it end; the consumer's view stays as it was."""
    clients.make_topic("orders", 2)
    with closing(Tail(node.address, "orders", 2)) as tail:
        good = clients.producer("checkout-1")
        clients.commit(good, "orders", ["a", "b"], 2)
        hanging = clients.hang("billing-7", "orders", ["x", "y", "z"], 2)
        console.open()
        until(lambda: hung(console, "billing-7"))
        clients.commit(good, "orders", ["c"])
        until(lambda: sorted(tail.seen) == ["a", "b", "c"])

        first = console.all("#view-transactions .card")[0]
        assert first.find_element(By.CSS_SELECTOR, ".id").text == "billing-7"
        assert "3 records in 2 partitions" in first.text
        assert [chip.text.split() for chip in first.find_elements(By.CSS_SELECTOR, ".chips li")] == [
            ["orders/0", "2"], ["orders/1", "1"],
        ]  # fmt: skip
        assert console.text("[data-figure=hung] b") == "1"

        first.find_element(By.TAG_NAME, "button").click()
        assert console.shown("#abort-ask")
        assert "billing-7" in console.text("#abort-ask")
        console.find("#abort-token").send_keys("not the token")
        console.find("#abort-ask [type=submit]").click()
        assert "Are you sure?" in console.text("#abort-sure")
        console.find("#abort-sure [type=submit]").click()
        until(lambda: "not the node's admin token" in console.text("#abort-trouble"))
        assert hung(console, "billing-7")

        console.find("#abort-token").send_keys(TOKEN)
        console.find("#abort-ask [type=submit]").click()
        assert "3 records in 2 partitions of billing-7 will be thrown away" in console.text("#abort-sure")
        console.find("#abort-sure [type=submit]").click()
        until(lambda: console.shown("#done"))
        assert not console.shown("#abort")
        assert console.text("#done").startswith("The transaction of billing-7 is aborted")
        until(lambda: not hung(console, "billing-7"))
        ended = until(lambda: console.card("billing-7", "#ended-list"))
        assert "aborted" in ended.text
        assert "by an operator" in ended.text

        with pytest.raises(Exception, match=r"(?i)fenced|epoch"):
            hanging.commit_transaction(10)
        clients.commit(good, "orders", ["d"])
        until(lambda: sorted(tail.seen) == ["a", "b", "c", "d"])


def test_console_is_worked_with_the_keyboard_alone(clients: Clients, console: Console) -> None:
    """Tab comes everywhere and out again, the focus is seen, Escape leaves, and the safe answer has the focus."""
    clients.make_topic("orders", 1)
    clients.hang("billing-7", "orders", ["x"])
    console.open()
    until(lambda: hung(console, "billing-7"))
    name = "Abort the transaction of billing-7 …"

    # All the way round and out of the page again: no trap.
    seen: list[str] = []
    for _ in range(40):
        focused = console.press(Keys.TAB)
        if focused.tag_name == "body":
            break
        outline = console.run("return getComputedStyle(arguments[0]).outlineStyle", focused)
        assert outline == "solid", f"the focus on {focused.accessible_name!r} is not seen"
        seen.append(focused.accessible_name)
    else:
        raise AssertionError(f"Tab does not leave the page: {seen}")
    assert [*seen[:4]] == ["Skip to content", "Transactions", "Topics", "Groups"]
    assert name in seen
    assert seen.index(name) < seen.index("Where are the records of a transactional id?")

    button = console.tab_to(name)
    assert console.press(Keys.ENTER).get_attribute("id") == "abort-token"
    assert console.press(Keys.ESCAPE) == button
    assert not console.shown("#abort")

    console.press(Keys.ENTER)
    console.press(Keys.ENTER)
    assert "token is needed" in console.text("#abort-trouble")
    console.press(TOKEN)
    assert console.press(Keys.ENTER).text == "No, go back"
    assert console.press(Keys.ENTER).text == "Cancel"
    console.tab_to("Abort …")
    assert console.press(Keys.ENTER).text == "No, go back"
    assert console.press(Keys.TAB).text == "Yes, abort it"
    console.press(Keys.ENTER)
    until(lambda: console.card("billing-7", "#ended-list"))
    until(lambda: not hung(console, "billing-7"))
    # The button is gone with its card: the focus is at the content, and not lost.
    assert console.driver.switch_to.active_element.get_attribute("id") == "main"


def test_page_skips_to_its_content_and_keeps_the_view(console: Console) -> None:
    """The first Tab offers it."""
    console.open("topics")
    assert console.press(Keys.TAB).accessible_name == "Skip to content"
    console.press(Keys.ENTER)
    until(lambda: console.driver.switch_to.active_element.get_attribute("id") == "main")
    assert console.shown("#view-topics")


def test_text_has_contrast_in_both_schemes(clients: Clients, console: Console) -> None:
    """4.5 to 1 at least (WCAG AA) for all texts, figures, badges and buttons."""
    clients.make_topic("orders", 1)
    clients.commit(clients.producer("checkout-1"), "orders", ["a"])
    clients.hang("billing-7", "orders", ["x"])
    console.open()
    until(lambda: hung(console, "billing-7"))
    until(lambda: console.card("checkout-1", "#ended-list"))
    for dark in (False, True):
        console.look(dark=dark)
        low, ground = console.run(CONTRAST)
        assert low == []
        assert (sum(map(int, ground.strip("rgb()").split(","))) < 200) == dark


def test_console_fits_a_phone(clients: Clients, console: Console) -> None:
    """Nothing is cut off or needs scrolling sideways, in any view; what is pressed is as large as a thumb."""
    topic = "a-topic-with-quite-a-long-name-of-more-than-sixty-characters.v2"
    clients.make_topic(topic, 3)
    clients.commit(clients.producer("checkout-1"), topic, ["a"])
    clients.hang("an-id-without-a-single-space-" * 8, topic, ["x"])
    for width in (360, 768):
        console.look(width=width, height=740)
        console.open()
        until(lambda: console.all("#hung-list .card"))
        until(lambda: console.card("checkout-1", "#ended-list"))
        console.find("#ended-list summary").click()
        for view in ("transactions", "topics", "groups"):
            console.find(f"[data-view={view}]").click()
            until(lambda view=view: console.shown(f"#view-{view}"))
            if view == "topics":
                until(lambda: console.all("#topics-rows .fold"))[0].click()
            overflow = console.run("return document.scrollingElement.scrollWidth - innerWidth")
            assert overflow <= 0, f"{view} is {overflow} pixels too wide"
        console.find("[data-view=transactions]").click()
        until(lambda: console.shown("#view-transactions"))
        button = console.find("#hung-list button")
        assert width > 700 or button.size["height"] >= 44
        button.click()
        box = console.find("#abort").rect
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
        console.press(Keys.ESCAPE)


def test_transactional_id_is_text_whatever_stands_in_it(clients: Clients, console: Console) -> None:
    """Client input: no element, no script, no title of its own making, in any list, dialog or message."""
    clients.make_topic("orders", 1)
    for text in XSS:
        clients.commit(clients.producer(text.replace("\0", "")), "orders", ["a"])
    worst = XSS[0]
    clients.hang(worst, "orders", ["x"])
    console.open()
    until(lambda: hung(console, worst))
    for text in XSS:
        assert until(lambda text=text: console.run(
            "return [...document.querySelectorAll('#ended-list .id')].some((it) => it.textContent === arguments[0])",
            text.replace("\0", ""),
        ))  # fmt: skip
    console.find("#find-id").send_keys(worst, Keys.ENTER)
    until(lambda: worst in console.text("#found"))
    abort(console, worst)
    until(lambda: console.shown("#done"))
    assert worst in console.text("#done")
    assert console.driver.title == "Transactions · Fairlog"
    assert console.run("return document.querySelectorAll('main img, main svg, main script, dialog img').length") == 0


def test_committed_transaction_shows_where_its_records_are(clients: Clients, console: Console) -> None:
    """Folded out, the list is held, so that it does not move under the eyes; by its id it is found again."""
    clients.make_topic("orders", 2)
    producer = clients.producer("checkout-1")
    clients.commit(producer, "orders", ["a", "b", "c"], 2)
    console.open()
    card = until(lambda: console.card("checkout-1", "#ended-list"))
    steps = [step.text.split("\n")[0] for step in card.find_elements(By.CSS_SELECTOR, ".track li")]
    assert steps == ["BEGIN", "PREPARE_COMMIT", "decided", "copied", "COMMITTED"]
    card.find_element(By.TAG_NAME, "summary").click()
    places = [place.text.split("\n") for place in card.find_elements(By.CSS_SELECTOR, ".places li")]
    assert places == [["orders/0", "offsets 0 – 1", "2 records"], ["orders/1", "offset 0", "1 record"]]

    at = card.rect
    for _ in range(3):
        clients.commit(producer, "orders", ["d"])
    until(lambda: console.text("#held") == "held while you look; 3 newer")
    assert card.rect == at
    card.find_element(By.TAG_NAME, "summary").click()
    console.find("#ended-list h3").click()
    console.run("document.activeElement.blur()")
    until(lambda: len(console.all("#ended-list .card")) == 4)

    console.find("#find-id").send_keys("checkout-1", Keys.ENTER)
    until(lambda: "transaction" in console.text("#found"))
    assert "offset 4" in console.text("#found .committed > li")
    console.find("#find-id").clear()
    console.find("#find-id").send_keys("nobody", Keys.ENTER)
    until(lambda: console.text("#found") == "there is no such transactional id")


def test_live_transactions_do_not_jump(clients: Clients, console: Console) -> None:
    """Times run on, and nothing else moves."""
    clients.make_topic("orders", 1)
    clients.hang("billing-7", "orders", ["x"], timeout_ms=600_000)
    clients.hang("billing-8", "orders", ["x"], timeout_ms=600_000)
    console.open()
    until(lambda: console.card("billing-8"))
    console.run(
        """
        window.shifts = 0;
        new PerformanceObserver((list) => { for (const each of list.getEntries()) window.shifts += each.value; })
          .observe({ type: "layout-shift" });
        """
    )
    card = console.card("billing-7")
    assert card is not None
    before, took = card.rect, card.find_element(By.CSS_SELECTOR, ".took").text
    until(lambda: card.find_element(By.CSS_SELECTOR, ".took").text not in (took, ""))
    seconds = int(card.find_element(By.CSS_SELECTOR, ".took").text.split()[0])
    until(lambda: int(card.find_element(By.CSS_SELECTOR, ".took").text.split()[0]) >= seconds + 2)
    assert card.rect == before
    assert console.run("return window.shifts") == 0


def test_node_that_is_gone_is_said_and_found_again(
    new_node: Callable[..., NodeProcess], new_console: Callable[[NodeProcess], Console]
) -> None:
    """What was seen last stays, marked as old; nobody has to reload the page."""
    with socket.socket() as held:  # bound and not listening, so that nobody else is given the port meanwhile
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(("127.0.0.1", 0))
        port = held.getsockname()[1]
        node = new_node(FAIRLOG_ADMIN_LISTEN=f"127.0.0.1:{port}")
        Clients(node.address).make_topic("orders", 1)
        console = new_console(node).open("topics")
        until(lambda: "orders" in console.text("#topics-rows"))
        node.kill()
        until(lambda: console.text("#health") == "no connection")
        assert console.text("#trouble").startswith("The node does not answer. What is shown is of ")
        assert "orders" in console.text("#topics-rows")
        assert console.find("#trouble").get_attribute("role") == "alert"
        node.start()
        until(lambda: console.text("#health") == "serving")
        assert not console.shown("#trouble")
        console.run("window.stayed = true")
        until(lambda: console.text("#node-uptime") not in ("", "–"))


def test_node_that_refuses_writes_is_said_with_the_reason(
    new_node: Callable[..., NodeProcess], new_console: Callable[[NodeProcess], Console]
) -> None:
    """The one thing that an operator must not miss."""
    node = new_node(FAIRLOG_FAILPOINT="journal.flush.before:fail:4")
    console = new_console(node).open()
    clients = Clients(node.address)
    clients.make_topic("orders", 1)
    plain = Producer({"bootstrap.servers": node.address, "message.timeout.ms": 1000, "linger.ms": 0, "log_level": 0})

    def is_refusing() -> bool:
        plain.produce("orders", b"a")
        plain.flush(0.2)
        return console.text("#health") == "refusing writes"

    until(is_refusing)
    assert console.text("#trouble").startswith("Writes are refused: ")


def test_new_node_says_that_there_is_nothing_yet(console: Console) -> None:
    """Every list has a sentence for when it is empty."""
    console.open()
    until(lambda: "No transaction has been open" in console.text("#live-list"))
    assert "No transaction has ended" in console.text("#ended-list")
    assert not console.shown("#hung-list")
    console.find("[data-view=topics]").click()
    until(lambda: "There are no topics yet" in console.text("#view-topics"))
    console.find("[data-view=groups]").click()
    until(lambda: "No consumer group" in console.text("#view-groups"))
    assert console.driver.title == "Groups · Fairlog"


def test_topics_are_searched_and_folded_out(clients: Clients, console: Console) -> None:
    """Partitions with their ends; the search narrows the list as it is typed."""
    clients.make_topic("orders", 2)
    clients.make_topic("payments", 1)
    clients.commit(clients.producer("t"), "orders", ["a", "b", "c"], 2)
    console.open("topics")
    until(lambda: len(console.all("#topics-rows .line")) == 2)
    until(lambda: console.all("#topics-rows .line")[0].text.split("\n")[:3] == ["orders", "2", "3"])
    fold = console.find("#topics-rows .fold")
    fold.click()
    assert fold.get_attribute("aria-expanded") == "true"
    assert console.all("#topics-rows .line")[0].text.split("\n")[-1] == "journal"
    rows = [row.text.split()[:5] for row in console.all("#topics-rows .details tbody tr")]
    assert rows == [["0", "0", "2", "2", "0"], ["1", "0", "1", "1", "0"]]
    console.find("#topics-contains").send_keys("pay")
    until(lambda: [line.text.split("\n")[0] for line in console.all("#topics-rows .line")] == ["payments"])
    assert console.text("#topics-total") == "1 of 1"
    console.find("#topics-contains").send_keys("x")
    until(lambda: "No topic has this in its name" in console.text("#view-topics"))


def test_group_shows_its_members_and_how_far_it_is_behind(clients: Clients, console: Console) -> None:
    """A real consumer has committed two of three records, and leaves: the group is empty, and as far behind."""
    clients.make_topic("orders", 1)
    clients.commit(clients.producer("t"), "orders", ["a", "b", "c"])
    console.open("groups")
    with clients.member("readers", "orders", records=2):
        until(lambda: _line(console) == ["readers", "Stable", "1", "1"])
        console.find("#groups-rows .fold").click()
        until(lambda: console.text("#groups-rows .details tbody").split()[-3:] == ["2", "3", "1"])
    until(lambda: _line(console) == ["readers", "Empty", "0", "1"])


def test_sink_shows_its_last_batch_and_what_is_being_written(
    node: NodeProcess, clients: Clients, console: Console
) -> None:
    """A batch of two lanes is one line; the next one's lanes are counted while they are open."""
    clients.make_topic("totals", 2)
    of = {"sink": "daily totals", "query": "query-1", "run": "run-1"}
    with Native.connect(node.address) as native:
        winners = []
        for task in (0, 1):
            name = native.join(**of, batch=7, partition=task, attempt=0)
            assert name is not None
            producer = clients.producer(name)
            producer.begin_transaction()
            clients.write(producer, "totals", ["a", "b"], 2)
            winners.append((task, 0, 2))
        native.commit(**of, batch=7, winners=winners)
        console.open("sinks")
        until(lambda: _sink_line(console)[:4] == ["daily totals", "7", "4", "–"])
        for attempt in (0, 1):
            native.join(**of, batch=8, partition=0, attempt=attempt)
    until(lambda: _sink_line(console)[3].startswith("2 lanes, for "))
    console.find("#sinks-rows .fold").click()
    details = until(lambda: console.text("#sinks-rows .details"))
    assert "query-1" in details
    assert "run-1" in details
    assert "totals/1" in details
    assert "offsets 0 – 1" in details


def _sink_line(console: Console) -> list[str]:
    return [cell.text for cell in console.all("#sinks-rows [role=cell]")] or [""] * 4


def _line(console: Console) -> list[str]:
    """What stands in the line of the first group."""
    lines = console.all("#groups-rows .line")
    return lines[0].text.split("\n")[:4] if lines else []


def test_page_that_nobody_looks_at_asks_nothing(console: Console) -> None:
    """A console left open in another tab costs the node nothing."""
    console.open()
    driver = console.driver
    count = "return performance.getEntriesByType('resource').filter((each) => each.name.includes('/api/')).length"
    until(lambda: console.run(count) >= 2)
    ours = driver.current_window_handle
    driver.switch_to.new_window("tab")
    try:
        driver.switch_to.window(ours)
        console.run("Object.defineProperty(document, 'hidden', {configurable: true, get: () => true});"
                    "document.dispatchEvent(new Event('visibilitychange'))")  # fmt: skip
        until(lambda: console.run("return document.hidden"))
        # What it had asked before may be answered late; then there is nothing more. It would ask in each second.
        later = "await new Promise((done) => setTimeout(done, 1500));" + count
        until(lambda: console.run(count) == console.run(later))
    finally:
        for handle in driver.window_handles:
            if handle != ours:
                driver.switch_to.window(handle)
                driver.close()
        driver.switch_to.window(ours)
