"""The native protocol, which a node serves besides Kafka's (docs/formats/native-protocol.md).

    socket ──▶ Kafka's listener ──▶ NativeProtocol ──▶ frames ──▶ parse_request_untrusted ──▶ an op ──▶ answer

A second protocol on Kafka's port (`fairlog/edge/protocols.py`): neither protocol knows the other.
"""
