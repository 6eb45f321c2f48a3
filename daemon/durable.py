"""Files that survive a crash: whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from daemon.peering.folder_transfer import sync_folder


def write_durably(path: Path, data: bytes, mode: int = 0o640) -> None:
    """Put ``data`` at ``path`` in one step: after a crash there is the old content or the new, never a part."""
    temporary = path.with_name(f".{path.name}.new")
    with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, mode), "wb") as file:  # noqa: PTH123 (a mode)
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    sync_folder(path.parent)


def remove_durably(path: Path) -> None:
    """Delete the file at ``path``, if it is there, so that it stays deleted."""
    path.unlink(missing_ok=True)
    sync_folder(path.parent)
