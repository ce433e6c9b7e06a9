"""Backups: made from a running node, taken over by the node that starts in one.

    manifest         what a backup says of itself                                          pure
    source           may this directory be backed up now?
    making           `fairlog backup`: data logs, then cluster store, then the manifest
    copied_logs      the data logs as they were copied
    group_journals   what the journals tell of sinks around the copy's moment
    fences           which batches of sinks are in the copy                                pure
    taking_over      the first start in a backup makes an ordinary data directory of it

Why there are no journals in a backup, and what becomes of producers and of sinks:
docs/decisions/0029-backups-without-journals.md.
"""
