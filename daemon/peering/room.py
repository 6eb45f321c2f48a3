"""Room on this host's disk for what others send: asked for before anything is on its way."""

from __future__ import annotations

import shutil
from pathlib import Path

from sbon.errors import SbonError

#: Stays free of what others send: this host's own logs, records and fragments are written there, too.
RESERVE_BYTES = 64 * 1024 * 1024


def free_bytes(folder: Path) -> int:
    """What is left on the disk of ``folder``."""
    return shutil.disk_usage(folder).free


def check_room(node: str, folder: Path, what: str, wanted_bytes: int) -> None:
    """Raises SbonError if there is too little of it on ``node``, this host, for ``what`` of ``wanted_bytes``."""
    needed_bytes = wanted_bytes + RESERVE_BYTES
    left_bytes = free_bytes(folder)
    if needed_bytes > left_bytes:
        raise SbonError(
            f"{node} has no room for {what} of {_mb(wanted_bytes)}: it would need {_mb(needed_bytes)} and has "
            f"{_mb(left_bytes)} left on the disk of {folder}: free some there"
        )


def _mb(size_bytes: int) -> str:
    return f"{size_bytes / 1e6:,.1f} MB"
