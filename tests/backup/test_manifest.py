"""The manifest on disk, byte by byte: code, golden file and documentation agree; what is none is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from fairlog.backup.manifest import (
    BadManifest,
    CopiedFile,
    CopiedLog,
    Manifest,
    decode_manifest_untrusted,
    encode_manifest,
)

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "backup-manifest-1.json"
PAGE = ROOT / "docs" / "formats" / "backup-manifest.md"

MANIFEST = Manifest(
    cluster_id="AEiMFCgXTmSIvHgOQmiVXA",
    node_id=1,
    made_ms=1_763_632_800_000,
    files={
        "cluster/data.mdb": CopiedFile(12_288, "6c" * 32),
        "datalog/data.mdb": CopiedFile(45_056, "0f" * 32),
    },
    logs={
        "o-offsets-0": CopiedLog(None, 0, 17, 0),
        "t-00112233445566778899aabbccddeeff-0": CopiedLog("orders", 100, 2_500, 81_920),
        "t-ffeeddccbbaa99887766554433221100-0": CopiedLog(None, 0, 3, 300),
    },
)


def test_manifest_written_now_equals_the_golden_one() -> None:
    """The format does not change by accident."""
    assert encode_manifest(MANIFEST) == GOLDEN.read_bytes()


def test_golden_manifest_reads_as_it_was_written() -> None:
    """Every field is read as it is documented."""
    assert decode_manifest_untrusted(GOLDEN.read_bytes()) == MANIFEST


def test_format_page_shows_the_golden_manifest() -> None:
    """The example of the page is the one that is tested."""
    assert GOLDEN.read_text() in PAGE.read_text()


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(GOLDEN.read_bytes()), **fields}).encode()


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "should have an object for it"),
        (b"{}", "does not say that it is of the format"),
        (changed(version=2), "has version 2, and this program reads 1"),
        (changed(made_ms=-1), "should have a number for made_ms"),
        (changed(made_ms=True), "should have a number for made_ms"),
        (changed(node_id="1"), "should have a number for node_id"),
        (changed(cluster_id=None), "should have a text for cluster_id"),
        (changed(files=[]), "should have an object for files"),
        (changed(files={"cluster/data.mdb": 5}), "should have an object for cluster/data.mdb"),
        (changed(logs={"x": {"topic": 5}}), "should have a text for topic"),
        (GOLDEN.read_bytes()[:-40], "is not JSON"),
    ],
)
def test_manifest_that_is_none_is_refused_in_words(data: bytes, words: str) -> None:
    """Whatever stands there: one sentence, and no other error."""
    with pytest.raises(BadManifest, match=words):
        decode_manifest_untrusted(data)
