"""The manifest on disk, byte by byte: code, golden file and documentation agree; what is none is refused in words."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from coordinator.group_records import SinkRecord
from fairlog.backup.manifest import (
    BadManifest,
    CopiedFile,
    CopiedLog,
    Manifest,
    decode_manifest_untrusted,
    encode_manifest,
)
from fairlog_types import LogId, Offset, Placement

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "backup-manifest-3.json"
GOLDEN_2 = ROOT / "tests" / "golden" / "backup-manifest-2.json"
GOLDEN_1 = ROOT / "tests" / "golden" / "backup-manifest-1.json"
PAGE = ROOT / "docs" / "formats" / "backup-manifest.md"

MANIFEST = Manifest(
    cluster_id="AEiMFCgXTmSIvHgOQmiVXA",
    node_id=1,
    made_ms=1_763_632_800_000,
    files={
        "cluster/data.mdb": CopiedFile(12_288, "6c" * 32),
        "shards/0/datalog/data.mdb": CopiedFile(45_056, "0f" * 32),
    },
    logs={
        "o-offsets-0": CopiedLog(None, 0, 17, 0),
        "t-00112233445566778899aabbccddeeff-0": CopiedLog("orders", 100, 2_500, 81_920),
        "t-ffeeddccbbaa99887766554433221100-0": CopiedLog(None, 0, 3, 300),
    },
    sinks=(
        SinkRecord("empty-ones", "7c1f", 0, (), 1_763_632_700_000),
        SinkRecord(
            "totals",
            "0c8f",
            41,
            (
                Placement(LogId.of_offsets(0), Offset(16), 1),
                Placement(LogId("t", "00112233445566778899aabbccddeeff", 0), Offset(2_400), 100),
            ),
            1_763_632_799_000,
        ),
    ),
)


def test_manifest_written_now_equals_the_golden_one() -> None:
    """The format does not change by accident."""
    assert encode_manifest(MANIFEST) == GOLDEN.read_bytes()


EARLIER_FILES = {name.removeprefix("shards/0/"): file for name, file in MANIFEST.files.items()}
"""Where a backup had them before there were shards."""


def test_golden_manifest_reads_as_it_was_written() -> None:
    """Every field is read as it is documented."""
    assert decode_manifest_untrusted(GOLDEN.read_bytes()) == MANIFEST


def test_plan_of_a_sinks_batch_reads_back() -> None:
    """A restored node tells a replay from a batch that was planned anew, too; one that is not known is left out."""
    assert MANIFEST.sinks is not None
    planned = replace(MANIFEST, sinks=tuple(replace(fence, planned_ms=1_763_632_700_001) for fence in MANIFEST.sinks))
    assert decode_manifest_untrusted(encode_manifest(planned)) == planned


def test_manifest_of_version_1_reads_and_knows_no_sinks() -> None:
    """Backups stay readable; what they never held is not taken for "no sinks"."""
    assert decode_manifest_untrusted(GOLDEN_1.read_bytes()) == replace(MANIFEST, files=EARLIER_FILES, sinks=None)


def test_manifest_of_version_2_reads_and_has_the_files_of_no_shard() -> None:
    """Backups stay readable, where their files were."""
    assert decode_manifest_untrusted(GOLDEN_2.read_bytes()) == replace(MANIFEST, files=EARLIER_FILES)


def test_format_page_shows_the_golden_manifest() -> None:
    """The example of the page is the one that is tested."""
    assert GOLDEN.read_text() in PAGE.read_text()


def changed(**fields: object) -> bytes:
    return json.dumps({**json.loads(GOLDEN.read_bytes()), **fields}).encode()


def with_sink(name: str = "totals", **fields: object) -> bytes:
    sink: dict[str, object] = {"query": "q", "batch": 0, "used_ms": 0, "placements": []}
    return changed(sinks={name: {**sink, **fields}})


def with_place(**fields: object) -> bytes:
    return with_sink(placements=[{"log": "o-offsets-0", "base_offset": 0, "records": 1, **fields}])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b"[]", "should have an object for it"),
        (b"{}", "is not of the format"),
        (changed(version=4), "has version 4, but this program reads versions 1 to 3"),
        (changed(version=True), "has version True"),
        (changed(made_ms=-1), "should have a number for made_ms"),
        (changed(made_ms=True), "should have a number for made_ms"),
        (changed(node_id="1"), "should have a number for node_id"),
        (changed(cluster_id=None), "should have a text for cluster_id"),
        (changed(files=[]), "should have an object for files"),
        (changed(files={"cluster/data.mdb": 5}), "should have an object for cluster/data.mdb"),
        (changed(logs={"x": {"topic": 5}}), "should have a text for topic"),
        (changed(made_ms=2**63), "should have a number for made_ms"),
        (changed(sinks=None), "should have an object for sinks"),
        (with_sink(query=7), "should have a text for query"),
        (with_sink(query=""), "has an impossible sink: the query must have a name of 1 to 256 bytes"),
        (with_sink("x" * 1001), "has an impossible sink: the sink must have a name of 1 to 1000 bytes"),
        (with_sink("\ud800"), "has an impossible sink: .* must be of printable characters"),
        (with_sink(batch=-1), "should have a number for batch"),
        (with_sink(placements={}), "should have a list for placements"),
        (with_sink(placements=[5]), "should have an object for a placement"),
        (with_place(log="t-0-0"), "should have the name of a log, not 't-0-0'"),
        (with_place(log="o-offsets-2147483648"), "should have the name of a log"),
        (with_place(log="o-offsets-\ud800"), "should have the name of a log"),
        (with_place(records=-1), "should have a number for records"),
        (GOLDEN.read_bytes()[:-40], "is not JSON"),
    ],
)
def test_manifest_that_is_none_is_refused_in_words(data: bytes, words: str) -> None:
    """Whatever stands there: one sentence, and no other error."""
    with pytest.raises(BadManifest, match=words):
        decode_manifest_untrusted(data)
