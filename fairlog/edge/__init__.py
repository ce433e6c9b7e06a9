"""What the protocols of the one listener share: frames, their limits of memory, statistics, and the first bytes.

Kafka's protocol (`fairlog/kafka`) and the native one (`fairlog/native`) know this package and not each other.
"""
