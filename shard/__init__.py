"""A shard: all that one event loop owns of a node, put together from the rooms below.

`directory` says where its files lie, `partitions` is the table of its partitions with the copier after them,
`participant` does what coordinators say, `offsets` writes to its offsets logs, and `shard` puts these together with the
coordinator, the LMDB environment, the leader epoch and the failure. A node is a list of shards and the edge that serves
them.
"""
