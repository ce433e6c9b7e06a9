"""Backups: made from a running node, taken over by the node that starts in one.

    manifest      what a backup says of itself                                          pure
    source        may this directory be backed up now?
    making        `fairlog backup`: data logs, then cluster store, then the manifest
    taking_over   the first start in a backup makes an ordinary data directory of it

Why there are no journals in a backup, and what becomes of producers: docs/decisions/0029-backups-without-journals.md.
"""
