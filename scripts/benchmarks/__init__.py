"""The scenarios of scripts/bench.py, one per module, and the report that runs them."""
