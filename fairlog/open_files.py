"""The limit of open files of this process: what opens journals uses what the system grants."""

from __future__ import annotations

import resource

import structlog

log = structlog.get_logger()


def raise_open_files_limit() -> None:
    """Use what the system grants: connections and journals in use hold a file each, and shells start with 1024."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError) as error:
        log.warning("the limit of open files stays as it is", limit=soft, reason=str(error))
    else:
        if soft != hard:
            limit = "none" if hard == resource.RLIM_INFINITY else hard
            log.info("limit of open files raised", limit=limit, was=soft)
