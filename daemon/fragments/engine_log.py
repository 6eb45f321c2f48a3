"""What an engine writes on its standard output and error: one file in the daemon's state, within bounds."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, Final

#: The file grows to this, and what was written before is kept beside it, as much again.
MAX_LOG_BYTES: Final = 4 * 1024 * 1024
_LAST_LINES: Final = 2
#: So much of the log's end is looked through for the reason of an end.
_LOG_END_BYTES: Final = 64 * 1024
#: What Java says when it ends for want of memory (spark_bridge/session.py has it end then); much is said after it.
_OUT_OF_MEMORY: Final = "Terminating due to java.lang.OutOfMemoryError: "


class EngineLog:
    """The log of one engine after the other."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._start = 0  # where the latest engine's part begins

    def open(self) -> BinaryIO:
        """For the next engine to write to: at the end, wherever that is, so that :meth:`bound` may cut the file."""
        self.bound()
        with suppress(FileNotFoundError):
            self._start = self.path.stat().st_size
        return self.path.open("ab")

    def bound(self) -> None:
        """If it has grown too large begin it anew, while an engine writes to it or not. What is written in between is
        lost. Raises OSError if there is no room; then nothing is kept of it beside the file."""
        with suppress(FileNotFoundError):
            if self.path.stat().st_size <= MAX_LOG_BYTES:
                return
            with self.path.open("rb+") as file:
                try:
                    file.seek(-MAX_LOG_BYTES, os.SEEK_END)
                    self.path.with_suffix(".log.1").write_bytes(file.read(MAX_LOG_BYTES))
                finally:
                    file.truncate(0)
                    self._start = 0

    def last_words(self, memory_mb: int) -> str:
        """Why the latest engine has ended, in one line: the last ones that it wrote, or that it had no memory."""
        with suppress(OSError), self.path.open("rb") as file:
            file.seek(max(self._start, file.seek(0, os.SEEK_END) - _LOG_END_BYTES))
            lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
            if exhausted := [line for line in lines if line.startswith(_OUT_OF_MEMORY)]:
                what = f"{exhausted[-1].removeprefix(_OUT_OF_MEMORY)}; its heap is {memory_mb} MB"
                return f"Java had no memory left ({what}): give it more with engine.memory_mb, or it less to do"
            own = [line for line in lines if line.startswith("sbon engine ")]
            return " / ".join(own[-1:] or lines[-_LAST_LINES:])
        return ""
