"""A record batch in readable form: its header, and optionally its records. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from datalog.batch import BadBatch, BatchHeader, Buffer, check_crc, parse_stored_header
from datalog.control_batch import decode_control_batch
from datalog.decoding import decode_records_untrusted
from datalog.decompress import UnreadableRecords
from fairlog.inspection.lines import Line


def show_batch(data: Buffer, byte: int, *, records: bool, depth: int) -> Iterator[Line]:
    """The batch that begins at `byte` of its file."""
    try:
        header = parse_stored_header(data)
    except BadBatch as error:
        yield Line("no batch", {"bytes": len(data)}, f"byte {byte}: {error}", depth)
        return
    damage = None
    try:
        check_crc(header, data)
    except BadBatch as error:
        damage = f"byte {byte}: {error}"
    if header.size_bytes != len(data):
        damage = f"byte {byte}: the batch has {header.size_bytes} bytes by its header, {len(data)} are there"
    fields = batch_fields(header)
    if header.control:
        try:
            marker = decode_control_batch(data)
            fields |= {
                "marker": "commit" if marker.committed else "abort",
                "coordinator_epoch": marker.coordinator_epoch,
            }
        except BadBatch as error:
            damage = damage or f"byte {byte}: {error}"
    yield Line("batch", fields, damage, depth)
    if not records or damage is not None:
        return
    try:
        for record in decode_records_untrusted(header, data):
            shown: dict[str, object] = {
                "offset": record.offset,
                "timestamp_ms": record.timestamp_ms,
                "key": record.key,
                "value": record.value,
            }
            if record.headers:
                shown["headers"] = [[name, value] for name, value in record.headers]
            yield Line("record", shown, None, depth + 1)
    except UnreadableRecords as error:
        # What a producer has written behind a good header is the producer's; it is no damage of ours.
        yield Line("records cannot be shown", {"why": str(error)}, None, depth + 1)


def batch_fields(header: BatchHeader) -> dict[str, object]:
    """What is worth reading of the 61 bytes."""
    fields: dict[str, object] = {
        "base_offset": header.base_offset,
        "records": header.record_count,
        "bytes": header.size_bytes,
        "max_timestamp_ms": header.max_timestamp,
        "leader_epoch": header.partition_leader_epoch,
        "crc": f"{header.crc:08x}",
    }
    if header.producer_id >= 0:
        fields["producer"] = f"{header.producer_id}.{header.producer_epoch}"
        fields["sequence"] = header.base_sequence
    words = {
        "transactional": header.transactional,
        "control": header.control,
        "log_append_time": header.log_append_time,
    }
    fields.update({word: True for word, is_so in words.items() if is_so})
    if header.compression.value:
        fields["compression"] = header.compression
    return fields
