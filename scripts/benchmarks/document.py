"""A report made of blocks, written as Markdown and as one HTML page. Pure.

Text in blocks is very simple Markdown: words, with *emphasis*, `code` and [links](#heading) to a heading of the page
that is one word without capitals, as scenarios are named.
"""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Heading:
    level: int
    text: str


@dataclass(frozen=True, slots=True)
class Paragraph:
    text: str


@dataclass(frozen=True, slots=True)
class Points:
    """A list of points."""

    texts: Sequence[str]


@dataclass(frozen=True, slots=True)
class Table:
    """The first column contains words and is left-aligned; the others contain figures and are right-aligned."""

    head: Sequence[str]
    lines: Sequence[Sequence[str]]


@dataclass(frozen=True, slots=True)
class Picture:
    """A chart: `name` is its file beside the report, without the extension."""

    name: str
    text: str
    svg: bytes


Block = Heading | Paragraph | Points | Table | Picture


def as_markdown(blocks: Sequence[Block]) -> str:
    """The page; pictures are links to NAME.png beside it."""
    return "\n\n".join(_markdown(block) for block in blocks) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Points(texts):
            return "\n".join(f"- {text}" for text in texts)
        case Table(head, lines):
            rule = ["---", *("--:" for _ in head[1:])]
            return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *lines))
        case Picture(name, text):
            return f"![{text}]({name}.png)"


_STYLE = """
:root { color-scheme: light dark; --line: #8884; --soft: #8881; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 3rem; border-top: 1px solid var(--line); padding-top: 1.5rem; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: 0.875rem; margin: 1rem 0; }
th, td { padding: 0.25rem 0.75rem; border-bottom: 1px solid var(--line); text-align: right; vertical-align: top;
         font-variant-numeric: tabular-nums; }
th:first-child, td:first-child { text-align: left; } tbody tr:hover { background: var(--soft); }
img { max-width: 100%; background: white; border-radius: 4px; } code { background: var(--soft); padding: 0 0.2em; }
"""


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """One page with everything in it: pictures as data, no script, nothing to load."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title>\n<style>{_STYLE}</style>\n</head>\n<body>\n{body}\n</body>\n</html>\n"
    )


_WORD = re.compile(r"[a-z-]+")
"""A heading that can be linked to: Markdown viewers give it the same name."""


def _html(block: Block) -> str:
    match block:
        case Heading(level, text):
            place = f' id="{text}"' if _WORD.fullmatch(text) else ""
            return f"<h{level}{place}>{_inline(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{_inline(text)}</p>"
        case Points(texts):
            return "<ul>" + "".join(f"<li>{_inline(text)}</li>" for text in texts) + "</ul>"
        case Table(head, lines):
            top = "".join(f"<th>{_inline(cell)}</th>" for cell in head)
            rest = "".join("<tr>" + "".join(f"<td>{_inline(cell)}</td>" for cell in line) + "</tr>" for line in lines)
            return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{rest}</tbody></table></div>'
        case Picture(_, text, svg):
            data = base64.b64encode(svg).decode()
            return f'<p><img alt="{html.escape(text)}" src="data:image/svg+xml;base64,{data}"></p>'


def _inline(text: str) -> str:
    escaped = html.escape(text, quote=False)
    escaped = re.sub(r"`([^`]+)`", r"<code>\1</code>", escaped)
    escaped = re.sub(r"\*\*([^*]+)\*\*", r"<strong>\1</strong>", escaped)
    escaped = re.sub(r"\[([^]]+)\]\(#([a-z-]+)\)", r'<a href="#\2">\1</a>', escaped)
    return re.sub(r"\*([^*]+)\*", r"<em>\1</em>", escaped)
