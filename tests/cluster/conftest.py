"""What the cluster store's tests share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from fairlog.cluster.embedded import EmbeddedStore


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., EmbeddedStore]]:
    """Opens (again) the store of one directory; the store that was open before is dropped without a close."""
    opened: list[EmbeddedStore] = []

    def reopen(node_id: int = 1, group_journal_count: int = 16) -> EmbeddedStore:
        while opened:
            opened.pop().close()
        store = EmbeddedStore.open(tmp_path / "cluster", node_id=node_id, group_journal_count=group_journal_count)
        opened.append(store)
        return store

    yield reopen
    for store in opened:
        store.close()
