"""Snapshots of a running fragment: its state after a batch that is committed, for those who keep replicas of it.

A snapshot is a folder like the fragment's own, without what came after that batch. Spark's checkpoint and the link log
consist of files that are only ever replaced, so hard links are enough; of the inboxes, which are databases, there is a
copy of the journal without the segments' bodies: what the batch has read is not read again, and what it has not is
pulled again.
"""

from __future__ import annotations

import logging
import os
import re
import shutil
import sqlite3
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from spark_bridge.changing_folder import files_under
from spark_bridge.offset_log import planned_batch
from spark_bridge.port_inbox import PassedError, PortInbox

_log = logging.getLogger(__name__)

_COMMIT_POLL_S = 0.01
_ATTEMPTS = 5
#: Files of Spark's that belong to one batch (offsets, commits) or to one version of the state; with their checksums.
_BATCH_FILE = re.compile(r"\.?(\d+)(\.crc)?")
_STATE_FILE = re.compile(r"\.?(\d+)(_[\w-]+)?\.(delta|snapshot|changelog|zip)(\.crc)?")
_SEGMENT_FILE = re.compile(r"(\d+)\.segment")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """``reads``: port -> producer -> the newest batch of it that is read for good in this state."""

    batch_id: int
    folder: Path
    reads: Mapping[str, Mapping[str, int]]


def newest_commit(checkpoint: Path) -> int:
    """The last batch that Spark will never run again, -1 if there is none."""
    commits = checkpoint / "commits"
    return max((int(path.name) for path in commits.glob("*") if path.name.isdigit()), default=-1)


def take(folder: Path, batch_id: int, target: Path, inboxes: Mapping[str, PortInbox]) -> Snapshot:
    """Put the state of the fragment in ``folder`` after the committed ``batch_id`` to ``target/<batch_id>``.

    Raises PassedError if the fragment has gone on too far for that; then a later batch is committed.
    """
    building, final = target / f".{batch_id}", target / str(batch_id)
    for attempt in range(_ATTEMPTS):
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir(parents=True)
        try:
            _link_files(folder, batch_id, building)
            break
        except FileNotFoundError:  # Spark has just deleted what it does not need any more
            if attempt == _ATTEMPTS - 1:
                raise
    ends = planned_batch(folder / "checkpoint", batch_id).port_ends()
    reads = {}
    (building / "ports").mkdir()
    for name, inbox in inboxes.items():
        reads[name] = inbox.export(building / "ports" / f"{name}.sqlite", ends.get(name, 0))
    shutil.rmtree(final, ignore_errors=True)
    building.rename(final)
    return Snapshot(batch_id, final, reads)


def _link_files(folder: Path, batch_id: int, building: Path) -> None:
    for path in files_under(folder / "checkpoint"):
        if _belongs(path, batch_id):
            _link(path, building / path.relative_to(folder))
    for path in (folder / "log").iterdir():
        segment = _SEGMENT_FILE.fullmatch(path.name)
        if path.name == "cursors" or (segment is not None and int(segment[1]) <= batch_id):
            _link(path, building / "log" / path.name)
    _link(folder / "signature", building / "signature")
    ended = folder / "ended"
    if ended.exists() and int(ended.read_text()) <= batch_id:
        _link(ended, building / "ended")


def _belongs(path: Path, batch_id: int) -> bool:
    if path.parent.name in ("offsets", "commits"):
        batch = _BATCH_FILE.fullmatch(path.name)
        return batch is not None and int(batch[1]) <= batch_id
    if "state" in path.parts and (version := _STATE_FILE.fullmatch(path.name)):
        return int(version[1]) <= batch_id + 1  # the state before the first batch has version 0
    return ".tmp" not in path.name


def _link(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    os.link(source, target)


class Snapshotter:
    """Takes a snapshot after each batch while somebody wants them, in a thread of its own.

    ``taken`` is told of each. One that cannot be taken is logged, and the next batch gives another chance: until then
    nothing more is let out.
    """

    def __init__(self, folder: Path, inboxes: Mapping[str, PortInbox], taken: Callable[[Snapshot], None]) -> None:
        self._folder = folder
        self._inboxes = inboxes
        self._taken = taken
        self._target: Path | None = None
        self._ended_batch = -1
        self._last = -1
        self._stopping = False
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def want(self, target: Path | None) -> None:
        """From now on put snapshots there, beginning with what is committed already; None: nobody needs them."""
        with self._changed:
            if target != self._target:
                self._target, self._last = target, -1
                self._changed.notify_all()
            if target is not None and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="snapshots", daemon=True)
                self._thread.start()

    def batch_ended(self, batch_id: int) -> None:
        """Spark is about to commit it."""
        with self._changed:
            self._ended_batch = batch_id
            self._changed.notify_all()

    def stop(self) -> None:
        """End, and wait for it."""
        with self._changed:
            self._stopping = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        while (target := self._next_target()) is not None:
            committed = newest_commit(self._folder / "checkpoint")
            if committed <= self._last:
                with self._changed:  # Spark commits within milliseconds; there is no call when it has
                    self._changed.wait(_COMMIT_POLL_S)
                continue
            try:
                self._taken(take(self._folder, committed, target, self._inboxes))
            except PassedError:
                continue
            except (OSError, ValueError, sqlite3.Error):  # the last one: the disk is full, say
                _log.exception("no snapshot of batch %d in %s", committed, self._folder)
            self._last = committed

    def _newest_batch(self) -> int:
        """The batch that has ended last here, or else before this query began."""
        return self._ended_batch if self._ended_batch >= 0 else newest_commit(self._folder / "checkpoint")

    def _next_target(self) -> Path | None:
        """Wait until there may be something to do; None at the end."""
        with self._changed:
            while not self._stopping:
                if self._target is not None and self._last < self._newest_batch():
                    return self._target
                self._changed.wait()
            return None
