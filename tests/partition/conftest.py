"""Journals on real files."""

from __future__ import annotations

from tests.journals_on_files import disk, flusher, open_journal

__all__ = ["disk", "flusher", "open_journal"]
