"""Carries the messages of `shard.conversation` between the processes of one data directory, over TCP.

    `codec`      a message as CBOR, and back
    `handshake`  both sides prove that they know the secret of the data directory
    `sealing`    what makes a frame one of this connection's, in its place
    `secret`     the file of the secret
    `peers`      the connections: the shell around all of these

The bytes are in docs/formats/interbroker.md.
"""
