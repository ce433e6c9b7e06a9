"""The mark of each copy of a shard (docs/formats/stream-mark.md): it is whole, and of the shard's own stream."""

from __future__ import annotations

from collections.abc import Iterator

from fairlog.verify.findings import Summary, Violation
from shard.directory import ShardDirectory
from shard.stream_mark import decode_mark_untrusted


def check_stream_mark(shard: ShardDirectory, metadata_stream: str, summary: Summary) -> Iterator[Violation]:
    """A copy without a mark is read from the stream's beginning. Raises OSError."""
    where = shard.name_of(shard.stream_mark)
    try:
        found = decode_mark_untrusted(shard.stream_mark.read_bytes())
    except FileNotFoundError:
        return
    if found is None:
        yield Violation(where, "is damaged: the node makes the copy anew when the shard's directory is moved away")
        return
    stream, _ = found
    due = f"{metadata_stream.rpartition('.')[0]}.shard-{shard.number}"
    if stream != due:
        yield Violation(where, f"is of the stream {stream}, and the shard's is {due}")
    summary.counts["marks of streams"] += 1
