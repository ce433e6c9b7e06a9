"""The brokers that the benchmark compares, started on loopback, each in a directory of its own."""
