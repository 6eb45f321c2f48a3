"""A folder in which files and folders come and go while it is looked at, as Spark's do: its files and its size."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 5.0


def files_under(folder: Path) -> Iterator[Path]:
    """All files under ``folder`` that are still there when their turn comes to be listed."""
    for parent, _, names in os.walk(folder):  # passes over folders that are gone, which Path.rglob raises for
        for name in names:
            yield Path(parent, name)


def folder_bytes(folder: Path) -> int:
    """Size of all files under ``folder``; files and folders that vanish meanwhile do not count."""
    total = 0
    for path in files_under(folder):
        with suppress(FileNotFoundError):
            total += path.lstat().st_size
    return total


class FolderSize:
    """Of a folder with many files: looked at again when it may have changed, and not too often."""

    def __init__(self, look: Callable[[], int]) -> None:
        """``look()`` gives the bytes."""
        self._look = look
        self._bytes = 0
        self._batch_id = -1
        self._due_s = 0.0

    def after(self, batch_id: int, now_s: float) -> int:
        """In bytes, after that batch or one a few seconds earlier."""
        if batch_id != self._batch_id and now_s >= self._due_s:
            self._bytes = self._look()
            self._batch_id, self._due_s = batch_id, now_s + _PERIOD_S
        return self._bytes
