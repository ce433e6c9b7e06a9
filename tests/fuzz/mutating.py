"""Inputs made of others, by chance: what stands in for coverage guidance where atheris is not installed.

Each input comes from a seed by one to eight steps: a bit or a byte changed, a number replaced by one at the edge of its
range, a stretch taken out, doubled, moved or replaced by a stretch of another seed, the end cut off. The same generator
state makes the same inputs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from random import Random

_STEPS_MAX = 8
_STRETCH_BYTES_MAX = 64
_EDGES = (
    0,
    1,
    -1,
    2,
    0x7F,
    0x80,
    0xFF,
    0x7FFF,
    0x8000,
    0xFFFF,
    1 << 24,
    0x7FFF_FFFF,
    0x8000_0000,
    (1 << 63) - 1,
    1 << 63,
)


def mutations(seeds: Sequence[bytes], random: Random, *, bytes_max: int) -> Iterator[bytes]:
    """Endless inputs of at most `bytes_max` bytes. Without seeds they are made of the empty one."""
    pool = list(seeds) or [b""]
    while True:
        data = bytearray(random.choice(pool))
        for _ in range(random.randint(1, _STEPS_MAX)):
            random.choice(_STEPS)(data, random, pool)
        yield bytes(data[:bytes_max])


def _flip(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] ^= 1 << random.randrange(8)


def _set(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    if data:
        data[random.randrange(len(data))] = random.randrange(256)


def _edge(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    size = random.choice((1, 2, 4, 8))
    number = random.choice(_EDGES) & (1 << 8 * size) - 1
    at = random.randint(0, len(data))
    data[at : at + size] = number.to_bytes(size, random.choice(("big", "little")))


def _step(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    """A number that is a little more or less than it was, as a length that is one off."""
    size = random.choice((1, 2, 4))
    at = random.randint(0, max(0, len(data) - size))
    order = random.choice(("big", "little"))
    number = int.from_bytes(data[at : at + size], order) + random.randint(-16, 16)
    data[at : at + size] = (number & (1 << 8 * size) - 1).to_bytes(size, order)


def _take_out(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    del data[_stretch(data, random)]


def _double(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    stretch = _stretch(data, random)
    data[stretch.start : stretch.start] = data[stretch] * random.choice((1, 1, 2, 20))


def _move(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    stretch = _stretch(data, random)
    moved = data[stretch]
    del data[stretch]
    at = random.randint(0, len(data))
    data[at:at] = moved


def _splice(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    other = random.choice(pool)
    at = random.randint(0, len(data))
    data[at : at + random.choice((0, _STRETCH_BYTES_MAX))] = other[_stretch(other, random)]


def _cross(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    other = random.choice(pool)
    data[random.randint(0, len(data)) :] = other[random.randint(0, len(other)) :]


def _insert(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    at = random.randint(0, len(data))
    data[at:at] = random.randbytes(random.randint(1, _STRETCH_BYTES_MAX))


def _cut(data: bytearray, random: Random, pool: Sequence[bytes]) -> None:
    del data[random.randint(0, len(data)) :]


def _stretch(data: bytes | bytearray, random: Random) -> slice:
    start = random.randint(0, len(data))
    return slice(start, min(len(data), start + random.randint(1, _STRETCH_BYTES_MAX)))


_Step = Callable[[bytearray, Random, Sequence[bytes]], None]
# Small changes are the ones that get far.
_STEPS: Sequence[_Step] = (
    *(_flip, _flip, _set, _set, _edge, _edge, _edge, _step, _step),
    *(_take_out, _double, _move, _splice, _cross, _insert, _cut),
)
