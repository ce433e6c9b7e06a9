"""Sink commits: the batches of a sink, written by many lanes and published by one decision.

Faces: `Lane`, `CommitBatch` and their answers (messages.py), carried out by `coordinator.service.Coordinator`.
"""
