"""What ends a batch, or keeps one from being planned, when a fragment is stopped."""

from __future__ import annotations


class StoppedError(Exception):
    """The fragment is being stopped. A batch that was planned is replayed when it starts again."""
