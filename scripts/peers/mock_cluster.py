"""The program of the mock peer: a process that only runs librdkafka's mock cluster.

    python mock_cluster.py      prints HOST:PORT, then answers each line on standard input until that ends:
                                `NAME PARTITIONS` makes the topic and is answered with `ok` or with an error

The mock is a broker inside librdkafka, written for its own tests: it keeps up to 5 MB per partition in memory, writes
nothing, and answers at once from a thread of its own, in C. The client library does not offer it, but its C functions
are in the client's extension module.
"""

from __future__ import annotations

import ctypes
import sys

import confluent_kafka.cimpl

_PRODUCER = 0
_NO_ERROR = 0


def main() -> int:
    library = ctypes.CDLL(confluent_kafka.cimpl.__file__)
    library.rd_kafka_conf_new.restype = ctypes.c_void_p
    library.rd_kafka_conf_set.argtypes = [
        ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t
    ]  # fmt: skip
    library.rd_kafka_new.restype = ctypes.c_void_p
    library.rd_kafka_new.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t]
    library.rd_kafka_mock_cluster_new.restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_new.argtypes = [ctypes.c_void_p, ctypes.c_int]
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    library.rd_kafka_mock_cluster_bootstraps.argtypes = [ctypes.c_void_p]
    library.rd_kafka_mock_topic_create.restype = ctypes.c_int
    library.rd_kafka_mock_topic_create.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]

    error = ctypes.create_string_buffer(512)
    configuration = library.rd_kafka_conf_new()
    library.rd_kafka_conf_set(configuration, b"log_level", b"0", error, len(error))
    # A cluster belongs to a client; this one has no broker to go to, and sleeps.
    client = library.rd_kafka_new(_PRODUCER, configuration, error, len(error))
    cluster = library.rd_kafka_mock_cluster_new(client, 1) if client else None
    if not cluster:
        sys.exit(f"librdkafka made no mock cluster: {error.value.decode() or 'it does not say why'}")
    print(library.rd_kafka_mock_cluster_bootstraps(cluster).decode(), flush=True)
    for line in sys.stdin:
        name, partitions = line.split()
        code = library.rd_kafka_mock_topic_create(cluster, name.encode(), int(partitions), 1)
        print("ok" if code == _NO_ERROR else f"librdkafka's error {code}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
