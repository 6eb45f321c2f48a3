from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

import pytest


@contextmanager
def full_disk(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside the block no daemon of this process can make anything durable."""

    def refuse(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr("os.fsync", refuse)
        yield
