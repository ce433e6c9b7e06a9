"""The shapes of plain records that `produce` writes and `fetch` reads."""

from __future__ import annotations

import pytest
from benchmarks.plain_load import (
    LARGE_REQUEST_BYTES,
    PARTITIONS,
    SHAPES,
    SMALL_REQUEST_BYTES,
    Shape,
    cases,
    records_of,
    records_per_run,
    runs_of,
    shape_of,
)


def test_case_of_a_shape_leads_back_to_it() -> None:
    """Every shape has a case of its own; a quick run moves a tenth of its bytes."""
    assert [shape_of(case, quick=False) for case in cases()] == list(SHAPES)
    assert [shape_of(case, quick=True).total_bytes * 10 for case in cases()] == [shape.total_bytes for shape in SHAPES]


def test_shapes_are_all_sizes_of_records_in_both_sizes_of_requests() -> None:
    """100 B, 1 KB and 16 KB, small and large."""
    assert {(shape.record_bytes, shape.request_bytes) for shape in SHAPES} == {
        (record_bytes, request_bytes)
        for record_bytes in (100, 1024, 16_384)
        for request_bytes in (SMALL_REQUEST_BYTES, LARGE_REQUEST_BYTES)
    }


@pytest.mark.parametrize("shape", [*SHAPES, Shape(16_384, SMALL_REQUEST_BYTES, 1)], ids=lambda shape: shape.name)
def test_records_of_a_shape_fill_all_partitions_alike(shape: Shape) -> None:
    """Every partition gets as many runs as the others, at least one, and together no more than was asked for."""
    assert runs_of(shape) % PARTITIONS == 0
    assert records_of(shape) == runs_of(shape) * records_per_run(shape)
    smallest = PARTITIONS * records_per_run(shape) * shape.record_bytes
    assert smallest <= records_of(shape) * shape.record_bytes <= max(shape.total_bytes, smallest)


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: shape.name)
def test_queue_of_a_shape_holds_a_run_and_all_requests_in_flight(shape: Shape) -> None:
    """The client never waits for room while five requests are under way and one to each partition fills up."""
    assert shape.queue_bytes >= (5 + PARTITIONS) * shape.request_bytes
    assert shape.queue_bytes >= records_per_run(shape) * shape.record_bytes
