"""The SASL mechanisms, by name. Pure."""

from __future__ import annotations

PLAIN = "PLAIN"
OAUTHBEARER = "OAUTHBEARER"

MECHANISMS = ("SCRAM-SHA-256", "SCRAM-SHA-512", PLAIN, OAUTHBEARER)
"""All that there are, in the order in which they are offered."""
