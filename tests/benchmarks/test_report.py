"""The report: computed from results alone; it names what is missing, and leaves no lost comparison out."""

from __future__ import annotations

import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pytest
from benchmarks.comparing import comparisons, figure, more_is_better
from benchmarks.document import Heading, Paragraph, Picture, Table, as_html, as_markdown
from benchmarks.report import NOT_FOR_QUOTING, blocks_of, write_report
from benchmarks.results import PeerSetup, Results, ScenarioRun
from benchmarks.rows import Row


def test_report_table_has_median_spread_and_p99(results: Results) -> None:
    """A cell says the median, the lowest and the highest round, and the 99th percentile."""
    assert "| 10 × 2 | 3.50 (3.00–4.00), p99 3.50 |" in as_markdown(blocks_of(results, []))


def test_report_ratio_where_the_journal_mode_loses_is_bold(results: Results) -> None:
    """Ratios of medians; the lost one stands out, the one against the mock, which does no work, does not."""
    page = as_markdown(blocks_of(results, []))
    assert "| 1 × 2 | 0.50 | 2.00 |" in page
    assert "| 10 × 2 | **1.75** | 2.50 |" in page


def test_report_says_what_is_above_the_client_floor(results: Results) -> None:
    """Of times, what the mock takes with the same client is subtracted: what is left is the broker's."""
    page = as_markdown(blocks_of(results, []))
    table = page.partition("| above the floor: − mock, ms | journal | kafka |")[2]
    assert "| 10 × 2 | 2.10 | 0.6 |" in table


def test_report_lists_every_lost_comparison(results: Results) -> None:
    """Where the journal mode loses, the report has a line for it, with both figures."""
    page = as_markdown(blocks_of(results, []))
    losses = page.partition("## Where journal loses")[2].partition("\n## ")[0]
    assert "| `txn-latency`: transaction | kafka | 1 | 10 × 2: 3.50 against 2.00 ms | × 1.75 |" in losses


def test_report_compares_the_figures_of_a_share_and_not_the_share(results: Results) -> None:
    """A share is not among what is lost, and the report says so; the figure that it is made of is."""
    results.rows += [
        Row("txn-latency", peer, "1 × 2", metric, unit, (value,))
        for peer, loss, rate in (("journal", 9.0, 50.0), ("kafka", 3.0, 100.0))
        for metric, unit, value in (("loss", "%", loss), ("transactional", "MB/s", rate))
    ]
    losses = as_markdown(blocks_of(results, [])).partition("## Where journal loses")[2].partition("\n## ")[0]
    assert "`txn-latency`: transactional" in losses
    assert "`txn-latency`: loss" not in losses
    assert "Shares (in % or as a ratio)" in losses


def test_report_has_paced_transactions_as_information(results: Results) -> None:
    """The line stands among the marks with its value, and is neither reached nor missed."""
    for peer, took in (("journal", 2.0), ("kafka", 4.0)):
        results.rows.append(Row("txn-latency", peer, "10 × 2", "transaction, paced", "ms", (took,), (took,)))
    page = as_markdown(blocks_of(results, []))
    line = "| `txn-latency`: transaction, paced, 10 × 2, journal ÷ kafka | none: information | 0.5 | 0.5–0.5 | – |"
    assert line in page


def test_report_names_the_peer_that_is_missing(results: Results) -> None:
    """A peer that cannot be had is named with the reason."""
    assert "*kafka-fsync* is missing: there is no Maven here" in as_markdown(blocks_of(results, []))


def test_report_of_separate_runs_says_where_a_peer_was_missing(
    results: Results, run_of: Callable[..., ScenarioRun]
) -> None:
    """A peer that another run into the same directory had is missing in the scenarios that went without it only."""
    results.put(run_of("visible", setups={"kafka-fsync": PeerSetup("", {})}), [])
    assert "*kafka-fsync* is missing in `txn-latency`: there is no Maven" in as_markdown(blocks_of(results, []))


def test_report_says_what_idle_brokers_took(results: Results) -> None:
    """What the others used meanwhile is part of what was measured."""
    assert "kafka 2.1 %" in as_markdown(blocks_of(results, []))


def test_report_shows_what_one_scenario_set_otherwise(results: Results, run_of: Callable[..., ScenarioRun]) -> None:
    """What a broker is set to in all scenarios stands above; what one of them sets besides, in its own section."""
    results.put(run_of("soak", setups={"kafka": PeerSetup("the kafka peer", {"flush": "1", "clean": "500"})}), [])
    results.put(run_of("visible", setups={"kafka": PeerSetup("the kafka peer", {"flush": "1"})}), [])
    above, _, rest = as_markdown(blocks_of(results, [])).partition("\n## soak\n")
    own, _, others = rest.partition("\n## ")
    assert "*kafka*: the kafka peer. Set: `flush=1`\n" in above
    assert "- set for this scenario: kafka: `clean=500`" in own
    assert "clean=500" not in above + others


