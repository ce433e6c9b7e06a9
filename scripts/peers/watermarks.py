"""A partition's first offset and end, asked of its leader by librdkafka, also after a restart or a change of leader.

librdkafka asks the leader of its cached metadata, once. If the partition has another leader by then, the answer is "not
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

RESTARTED = frozenset({KafkaError._UNKNOWN_PARTITION, KafkaError._TRANSPORT})
MOVED = RESTARTED | {
    KafkaError.NOT_LEADER_FOR_PARTITION,
    KafkaError.LEADER_NOT_AVAILABLE,
    KafkaError.OFFSET_NOT_AVAILABLE,
}


def watermarks(consumer: Consumer, topic: str, partition: int, *, leaders_change: bool) -> tuple[int, int]:
    """Asked now (ListOffsets), not remembered from a fetch.

    `KafkaException` if the leader does not answer within `ANSWER_S`, or there is none for `PATIENCE_S`; without
    `leaders_change` also if a node says that it is not the leader, which one that is alone must not say.
    """
    passing = MOVED if leaders_change else RESTARTED
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            return consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=ANSWER_S)
        except KafkaException as error:
            if error.args[0].code() not in passing or time.monotonic() > deadline:
                raise
        time.sleep(PAUSE_S)
