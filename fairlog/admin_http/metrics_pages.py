"""One metrics page out of several in the same format, of which each has the samples of one shard. Pure.

In Prometheus' formats all samples of a family stand together, behind the comments that describe it, of which the first
is its HELP. So a merged page has the families in the order in which they are first seen, with the comments of the first
page that has them. Samples are not looked into, but for the label `shard`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

_END = b"# EOF"
"""How a page of OpenMetrics ends."""
_HELP = b"# HELP "
_COMMENT = b"#"


class NotAPage(ValueError):
    """It is not a metrics page, or not the one of this shard."""


@dataclass(slots=True)
class _Family:
    comments: list[bytes] = field(default_factory=list[bytes])
    samples: list[bytes] = field(default_factory=list[bytes])


@dataclass(slots=True)
class Page:
    """A page, by families."""

    families: dict[bytes, _Family]
    ends: bool
    """In OpenMetrics, by its last line."""


def read_untrusted(page: bytes, shard: int) -> Page:
    """A page of another process, with this shard's samples alone. Raises NotAPage."""
    found, label = read(page), b'shard="%d"' % shard
    if not all(label in sample for family in found.families.values() for sample in family.samples):
        raise NotAPage(f"a sample is not of shard {shard}")
    return found


def read(page: bytes) -> Page:
    """A page by families. Raises NotAPage."""
    families: dict[bytes, _Family] = {}
    family: _Family | None = None
    ends = False
    for line in page.split(b"\n"):
        if ends and line:
            raise NotAPage("there is something behind its end")
        if line == _END:
            ends = True
        elif line.startswith(_HELP):
            family = families.setdefault(line[len(_HELP) :].partition(b" ")[0], _Family())
            family.comments.append(line)
        elif line and family is None:
            raise NotAPage("it does not begin with the description of a family")
        elif line.startswith(_COMMENT) and family is not None:
            family.comments.append(line)
        elif line and family is not None:
            family.samples.append(line)
    return Page(families, ends)


def merged(pages: Iterable[Page]) -> bytes:
    """All samples of these pages; at least one page."""
    families: dict[bytes, _Family] = {}
    ends = False
    for page in pages:
        ends = ends or page.ends
        for name, family in page.families.items():
            families.setdefault(name, _Family(family.comments)).samples.extend(family.samples)
    lines = [line for family in families.values() for line in (*family.comments, *family.samples)]
    return b"\n".join([*lines, *([_END] if ends else []), b""])
