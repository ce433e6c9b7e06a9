"""Journals: append, flush, recover, replay. They know nothing of the other rooms.

`journal` is a row of frames in files, `flush` puts it on disk, `recovery` and `reopen` find it again. On it stand the
two kinds: a partition's local journal (`local_journal`; its meaning is in `local_state`) and `group_journal`.
"""
