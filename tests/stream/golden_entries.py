"""The golden entries: every kind once, as its version wrote it, dumped as text that the format page shows.

python -m tests.stream.golden_entries      writes them anew, for a new version of the format only
"""

from __future__ import annotations

from pathlib import Path

from fairlog_types import LeaderEpoch
from stream.entry import (
    Buffer,
    EntryKind,
    JournalFrame,
    Owner,
    Seen,
    encode_entry,
    encode_fence,
    encode_frames,
    encode_hand_over,
    join_chains,
)
from tests.journal.golden_frames import hex_lines

GOLDEN = Path(__file__).parents[1] / "golden" / "stream-entries-1.txt"

EPOCH = LeaderEpoch(4)
OWNER = Owner("fairlog-2", bytes(range(16)))
SEEN = Seen(LeaderEpoch(3), 17, 0xC0FFEE11)
FRAMES = [
    JournalFrame("local/orders", b"a frame"),
    JournalFrame("local/orders", b"the next one of this journal"),
    JournalFrame("group/0", b"another journal's"),
]
BODY = b"".join(encode_frames(FRAMES))
CUT = 30

KINDS: list[tuple[str, EntryKind, int, Buffer, bool]] = [
    ("FENCE", EntryKind.FENCE, 0, encode_fence(OWNER, SEEN), False),
    ("FRAMES", EntryKind.FRAMES, 1, BODY, False),
    ("FRAMES, continued", EntryKind.FRAMES, 2, BODY[:CUT], True),
    ("FRAMES, the rest", EntryKind.FRAMES, 3, BODY[CUT:], False),
    ("HEARTBEAT", EntryKind.HEARTBEAT, 4, b"", False),
    ("HAND_OVER", EntryKind.HAND_OVER, 5, encode_hand_over("fairlog-0"), False),
    ("HAND_OVER to whoever comes first", EntryKind.HAND_OVER, 5, encode_hand_over(None), False),
]


def golden_entries() -> list[tuple[str, bytes]]:
    """One epoch; an entry that has the sequence of the one before stands in its place."""
    entries, chains = list[tuple[str, bytes]](), {-1: 0}
    for name, kind, sequence, body, continued in KINDS:
        data, chain = encode_entry(kind, EPOCH, sequence, chains[sequence - 1], body, continued=continued)
        chains[sequence] = join_chains(SEEN.chain, chain) if sequence == 0 else chain
        entries.append((name, data))
    return entries


def dump() -> str:
    lines: list[str] = []
    for name, data in golden_entries():
        lines += [name, *hex_lines(data)]
    return "\n".join(lines) + "\n"


def golden_bytes() -> list[bytes]:
    """The entries that the file shows."""
    entries: list[bytes] = []
    for line in GOLDEN.read_text().splitlines():
        if line[:8].strip("0123456789abcdef") or not line[8:].startswith("  "):
            entries.append(b"")
        else:
            entries[-1] += bytes.fromhex(line[10:])
    return entries


if __name__ == "__main__":
    GOLDEN.write_text(dump())