def test_report_of_a_quick_run_is_labelled(results: Results, run_of: Callable[..., ScenarioRun]) -> None:
    """A quick run says at its top, and at the scenario, that it is not for quoting; a full one does not."""
    assert NOT_FOR_QUOTING not in as_markdown(blocks_of(results, []))
    results.put(run_of(quick=True), results.of("txn-latency"))
    assert as_markdown(blocks_of(results, [])).count(NOT_FOR_QUOTING) == 2


def test_report_marks_of_a_quick_run_are_labelled(results: Results, run_of: Callable[..., ScenarioRun]) -> None:
    """A line of the marks' table that is copied elsewhere still says that it is not for quoting; others do not."""
    results.put(run_of(quick=True), results.of("txn-latency"))
    results.put(run_of("visible"), [])
    marks = as_markdown(blocks_of(results, [])).partition("## The marks")[2].partition("\n## ")[0]
    named = {line.partition(":")[0] for line in marks.splitlines() if "`txn-latency`" in line or "`visible`" in line}
    assert named == {"| `txn-latency` (quick)", "| `visible`"}


def test_report_index_has_each_scenario_with_its_run(results: Results, run_of: Callable[..., ScenarioRun]) -> None:
    """At the top stands when each scenario was run, on whom, and in how many rounds; it leads to the section."""
    results.put(run_of("hung", rounds=2, begun="2026-02-01T08:30:00Z", seconds=720.0, quick=True), [])
    index = as_markdown(blocks_of(results, [])).partition("## Scenarios")[2].partition("\n## ")[0]
    assert "| [txn-latency](#txn-latency) | 2026-01-31T12:00:00Z | 3 | journal, kafka, mock | 12 s |" in index
    assert "| [hung](#hung) (quick) | 2026-02-01T08:30:00Z | 2 |  | 12 min |" in index
    page = as_html("t", blocks_of(results, []))
    links = re.findall(r'href="#([^"]+)"', page)
    assert links == ["txn-latency", "hung"]
    assert all(f'<h2 id="{link}">' in page for link in links)


@pytest.mark.slow
def test_report_html_is_self_contained(results: Results, tmp_path: Path) -> None:
    """The page loads nothing: its charts are in it, and every tag is closed. The PNGs stand beside the Markdown."""
    (tmp_path / "txn-latency.a-metric-of-before.png").write_bytes(b"")
    write_report(results, tmp_path)
    page = (tmp_path / "report.html").read_text()
    assert not re.search(r'(src|href)="(?!data:|#)', page)
    assert "data:image/svg+xml;base64," in page
    assert "<script" not in page
    parser = _Tags()
    parser.feed(page)
    assert parser.open == []
    named = re.findall(r"\]\((\S+\.png)\)", (tmp_path / "report.md").read_text())
    assert named == ["txn-latency.transaction.png"]
    assert [path.name for path in tmp_path.glob("*.png")] == named
    assert (tmp_path / named[0]).read_bytes().startswith(b"\x89PNG")


class _Tags(HTMLParser):
    """What is open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_document_words_are_escaped_in_html() -> None:
    """Text is never markup; emphasis and code are."""
    page = as_html("a < b", [Paragraph("x < y & *z* `c<d>`"), Table(["", "n"], [["a<b", "**1**"]])])
    assert "<title>a &lt; b</title>" in page
    assert "x &lt; y &amp; <em>z</em> <code>c&lt;d&gt;</code>" in page
    assert "<td>a&lt;b</td><td><strong>1</strong></td>" in page


def test_document_markdown_blocks_are_apart() -> None:
    """Blocks are separated by an empty line; a picture is a link to its PNG."""
    page = as_markdown([Heading(2, "T"), Picture("a.b", "words", b"")])
    assert page == "## T\n\n![words](a.b.png)\n"


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.01234, "0.0123"), (1.5, "1.50"), (12.345, "12.3"), (123.4, "123"), (12345.6, "12,346"), (-3.14159, "-3.14")],
)
def test_figure_has_three_digits(value: float, text: str) -> None:
    """Figures have the digits that they are worth."""
    assert figure(value) == text


def test_comparison_of_rates_is_lost_by_the_lower(results: Results) -> None:
    """Of rates more is better, of everything else less; percentages and the mock are not compared."""
    assert more_is_better("MB/s")
    assert not more_is_better("CPU-s/GB")
    results.rows = [
        Row("s", peer, "c", metric, unit, (value,))
        for metric, unit in (("rate", "MB/s"), ("cost", "CPU-s/GB"), ("loss", "%"))
        for peer, value in (("journal", 50.0), ("markers", 100.0), ("mock", 1000.0))
    ]
    assert [(each.row.metric, each.times_worse, each.lost) for each in comparisons(results)] == [
        ("rate", 2.0, True),
        ("cost", 0.5, False),
    ]
