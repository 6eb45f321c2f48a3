"""Files that survive a crash: whole or not at all."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

#: How often it is looked whether a full disk has room again.
ROOM_POLL_S = 1.0


def write_durably(path: Path, data: bytes) -> None:
    """Put ``data`` at ``path`` in one step: after a crash there is the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:
        temporary.unlink(missing_ok=True)  # on a full disk, what was written of it takes room
        raise
    sync_folder(path.parent)


def is_full(error: OSError) -> bool:
    """Whether there is no room on the disk, or none left for this user."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def write_when_there_is_room(
    write: Callable[[], T], note: Callable[[str | None], None], wait: Callable[[float], bool]
) -> T | None:
    """Call ``write`` again and again while the disk is full; its result, or None if ``wait(seconds)`` says to stop.

    ``note`` is told why nothing happens, and None once it goes on. Other errors are raised.
    """
    while True:
        try:
            result = write()
        except OSError as error:
            if not is_full(error):
                raise
            note(f"there is no room on the disk of this host ({error.filename}): free some, and it goes on")
            if wait(ROOM_POLL_S):
                return None
        else:
            note(None)
            return result


def sync_folder(folder: Path) -> None:
    """Make renames and removals in ``folder`` durable."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
