"""Files that survive a crash: whole or not at all.

What the disk refuses now it may take later, when somebody has made room, say: so that is an UnavailableError, which
whoever has something to write down handles as it does a peer that does not answer.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager, suppress
from pathlib import Path

from sbon.errors import UnavailableError

#: A replica is stored with each batch: no threads are started for it each time.
_syncing = ThreadPoolExecutor(8, thread_name_prefix="sync")


@contextmanager
def on_disk(path: Path) -> Iterator[None]:
    """Inside the block something is done at ``path``. Raises UnavailableError for what the disk refuses."""
    try:
        yield
    except OSError as error:
        raise UnavailableError(f"{path} cannot be used ({error.strerror or error}): see its disk") from error


def read_if_there(path: Path) -> bytes | None:
    """What is in the file, None if there is none. Raises UnavailableError if that cannot be said now."""
    with on_disk(path), suppress(FileNotFoundError, NotADirectoryError):
        return path.read_bytes()
    return None


def write_durably(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Put ``data`` at ``path`` in one step: after a crash there is the old content or the new, never a part.

    Raises UnavailableError if the disk refuses; then the old content is there, or, if it fails at the last moment, the
    new one.
    """
    temporary = path.with_name(f".{path.name}.new")
    with on_disk(path):
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode)
            with open(descriptor, "wb") as file:  # noqa: PTH123 (a mode)
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(path)
        except OSError:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)  # on a full disk, what was written of it takes room
            raise
        sync(path.parent)


def remove_durably(path: Path) -> None:
    """Delete the file at ``path``, if it is there, so that it stays deleted. Raises UnavailableError as above."""
    with on_disk(path):
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
    """Make the content of a file durable, or the names in a folder. Raises UnavailableError as above."""
    with on_disk(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sync_all(paths: Iterable[Path]) -> None:
    """Files and folders, side by side: a file system with a journal writes it once for many of them, and a move or a
    replica has some dozens. Raises UnavailableError as above."""
    under_way = [_syncing.submit(sync, path) for path in paths]
    wait(under_way)
    for one in under_way:
        one.result()
