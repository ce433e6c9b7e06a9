"""ApiVersions: the APIs that this node serves, and their versions.

Behaviour
- Always the first request of a connection. From version 3 on the client names its software. The connection remembers
  the name, because the best answer to a transactional Produce depends on it.
- Only APIs that are served are listed, because clients use what is listed.
- Features and their levels (KIP-584) are those of `fairlog.cluster.features`; features at level 0 are not among the
  finalized ones.

Version notes
- 1 and 2 add the throttle time. 3 is flexible in the request and in the answer's body, but the header of the answer is
  unchanged (KIP-511), so that a client can read the refusal of a version that the node does not know. It adds the
  features. 4 is for clients that can read a feature whose lowest level is 0: before, such a feature is left out of the
  supported ones (KAFKA-17492).
- A version above ours is answered in version 0 with UNSUPPORTED_VERSION and the versions of this API alone (KIP-511);
  the router does this. Clients then ask again in the highest version that both know, and send their name. With a full
  list they would not need the second request, and franz-go would never send its name.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from fairlog.cluster.features import FeatureLevels
from fairlog.kafka.api import CLIENT_NAME_MAX, Answer, Api, Context, Versions
from fairlog.kafka.errors import ErrorCode
from fairlog.kafka.wire import Reader, Writer

SERVED = Versions(0, 4)
FLEXIBLE_FROM = 3
_LEVEL_0_FROM = 4

_SUPPORTED_TAG, _EPOCH_TAG, _FINALIZED_TAG = 0, 1, 2


@dataclass(frozen=True, slots=True)
class ApiVersionsRequest:
    software_name: str = ""
    software_version: str = ""


def decode(reader: Reader, version: int) -> ApiVersionsRequest:
    if version < 3:
        return ApiVersionsRequest()
    request = ApiVersionsRequest(reader.string(), reader.string())
    reader.end_of_fields()
    return request


async def handle(context: Context, request: ApiVersionsRequest) -> Answer:
    if request.software_name:
        context.client.software_name = request.software_name[:CLIENT_NAME_MAX]
        context.client.software_version = request.software_version[:CLIENT_NAME_MAX]
    return encode(context.version, ErrorCode.NONE, context.served, context.broker.cluster.features)


def encode_unsupported() -> Answer:
    """The body of the answer to a request in a version that is not served."""
    return encode(0, ErrorCode.UNSUPPORTED_VERSION, {API.key: SERVED})


def encode(
    version: int, error: ErrorCode, served: Mapping[int, Versions], features: FeatureLevels | None = None
) -> Answer:
    """The answer's body in the given version; `features` from version 3 on."""
    writer = Writer(flexible=version >= FLEXIBLE_FROM)

    def api(item: tuple[int, Versions]) -> None:
        key, versions = item
        writer.int16(key)
        writer.int16(versions.min)
        writer.int16(versions.max)
        writer.end_of_fields()

    writer.int16(error)
    writer.array(served.items(), api)
    if version >= 1:
        writer.int32(0)  # throttle time
    if features is None or version < FLEXIBLE_FROM:
        writer.end_of_fields()
    else:
        writer.tagged_fields(_features(version, features))
    return writer.parts()


def _features(version: int, features: FeatureLevels) -> Iterator[tuple[int, bytes]]:
    """The tagged fields."""
    supported = [
        (row.name, row.level_min, row.level_max)
        for row in features.supported.values()
        if row.level_min or version >= _LEVEL_0_FROM
    ]
    if supported:
        yield _SUPPORTED_TAG, _feature_ranges(supported)
    yield _EPOCH_TAG, struct.pack(">q", features.epoch)
    finalized = [(name, level, level) for name, level in features.finalized().items()]
    if finalized:
        yield _FINALIZED_TAG, _feature_ranges(finalized)


def _feature_ranges(rows: Sequence[tuple[str, int, int]]) -> bytes:
    """An array of names, each with two levels. Of a finalized feature both are the same."""
    writer = Writer(flexible=True)

    def row(entry: tuple[str, int, int]) -> None:
        name, first, second = entry
        writer.string(name)
        writer.int16(first)
        writer.int16(second)
        writer.end_of_fields()

    writer.array(rows, row)
    return b"".join(writer.parts())


API = Api(18, "ApiVersions", SERVED, FLEXIBLE_FROM, decode, handle, (), answer_header_tagged=False)
