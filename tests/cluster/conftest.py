"""What the cluster store's tests share."""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path

import pytest

from fairlog.cluster.embedded import EmbeddedStore
from fairlog.cluster.features import FEATURES, Feature
from tests.cluster.replicated_nodes import Nodes
from tests.stream.model_engine import open_model


@pytest.fixture
def open_store(tmp_path: Path) -> Iterator[Callable[..., EmbeddedStore]]:
    """Opens (again) the store of one directory; the store that was open before is dropped without a close."""
    opened: list[EmbeddedStore] = []

    def reopen(
        node_id: int = 1, group_journal_count: int = 16, features: Mapping[str, Feature] = FEATURES
    ) -> EmbeddedStore:
        while opened:
            opened.pop().close()
        store = EmbeddedStore.open(
            tmp_path / "cluster", node_id=node_id, group_journal_count=group_journal_count, features=features
        )
        opened.append(store)
        return store

    yield reopen
    for store in opened:
        store.close()


@pytest.fixture
async def nodes(tmp_path: Path) -> AsyncIterator[Nodes]:
    async with open_model(random.Random(1)) as cluster:
        yield Nodes(tmp_path, cluster)
