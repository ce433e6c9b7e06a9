"""The node that joins the rooms: begin with `node`, which puts it together, and `leaders`, which writes.

`broker` is what the handlers of Kafka's requests see of it.
"""
