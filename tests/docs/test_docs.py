"""What the documentation names is there: links, modules, tests, golden files.

Pages are read as text. Code blocks are left out where links and paths are looked for: they show commands and
pictures, and what they show is not always a path of this repository.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
ROOMS = ("stream", "journal", "datalog", "partition", "coordinator", "copier", "fairlog", "scripts", "tests", "docs")
SINGLE = (ROOT / "fairlog_types.py", ROOT / "fairlog_histogram.py", ROOT / "fairlog_client_security.py")
SOURCES = [*SINGLE, *(path for room in ROOMS for path in sorted((ROOT / room).rglob("*.py")))]

_FENCED = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\(([^()\s]+)\)")
_HEADING = re.compile(r"^#+ (.+)$", re.MULTILINE)
_PYTHON_FILE = re.compile(r"`([\w/]+\.py)(?:::\w+)?`")
_ROOM_PATH = re.compile(rf"`((?:{'|'.join(ROOMS)})/[\w./-]*)`")
_DOCS_PAGE = re.compile(r"\bdocs/[\w/-]+\.md\b")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def text_of(page: Path) -> str:
    """The page without its fenced code blocks."""
    return _FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors_of(page: Path) -> set[str]:
    """The anchors that a page's headings get when it is rendered: lower case, hyphens for spaces, no punctuation."""
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in _HEADING.findall(text_of(page))}


def names_in(module: Path) -> set[str]:
    """Functions, classes, methods and assigned names of a module, at any depth."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names.update(target.id for target in node.targets if isinstance(target, ast.Name))
    return names


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_link_of_a_page_resolves(page: Path) -> None:
    """A relative link leads to a file of the repository, and to a heading of it if it names one."""
    for link in _LINK.findall(text_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_relative_to(ROOT), f"{link} leads out of the repository"
        assert target.exists(), f"{link} leads nowhere"
        assert not anchor or anchor in anchors_of(target), f"{link}: there is no such heading"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_path_named_by_a_page_exists(page: Path) -> None:
    """A module is named by its path, or by its file name alone where that is plain; a room's path exists."""
    text = text_of(page)
    file_names = {source.name for source in SOURCES}
    for path in _PYTHON_FILE.findall(text):
        assert (ROOT / path).is_file() if "/" in path else path in file_names, f"there is no {path}"
    for path in _ROOM_PATH.findall(text):
        assert (ROOT / path).exists(), f"there is no {path}"


def test_page_cited_by_the_code_exists() -> None:
    """Docstrings and comments cite pages by their path; a page that is renamed takes its citations along."""
    cited = {(source, page) for source in SOURCES for page in _DOCS_PAGE.findall(source.read_text(encoding="utf-8"))}
    assert cited, "the code cites no page at all, so this test looks at nothing"
    assert [f"{name_of(source)}: {page}" for source, page in sorted(cited) if not (ROOT / page).is_file()] == []


def test_invariant_is_proved_by_tests_that_exist() -> None:
    """Each invariant names tests, and all of these are there."""
    sections = re.split(r"^## (\d+)\. ", (DOCS / "invariants.md").read_text(encoding="utf-8"), flags=re.MULTILINE)
    head, numbers, bodies = sections[0], sections[1::2], sections[2::2]
    assert [int(number) for number in numbers] == list(range(1, 14))
    for number, body in zip(numbers, bodies, strict=True):
        assert _TEST.findall(body), f"invariant {number} names no test"
    for path, name in _TEST.findall(head + "".join(bodies)):
        assert name in names_in(ROOT / path), f"there is no {name} in {path}"


def test_decision_is_numbered_and_listed() -> None:
    """File name, title and index agree on every decision's number and title; no number is given twice."""
    pages = sorted((DOCS / "decisions").glob("[0-9]*.md"))
    rows = []
    for number, page in enumerate(pages, start=1):
        title = page.read_text(encoding="utf-8").partition("\n")[0]
        assert page.name.startswith(f"{number:04}-")
        assert title.startswith(f"# {number}. ")
        rows.append((str(number), title.removeprefix(f"# {number}. "), page.name))
    index = (DOCS / "decisions" / "README.md").read_text(encoding="utf-8")
    assert re.findall(r"^\| (\d+) \| \[(.+)\]\((.+)\) \|", index, re.MULTILINE) == rows
    assert {page.name for page in (DOCS / "decisions").iterdir()} == {page.name for page in pages} | {"README.md"}


def test_format_has_a_page_and_a_golden_file() -> None:
    """The index of formats lists every page, and every golden file; each page's versions are in it, too."""
    formats = DOCS / "formats"
    index = (formats / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in formats.glob("*.md")} - {"README.md"}
    assert set(_LINK.findall(index)) == pages | {"../../CHANGELOG.md"}
    golden = {str(path.relative_to(ROOT)) for path in (ROOT / "tests" / "golden").rglob("*") if path.is_file()}
    assert set(re.findall(r"`(tests/golden/[^`]+)`", index)) == golden
    for page in pages:
        text = (formats / page).read_text(encoding="utf-8")
        assert "tests/golden/" in text, f"{page} names no golden file"
        assert "## Versions" in text, f"{page} has no history of versions"
