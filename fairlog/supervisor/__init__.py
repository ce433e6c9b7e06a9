"""Several processes that serve one data directory, a shard each, and the process that starts them and keeps them alive.

    addresses, machine, assignment    rules, tested without processes
    reserved_ports, supervising       what the supervisor does with them
    child                             what a started process does about its supervisor

With one process none of this runs.
"""
