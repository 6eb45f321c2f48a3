"""One engine at a time in a fragment's folder.

Two processes write there: this one (the link log, the inboxes) and its Java machine (the checkpoint), and either may
outlive the other for a moment when something is killed. So both hold a lock: ours is a BSD lock, Java's a POSIX lock on
the same file; Linux keeps the two kinds apart, and whoever comes next needs both.
"""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from sbon.errors import UnavailableError

_POLL_S = 0.1


class FolderLock:
    """Held from construction until :meth:`release` or the death of both processes.

    Waits up to ``wait_s`` for a predecessor that is still dying, then raises UnavailableError.
    """

    def __init__(self, spark: SparkSession, folder: Path, wait_s: float = 20.0) -> None:
        path = folder / "lock"
        deadline = time.monotonic() + wait_s
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
        self._channel: Any = None
        jvm: Any = spark.sparkContext._jvm
        while True:
            if self._lock_here() and self._lock_in_java(jvm, path):
                return
            if time.monotonic() > deadline:
                os.close(self._descriptor)
                raise UnavailableError(f"{folder} is in use by another engine: stop that one, or wait for it to end")
            time.sleep(_POLL_S)

    def release(self) -> None:
        """Let the next one in. Idempotent."""
        if self._channel is not None:
            self._channel.close()
            self._channel = None
            os.close(self._descriptor)

    def _lock_here(self) -> bool:
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def _lock_in_java(self, jvm: Any, path: Path) -> bool:
        channel = jvm.java.io.RandomAccessFile(str(path), "rw").getChannel()
        if channel.tryLock() is None:
            channel.close()
            return False
        self._channel = channel
        return True
