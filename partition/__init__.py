"""The leader of a partition: what its journal's records mean, which of them are written, and what that places.

`records` are what a local journal holds, `state` is the fold over them (pure), `produce` decides on batches, `modes`
says how transactions are kept, `placed` is what goes to the copier.
"""
