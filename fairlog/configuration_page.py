"""docs/configuration.md, made from the table of settings: `python -m fairlog.configuration_page` prints it."""

from __future__ import annotations

import sys

from fairlog.config import KEYS, Key

_HEAD = """\
# Configuration

This page is made from the table in `fairlog/config.py`:
`python -m fairlog.configuration_page > docs/configuration.md`.

A key is set, from weak to strong, by its default, by a TOML file (`fairlog serve --config FILE.toml`), by the
environment, and by a flag (`--data-dir`, `--listen`, `--advertised`, `--admin`). A key that is not on this page, or
a value that does not fit, keeps the node from starting, with a sentence that names the key and where it was set.
What clients have set at run time goes before all of these ([broker configs](compatibility.md#broker-configs)).
`FAIRLOG_BOOTSTRAP` is not a setting of the node: it is the address that `fairlog topic` and `fairlog txn` ask.

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
