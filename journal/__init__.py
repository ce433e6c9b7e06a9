"""A write-ahead log: append, flush, recover, replay. It does not know what its frames mean.

`journal` is a row of frames in files, `flush` puts it on disk, `recovery` and `reopen` find it again. What a partition
writes into it is in `partition`, what a coordinator writes is in `coordinator`.
"""
