"""Kafka's protocol: `connection` reads frames, `router` decodes them, `handlers` has one module per API.

Only this package and the command line know API numbers and error codes.
"""
