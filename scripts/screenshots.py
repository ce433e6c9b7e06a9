"""Take the screenshots for docs/console.md: `python3 scripts/screenshots.py`.

It starts a node, stock clients that produce the content, and Debian's Chromium (scripts/browser.py), which shows it.
The pictures show what a user sees; only the times of day differ from one run to the next. They are stored in 128
colours, which is enough for a page of text.
"""

from __future__ import annotations

import base64
import struct
import sys
import tempfile
import threading
import time
import zlib
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import environment

if TYPE_CHECKING:
    from confluent_kafka import Producer
    from selenium.webdriver import Chrome

IMAGES = environment.ROOT / "docs" / "images"
TOKEN = "the-token-of-the-pictures"
WAIT_S = 20
DESK = (1100, 860)
PHONE = (390, 760)


def main() -> int:
    environment.enter("test")
    # Inside .venv from here on.
    from node_process import NodeProcess

    with tempfile.TemporaryDirectory() as directory:
        admin = {"FAIRLOG_ADMIN_LISTEN": "127.0.0.1:0", "FAIRLOG_ADMIN_TOKEN": TOKEN}
        node = NodeProcess(Path(directory) / "data", admin)
        node.start()
        try:
            with scene(node.address):
                assert node.console is not None, "it was asked for"
                take_pictures(node.console, Path(directory))
        finally:
            node.stop()
    return 0


# --- what there is to be seen ----------------------------------------------------------------------


@contextmanager
def scene(address: str) -> Generator[None]:
    """Committed, aborted and hung transactions; during the block one that stays open, and some that commit."""
    from confluent_kafka import Consumer, Producer, TopicPartition
    from confluent_kafka.admin import AdminClient, NewTopic  # pyright: ignore[reportPrivateImportUsage]

    topics = [NewTopic("orders", 4, 1), NewTopic("payments", 2, 1), NewTopic("shipments", 1, 1)]
    admin = AdminClient({"bootstrap.servers": address})
    for future in admin.create_topics(topics).values():
        future.result(WAIT_S)

    def producer(transactional_id: str, timeout_ms: int = 60_000) -> Producer:
        settings = {"bootstrap.servers": address, "transactional.id": transactional_id, "log_level": 0}
        made = Producer({**settings, "transaction.timeout.ms": timeout_ms, "linger.ms": 0})
        made.init_transactions(WAIT_S)
        made.begin_transaction()
        return made

    def write(to: Producer, orders: int, payments: int) -> None:
        for number in range(orders):
            to.produce("orders", f"order {number}".ljust(300), partition=number % 4)
        for number in range(payments):
            to.produce("payments", f"payment {number}".ljust(200), partition=number % 2)
        to.flush(WAIT_S)

    ledger = producer("ledger-eu-3", 120_000)
    write(ledger, 480, 96)
    checkout = [producer(f"checkout-{number}") for number in range(3)]
    for turn in range(4):
        for each in checkout:
            if turn:
                each.begin_transaction()
            write(each, 40, 20)
            each.commit_transaction(WAIT_S)
    returns = producer("returns-1")
    write(returns, 3, 0)
    returns.abort_transaction(WAIT_S)
    loader = producer("nightly-import-7", 900_000)
    write(loader, 0, 10)
    reader = Consumer({"bootstrap.servers": address, "group.id": "reporting", "enable.auto.commit": False})
    reader.assign([TopicPartition("orders", partition, 0) for partition in range(4)])
    reader.consume(100, WAIT_S)
    reader.close()
    ending = threading.Event()

    def go_on() -> None:
        while not ending.wait(0.3):
            write(loader, 0, 1)
            checkout[0].begin_transaction()
            write(checkout[0], 40, 20)
            checkout[0].commit_transaction(WAIT_S)

    going_on = threading.Thread(target=go_on)
    going_on.start()
    try:
        yield
    finally:
        ending.set()
        going_on.join()
        del ledger  # until here it hangs


# --- looking at it ---------------------------------------------------------------------------------


