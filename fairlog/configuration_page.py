"""Generates docs/configuration.md from the table of settings: `python -m fairlog.configuration_page` prints it."""

from __future__ import annotations

import sys

from fairlog.config import KEYS, Key

_HEAD = """\
# Configuration

This page is generated from the table in `fairlog/config.py`:
`python -m fairlog.configuration_page > docs/configuration.md`.

A key has a default. A TOML file (`fairlog serve --config FILE.toml`) overrides the default, the environment overrides
the file, and a flag (`--data-dir`, `--listen`, `--advertised`, `--admin`, `--processes`, `--journals`, `--cluster`)
overrides the environment. Values that clients set at run time override all of these ([broker
configs](compatibility.md#broker-configs)). The node does not start if a key is not on this page or a value does not
fit; the error names the key and where it was set. `FAIRLOG_BOOTSTRAP` is not a setting of the node: it is the address
of the broker that the client commands use; nor is `FAIRLOG_CLIENT_PROPERTIES`, which says who they are.

```toml
# fairlog.toml
listen = "0.0.0.0:9092"
advertised = "broker.example:9092"

[topics]
partitions_default = 3
```
"""


def page() -> str:
    """The whole page."""
    parts = [_HEAD]
    section = None
    for row in KEYS.values():
        table, _, _ = row.name.rpartition(".")
        if table != section:
            section = table
            heading = f"[{section}]" if section else "The node"
            parts.append(f"\n## {heading}\n\n| key | environment | default | |\n|---|---|---|---|\n")
        parts.append(f"| `{row.name}` | `{row.variable}` | {_default(row)} | {row.doc} |\n")
    return "".join(parts)


def _default(row: Key) -> str:
    if row.default_text is not None:
        return row.default_text
    if isinstance(row.default, bool):
        return f"`{str(row.default).lower()}`"
    return f"`{row.default}`"


if __name__ == "__main__":
    sys.stdout.write(page())
