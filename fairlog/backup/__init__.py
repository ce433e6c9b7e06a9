"""Backups: made from a running node, taken over by the node that starts in one.

    manifest         what a backup says about itself                                       pure
    source           may this directory be backed up now?
    moment           read transactions of all shards, as of one instant
    settling         what a stopped node of several shards has decided is finished first
    making           `fairlog backup`: data logs, then cluster store, then the manifest
    copied_logs      the data logs as they were copied
    group_journals   what the journals say about sinks around the time of the copy
    fences           which batches of sinks are in the copy                                pure
    taking_over      the first start in a backup makes an ordinary data directory of it

docs/decisions/0029-backups-without-journals.md explains why a backup has no journals, and what this means for
producers and sinks.
"""
