"""The node that joins the rooms: begin with `node`, which puts it together.

`broker` is what the handlers of Kafka's requests see of it.
"""

__version__ = "0.1.0"
"""The program's. pyproject.toml reads it from here, so that a checkout knows it, too."""
