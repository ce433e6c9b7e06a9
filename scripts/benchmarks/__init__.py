"""The scenarios of scripts/bench.py, one per module; the runner, and the code for tables and charts."""
