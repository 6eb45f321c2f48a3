"""Files that survive a crash: whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

#: A replica is stored with each batch: no threads are started for it each time.
_syncing = ThreadPoolExecutor(8, thread_name_prefix="sync")


def write_durably(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Put ``data`` at ``path`` in one step: after a crash there is the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:  # noqa: PTH123 (a mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync(path.parent)


def remove_durably(path: Path) -> None:
    """Delete the file at ``path``, if it is there, so that it stays deleted."""
    path.unlink(missing_ok=True)
    sync(path.parent)


def remove_at_once(folder: Path) -> None:
    """Delete ``folder``, if it is there, in one step for whoever looks: nobody takes what is left of it for all.

    What the disk refuses to let go stays, whole.
    """
    gone = folder.with_name(f".{folder.name}.gone")
    shutil.rmtree(gone, ignore_errors=True)
    with suppress(OSError):
        folder.rename(gone)
    shutil.rmtree(gone, ignore_errors=True)


def sync(path: Path) -> None:
    """Make the content of a file durable, or the names in a folder."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Files and folders, side by side: a file system with a journal writes it once for many of them, and a move or a
    replica has some dozens."""
    under_way = [_syncing.submit(sync, path) for path in paths]
    wait(under_way)
    for one in under_way:
        one.result()
