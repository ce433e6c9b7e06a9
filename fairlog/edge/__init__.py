"""What the protocols of the one listener share: frames, what they may take of the memory, counts, and the way in.

Kafka's protocol (`fairlog/kafka`) and the native one (`fairlog/native`) know this package and not each other.
"""
