"""The scenarios of scripts/bench.py, one per module; what runs them, and what makes tables and charts of the rows."""
