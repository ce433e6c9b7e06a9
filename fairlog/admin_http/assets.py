"""The console's files: HTML, styles and modules from `static/`, read once and served from memory.

There is no build step: the browser gets the files of the repository. Each file has an entity tag, so a browser that has
it asks and gets 304; a new version of Fairlog is visible at the next reload.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}


@dataclass(frozen=True, slots=True)
class Asset:
    """A file as it is served."""

    content: bytes
    content_type: str
    entity_tag: str


PAGE = "index.html"
"""The page of a node of one machine."""
CLUSTER_PAGE = "cluster.html"
"""That of a node of several machines."""


def load(page: str) -> Mapping[str, Asset]:
    """All files, by the path under which they are served: `page` under `/`, and no other page. Blocks."""
    found: dict[str, Asset] = {}
    for file in resources.files("fairlog.admin_http").joinpath("static").iterdir():
        content = file.read_bytes()
        suffix = file.name[file.name.rindex(".") :]
        tag = f'"{hashlib.sha256(content).hexdigest()[:20]}"'
        if suffix != ".html" or file.name == page:
            found["/" if file.name == page else f"/{file.name}"] = Asset(content, _TYPES[suffix], tag)
    return found
