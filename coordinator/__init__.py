"""Who may commit what, and in which order: the transactions of each transactional id.

`states` has the table of states, `machine` the rules (pure), `service` is what the node calls, `messages` what is said
to the leaders of partitions. docs/transactions.md tells it in one piece.
"""
