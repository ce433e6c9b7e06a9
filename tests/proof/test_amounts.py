"""What a proof does next, when it is done, and the table that it leaves."""

from __future__ import annotations

from tests.proof.amounts import Amount, Kind, Progress

SIMULATION = Kind("simulation", Amount.RECOVERIES, 100, 10)
IMAGES = Kind("images", Amount.IMAGES, 10, 5)


def begin(progress: Progress) -> tuple[Kind, str]:
    begun = progress.begin()
    assert begun is not None
    return begun


def test_begin_takes_what_is_furthest_behind_with_what_is_under_way() -> None:
    """So that all kinds are as far when the time is over; and each slice has a seed of its own."""
    progress = Progress("s", (SIMULATION, IMAGES))
    seeds = [begin(progress)[1] for _ in range(7)]
    assert seeds[:2] == ["s.simulation.0", "s.images.0"]
    assert seeds[2:] == [f"s.simulation.{number}" for number in range(1, 6)]


def test_begin_ends_when_nothing_is_missing_and_goes_on_if_a_slice_gave_less() -> None:
    """What is under way counts as its kind usually gives; what has ended as what it gave."""
    progress = Progress("s", (IMAGES,))
    begin(progress)
    begin(progress)
    assert progress.begin() is None
    progress.end(IMAGES, 1.0, {Amount.IMAGES.value: 5})
    progress.end(IMAGES, 2.0, {Amount.IMAGES.value: 2})
    assert not progress.complete
    assert begin(progress)[1] == "s.images.2"
    progress.end(IMAGES, 1.0, {Amount.IMAGES.value: 3, "images cut in a recovery": 1})
    assert progress.complete
    assert progress.begin() is None


def test_table_has_amounts_seeds_and_what_went_wrong() -> None:
    """One line for each amount; then what was counted besides, and slices by name that have found something."""
    progress = Progress("s", (SIMULATION, IMAGES))
    begin(progress)
    progress.end(SIMULATION, 61.2, {Amount.RECOVERIES.value: 1234, "simulated kills": 5})
    progress.broken.append("s.simulation.7")
    assert list(progress.table()) == [
        "| amount | wanted | done | slices | seconds | seeds |",
        "|---|---:|---:|---:|---:|---|",
        "| simulated crash recoveries | 100 | 1,234 | 1 | 61 | s.simulation.0 to .0 |",
        "| power-loss images | 10 | 0 | 0 | 0 | – |",
        "\nBesides: 5 simulated kills.",
        "\n1 found a broken promise: s.simulation.7.",
    ]
