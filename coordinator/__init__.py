"""Who may commit what, and in which order: the transactions of each transactional id.

`states` has the table of states, `machine` the rules (pure), `executor` carries them out, `service` is what the node
calls, `messages` are those to the leaders of partitions. docs/transactions.md explains it in one piece.
"""
