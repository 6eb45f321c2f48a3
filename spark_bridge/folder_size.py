"""How large a fragment is: the size of its folder."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

_PERIOD_S = 5.0


def folder_bytes(folder: Path) -> int:
    """Size of all files under ``folder``; files and folders that vanish meanwhile do not count."""
    total = 0
    for parent, _, names in os.walk(folder):  # passes over folders that are gone, which Path.rglob raises for
        for name in names:
            with suppress(FileNotFoundError):
                total += os.lstat(os.path.join(parent, name)).st_size  # noqa: PTH118
    return total


class FolderSize:
    """Of a folder with many files: looked at again when it may have changed, and not too often."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bytes = 0
        self._batch_id = -1
        self._due_s = 0.0

    def after(self, batch_id: int, now_s: float) -> int:
        """In bytes, after that batch or one a few seconds earlier."""
        if batch_id != self._batch_id and now_s >= self._due_s:
            self._bytes = folder_bytes(self._folder)
            self._batch_id, self._due_s = batch_id, now_s + _PERIOD_S
        return self._bytes
