"""A partition's first offset and end, asked of its leader by librdkafka, also while that is changing.

librdkafka asks the leader of its cached metadata, once. If the shard has another owner by then, the answer is "not
leader": librdkafka forgets what it had cached and gives the error to its caller, who is to ask again. So is a caller
whose node was restarted a moment ago: the client then knows no leader and says "unknown partition".
"""

from __future__ import annotations

import time

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

ANSWER_S = 15.0
PATIENCE_S = 30.0
"""For a client to find the leader again: mostly a tenth of a second."""
PAUSE_S = 0.05
PASSING = frozenset(
    {
        KafkaError._UNKNOWN_PARTITION,
        KafkaError._TRANSPORT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.OFFSET_NOT_AVAILABLE,
    }
)


def watermarks(consumer: Consumer, topic: str, partition: int) -> tuple[int, int]:
    """Asked now (ListOffsets), not remembered from a fetch; `KafkaException` if no leader answers for `PATIENCE_S`."""
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() not in PASSING or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)
