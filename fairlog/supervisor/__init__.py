"""Several processes that serve the shards of one data directory, and the process that starts them and keeps them alive.

    addresses, machine, assignment    rules, tested without processes
    allotment                         which process serves which shard, on disk
    reserved_ports, supervising       what the supervisor does with them
    control                           what an operator can ask of it
    child                             what a started process does

With one process and one shard none of this runs.
"""
