"""From a frame to the handler of its API: the request header, the version, the decoding.

Whatever the bytes are, `start` ends in one of three ways: a started request, `Malformed` or `HangUp`. Any other
exception of a handler is our own fault and passes through; the connection logs it and closes.

Kafka closes the connection on an API or version that it does not serve, since it cannot know the format of the answer's
header. The one exception is ApiVersions, which clients send in the highest version they know, before they know
anything: it is answered in version 0 with UNSUPPORTED_VERSION and the versions in which it can be asked.

What the client may do is looked up before, and handlers ask for it (`fairlog.kafka.checks`).

With several brokers, each request sees the topics and configs that any of them has changed before it came: a client
that was told by one broker of a new topic may ask the next one about it. And each request sees every commit that was
answered before it came: what is due is placed first.

On a listener that asks who a client is, it gets nothing but the APIs by which it signs in until it has, and nothing
when its session is over: the connection is closed, as Kafka does.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from time import perf_counter
from typing import Any, NamedTuple

from fairlog.broker import Broker
from fairlog.edge.malformed import Malformed
from fairlog.edge.statistics import ApiStatistics, EdgeStatistics
from fairlog.kafka.answer_budget import AnswerBudget
from fairlog.kafka.api import CLIENT_NAME_MAX, Answer, Api, Client, Context, Deferred, EncodedAnswers, HangUp
from fairlog.kafka.fetch_sessions import FetchSessionCache
from fairlog.kafka.handlers import api_17_sasl_handshake, api_18_api_versions, api_36_sasl_authenticate
from fairlog.kafka.wire import Buffer, Reader, Writer
from fairlog.security.sign_in import SignIn


class Started(NamedTuple):
    """A request that its handler has accepted.

    `answer` is complete (header and body), or deferred (its body must then still be passed to `finished`), or None.
    """

    api_name: str
    version: int
    correlation_id: int
    answer: Answer | Deferred | None
    header: Answer
    statistics: ApiStatistics
    started_s: float
    """The value of `perf_counter` when the request was complete."""

    def finished(self, body: Answer) -> Answer:
        """The whole answer, when the deferred body is there."""
        return [*self.header, *body]


class Router:
    """Starts requests. One per node; holds no state of any connection."""

    def __init__(self, broker: Broker, apis: Iterable[Api[Any]]) -> None:
        self._broker = broker
        self._access = broker.access
        self._is_alone = broker.is_alone  # asked for each request; another number of shards begins with a start
        self._apis: Mapping[int, Api[Any]] = {api.key: api for api in apis}
        self._served = {key: api.served for key, api in sorted(self._apis.items()) if api.advertised}
        self._encoded = EncodedAnswers()
        self.answers = AnswerBudget()
        """For all connections."""
        self.fetch_sessions = FetchSessionCache(broker.settings.requests.fetch_session_cache_slots)
        self.has_ended = broker.has_ended
        """Whether no answer is sent any more."""
        self._statistics = {key: ApiStatistics(api.name) for key, api in self._apis.items()}
        self.statistics = EdgeStatistics(self._statistics, broker.quotas.throttles)
        self.quotas = broker.quotas

    def overlapping_api(self, start: Buffer) -> int | None:
        """The API key of a request with this beginning, if requests of this API may overlap each other
        (`Api.overlaps`).
        """
        key = int.from_bytes(start[:2], "big")
        api = self._apis.get(key)
        return key if api is not None and api.overlaps and len(start) >= 2 else None

    async def start(self, frame: Buffer, client: Client) -> Started:
        """Decode one request (the frame without its length) and hand it to its handler.

        Raises Malformed if the bytes are not a request, HangUp if the connection must be closed for another reason.
        """
        started_s = perf_counter()
        reader = Reader(frame)
        if client.sign_in is not None:
            if client.sends_bare_tokens:
                return await self._bare_token(client, frame, started_s)
            _require_signed_in(client.sign_in, frame)
        key, version, correlation_id = reader.int16(), reader.int16(), reader.int32()
        api = self._apis.get(key)
        if api is None:
            self.statistics.not_served += 1
            raise HangUp(f"API {key} (version {version}) is not served")
        statistics = self._statistics[key]
        statistics.note_request(len(frame))
        try:
            return await self._start(
                api, reader, version, correlation_id, client, statistics, started_s, request_bytes=len(frame)
            )
        except Exception:
            statistics.failed += 1
            raise

    async def _start(
        self,
        api: Api[Any],
        reader: Reader,
        version: int,
        correlation_id: int,
        client: Client,
        statistics: ApiStatistics,
        started_s: float,
        *,
        request_bytes: int,
    ) -> Started:
        if version not in api.served:
            return self._unsupported(api, version, correlation_id, statistics, started_s)
        flexible = version >= api.flexible_from
        try:
            client.client_id = (reader.legacy_nullable_string() or "")[:CLIENT_NAME_MAX]
            reader.flexible = flexible
            reader.end_of_fields()
            request = api.decode(reader, version)
        except Malformed as error:
            raise Malformed(f"{api.name} v{version}: {error}") from None
        context = Context(
            self._broker,
            client,
            version,
            flexible,
            self._served,
            self._encoded,
            self.answers,
            self.fetch_sessions,
            statistics.errors,
            request_bytes,
        )
        if not self._is_alone:
            await self._broker.cluster.notice()
        if self._access is not None:
            client.rights = self._access.rights(client.principal, client.host, client.rights)
        self._broker.coordinator.place_due()
        reply = await api.handle(context, request)
        header = Writer(flexible=flexible and api.answer_header_tagged)
        header.int32(correlation_id)
        header.end_of_fields()
        parts = header.parts()
        whole = [*parts, *reply] if isinstance(reply, list) else reply
        return Started(api.name, version, correlation_id, whole, parts, statistics, started_s)

    async def _bare_token(self, client: Client, frame: Buffer, started_s: float) -> Started:
        statistics = self._statistics[api_36_sasl_authenticate.API.key]
        statistics.note_request(len(frame))
        try:
            answer = await api_36_sasl_authenticate.answer_bare(client, bytes(frame))
        except Exception:
            statistics.failed += 1
            raise
        return Started(api_36_sasl_authenticate.API.name, 0, 0, [answer], [], statistics, started_s)

    def _unsupported(
        self, api: Api[Any], version: int, correlation_id: int, statistics: ApiStatistics, started_s: float
    ) -> Started:
        if api.key != api_18_api_versions.API.key:
            raise HangUp(f"{api.name} v{version} is not served, only {api.served.min} to {api.served.max}")
        header = Writer(flexible=False)
        header.int32(correlation_id)
        parts = header.parts()
        body = api_18_api_versions.encode_unsupported()
        return Started(api.name, version, correlation_id, [*parts, *body], parts, statistics, started_s)


_SIGNING_IN = (api_17_sasl_handshake.API.key, api_36_sasl_authenticate.API.key)


def _require_signed_in(sign_in: SignIn, frame: Buffer) -> None:
    """Raises HangUp if the request is not carried out now, whatever else is in it."""
    key = int.from_bytes(frame[:2], "big")
    if key in _SIGNING_IN or (key == api_18_api_versions.API.key and sign_in.is_choosing):
        return
    refusal = sign_in.refusal()
    if refusal is not None:
        raise HangUp(f"API {key}: {refusal}")