def take_pictures(url: str, directory: Path) -> None:
    import browser
    from selenium.webdriver import Chrome, ChromeOptions
    from selenium.webdriver.chrome.service import Service

    found = browser.find() or sys.exit(browser.MISSING)
    options = ChromeOptions()
    options.binary_location = found.browser
    for flag in (*browser.FLAGS, f"--user-data-dir={directory / 'browser'}"):
        options.add_argument(flag)
    driver = Chrome(options, Service(found.driver))
    try:
        look(driver, DESK)
        driver.get(url)
        until(driver, "document.querySelector('#hung-list .card')")
        save(driver, "console-transactions.png")

        driver.execute_script("document.querySelector('#hung-list button').click()")
        driver.execute_script(f"document.getElementById('abort-token').value = '{TOKEN}'")
        driver.execute_script("document.querySelector('#abort-ask [type=submit]').click()")
        until(driver, "!document.getElementById('abort-sure').hidden")
        save(driver, "console-abort.png")
        driver.execute_script("document.getElementById('abort').close()")

        look(driver, DESK, dark=True)
        driver.execute_script("document.querySelector('[data-kind=committed] details').open = true")
        driver.execute_script("document.getElementById('find').scrollIntoView()")
        save(driver, "console-ended-dark.png")

        look(driver, DESK)
        driver.get(f"{url}#topics")
        until(driver, "document.querySelector('#topics-rows .fold')")
        time.sleep(2)  # a rate takes two looks
        driver.execute_script("document.querySelector('#topics-rows .fold').click()")
        save(driver, "console-topics.png")

        look(driver, PHONE)
        driver.get("about:blank")
        driver.get(url)
        until(driver, "document.querySelector('#hung-list .card')")
        save(driver, "console-phone.png")
    finally:
        driver.quit()


def look(driver: Chrome, size: tuple[int, int], *, dark: bool = False) -> None:
    width, height = size
    metrics = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": [scheme]})


def until(driver: Chrome, condition: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not driver.execute_script(f"return Boolean({condition})"):
        assert time.monotonic() < deadline, f"never: {condition}"
        time.sleep(0.1)


def save(driver: Chrome, name: str) -> None:
    time.sleep(0.5)  # for what fades in
    picture: dict[str, Any] = driver.execute_cdp_cmd("Page.captureScreenshot", {"format": "png"})
    small = in_few_colours(base64.b64decode(picture["data"]))
    (IMAGES / name).write_bytes(small)
    print(f"{name:<28} {len(small) // 1024:>4} KiB", flush=True)


# --- smaller files ---------------------------------------------------------------------------------

COLOURS = 128


def in_few_colours(png: bytes) -> bytes:
    """The same picture with a palette of its most frequent colours; each other pixel gets the nearest of them."""
    width, height, rows = pixels_of(png)
    counted = Counter(pixel for row in rows for pixel in row)
    palette = [colour for colour, _ in counted.most_common(COLOURS)]
    index = {
        colour: min(
            range(len(palette)), key=lambda at: sum((a - b) ** 2 for a, b in zip(colour, palette[at], strict=True))
        )
        for colour in counted
    }
    data = b"".join(b"\0" + bytes(index[pixel] for pixel in row) for row in rows)
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        (
            chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 3, 0, 0, 0)),
            chunk(b"PLTE", b"".join(bytes(colour) for colour in palette)),
            chunk(b"IDAT", zlib.compress(data, 9)),
            chunk(b"IEND", b""),
        )
    )


def chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def pixels_of(png: bytes) -> tuple[int, int, list[list[tuple[int, int, int]]]]:
    """Width, height and rows of a PNG as Chromium writes it: 8 bits, RGB or RGBA, not interlaced."""
    at, compressed = 8, b""
    width = height = channels = 0
    while at < len(png):
        (length,) = struct.unpack_from(">I", png, at)
        kind, data = png[at + 4 : at + 8], png[at + 8 : at + 8 + length]
        if kind == b"IHDR":
            width, height, depth, colour, *_, interlaced = struct.unpack(">IIBBBBB", data)
            assert (depth, interlaced) == (8, 0), "a format that Chromium does not write"
            channels = {2: 3, 6: 4}[colour]
        elif kind == b"IDAT":
            compressed += data
        at += 12 + length
    raw = zlib.decompress(compressed)
    stride = width * channels
    before = bytearray(stride)
    rows: list[list[tuple[int, int, int]]] = []
    for start in range(0, height * (stride + 1), stride + 1):
        line = bytearray(raw[start + 1 : start + 1 + stride])
        unfilter(raw[start], line, before, channels)
        rows.append(list(zip(line[0::channels], line[1::channels], line[2::channels], strict=True)))
        before = line
    return width, height, rows


def unfilter(kind: int, line: bytearray, above: bytearray, step: int) -> None:
    """Undo a PNG filter in place (PNG specification, section 9)."""
    for at in range(len(line)):
        left = line[at - step] if at >= step else 0
        if kind == 1:
            line[at] = line[at] + left & 255
        elif kind == 2:
            line[at] = line[at] + above[at] & 255
        elif kind == 3:
            line[at] = line[at] + (left + above[at] >> 1) & 255
        elif kind == 4:
            corner = above[at - step] if at >= step else 0
            guess = left + above[at] - corner
            nearest = min((left, above[at], corner), key=lambda value: abs(guess - value))
            line[at] = line[at] + nearest & 255


if __name__ == "__main__":
    sys.exit(main())
