"""Pages of several shards, as one."""

from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as read_openmetrics
from prometheus_client.parser import text_string_to_metric_families as read_text

from fairlog.admin_http.metrics_pages import NotAPage, merged, read, read_untrusted
from fairlog.metrics import exposition
from fairlog.node_statistics import NodeStatistics
from tests.admin_http.test_metrics import RUNNING

OPENMETRICS = "application/openmetrics-text; version=1.0.0"


def page(shard: int, accept: str = "", *, running: bool = True) -> bytes:
    statistics = NodeStatistics("9.9", serving=True, refusing_writes=False, running=RUNNING if running else None)
    return exposition(NodeStatistics(**{**_fields(statistics), "shard": shard}), accept)[0]


def _fields(statistics: NodeStatistics) -> dict[str, object]:
    return {name: getattr(statistics, name) for name in statistics.__slots__}


@pytest.mark.parametrize(("accept", "parse"), [("", read_text), (OPENMETRICS, read_openmetrics)])
def test_merged_page_has_the_samples_of_all(accept: str, parse) -> None:
    """Each family once, with all its samples, also those that the first shard does not have."""
    pages = [page(0, accept, running=False), page(1, accept), page(2, accept)]
    together = list(parse(merged([read(pages[0]), *(read_untrusted(pages[n], n) for n in (1, 2))]).decode()))
    assert len({family.name for family in together}) == len(together)
    one_by_one = [sample for each in pages for family in parse(each.decode()) for sample in family.samples]

    def by_identity(samples):
        return {(sample.name, tuple(sorted(sample.labels.items()))) for sample in samples}

    samples = [sample for family in together for sample in family.samples]
    assert len(samples) == len(one_by_one)
    assert by_identity(samples) == by_identity(one_by_one)


@pytest.mark.parametrize("accept", ["", OPENMETRICS])
def test_merged_page_of_one_is_the_page_itself(accept: str) -> None:
    """Nothing is lost, added or moved."""
    text = page(0, accept)
    assert merged([read(text)]) == text


def test_line_feed_in_a_label_is_part_of_the_sample() -> None:
    """A label may have a carriage return, which ends no line."""
    text = b'# HELP a b\n# TYPE a gauge\na{name="x\r# HELP y\\n",shard="0"} 1\n'
    assert merged([read_untrusted(text, 0)]) == text


@pytest.mark.parametrize(
    "text",
    [
        b"<!doctype html>",
        b'a{shard="1"} 1\n',
        b"# TYPE a gauge\n",
        b"# HELP a b\na 1\n",
        b'# HELP a b\na{shard="2"} 1\n',
        b'# HELP a b\na{name="shard=\\"1\\""} 1\n',
        b'# HELP a b\n# EOF\na{shard="1"} 1\n',
    ],
)
def test_what_is_no_page_of_the_shard_is_refused(text: bytes) -> None:
    """Whoever listens on a dead process' port adds no series to the page of the others."""
    with pytest.raises(NotAPage):
        read_untrusted(text, 1)
