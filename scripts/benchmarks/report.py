"""Runs the scenarios and reports: a table for the eyes, JSON for what comes after."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable, Sequence
from itertools import groupby
from pathlib import Path

from node_process import ROOT
from rich.console import Console
from rich.table import Table

from benchmarks import memory, produce, restart, retention, txn_latency
from benchmarks.measuring import Bench

_SCENARIOS: dict[str, Callable[[Bench], None]] = {
    txn_latency.SCENARIO: txn_latency.run,
    produce.SCENARIO: produce.run,
    memory.SCENARIO: memory.run,
    restart.SCENARIO: restart.run,
    retention.SCENARIO: retention.run,
}
OUT = ROOT / "bench-out"

console = Console(highlight=False)


def run(scenarios: Sequence[str], *, quick: bool, rounds: int) -> int:
    """Run these scenarios and write the results; 0 unless one of them fails, which raises."""
    OUT.mkdir(exist_ok=True)
    # On the disk of the repository: /tmp may be memory, and then fsync costs nothing.
    with tempfile.TemporaryDirectory(dir=OUT, prefix="node-") as directory:
        bench = Bench(0.1 if quick else 1.0, rounds, Path(directory))
        for name in scenarios:
            started = time.monotonic()
            with console.status(f"{name} …"):
                _SCENARIOS[name](bench)
            console.print(f"[green]•[/] {name} [dim]({time.monotonic() - started:.0f} s)[/]")
    console.print(_table(bench, quick=quick))
    path = OUT / f"{time.strftime('%Y%m%dT%H%M%S')}.json"
    path.write_text(json.dumps(_document(bench, quick=quick), indent=2) + "\n")
    console.print(f"written to {path.relative_to(ROOT)}")
    return 0


def _table(bench: Bench, *, quick: bool) -> Table:
    table = Table(title="Medians over the rounds" + (" (quick: not for quoting)" if quick else ""))
    table.add_column("", no_wrap=True)
    for column in ("median", "lowest", "highest"):
        table.add_column(column, justify="right")
    table.add_column("unit", no_wrap=True)
    for scenario, figures in groupby(bench.figures, key=lambda figure: figure.scenario):
        table.add_section()
        table.add_row(f"[bold]{scenario}[/]")
        for figure in figures:
            cells = [f"{value:,.2f}" for value in (figure.median, min(figure.rounds), max(figure.rounds))]
            table.add_row(figure.name, *cells, figure.unit)
    return table


def _document(bench: Bench, *, quick: bool) -> dict[str, object]:
    return {
        "quick": quick,
        "machine": {
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
            "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        },
        "versions": {name: importlib.metadata.version(name) for name in ("fairlog", "confluent-kafka", "lmdb", "trio")},
        "figures": [
            {
                "scenario": figure.scenario,
                "name": figure.name,
                "unit": figure.unit,
                "median": figure.median,
                "rounds": figure.rounds,
            }
            for figure in bench.figures
        ],
    }
