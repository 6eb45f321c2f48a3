"""What a fragment may let out at a time (:class:`sbon.engine_messages.Bounds`): of its output, and of its input.

While there are replicas, a segment is served, and an input acknowledged, only once they have the state in which that
batch is committed: a replacement then says nothing else than what was heard, and finds all that it has to read.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sbon.engine_messages import UNBOUNDED, Bounds
from spark_bridge.link_log import LinkLog
from spark_bridge.port_inbox import PortInbox
from spark_bridge.snapshots import Snapshot, Snapshotter


class Outlet:
    """Of one fragment, until :meth:`stop`. Thread-safe."""

    def __init__(
        self,
        folder: Path,
        log: LinkLog,
        inboxes: Mapping[str, PortInbox],
        snapshot_taken: Callable[[Snapshot], None],
    ) -> None:
        self._log = log
        self._inboxes = inboxes
        self._tell = snapshot_taken
        self._bounds = UNBOUNDED
        self._lock = threading.Lock()
        #: Batch -> what was read for good in the snapshot of that batch; from the newest safe one on.
        self._reads: dict[int, Mapping[str, Mapping[str, int]]] = {}
        self._snapshotter = Snapshotter(folder, inboxes, self._snapshot_taken)

    def bound(self, bounds: Bounds) -> None:
        """From now on these hold."""
        with self._lock:
            self._bounds = bounds
        self._log.serve_up_to(bounds.safe_batch)
        self._snapshotter.want(None if bounds.snapshots is None else Path(bounds.snapshots))

    def is_open(self) -> bool:
        """Whether anything may be let out now: the lease of the fragment's owner lasts."""
        until_s = self._bounds.until_s
        return until_s is None or time.monotonic() < until_s

    def read_for_good(self, port: str, producer: str) -> int:
        """The newest batch of ``producer`` that may be acknowledged, -1 for none."""
        with self._lock:
            safe_batch = self._bounds.safe_batch
            if not self.is_open():
                return -1
            if safe_batch is not None:
                safe = max((batch_id for batch_id in self._reads if batch_id <= safe_batch), default=None)
                if safe is None:
                    return -1
                self._reads = {batch_id: reads for batch_id, reads in self._reads.items() if batch_id >= safe}
                return self._reads[safe].get(port, {}).get(producer, -1)
        return self._inboxes[port].read_for_good().get(producer, -1)

    def batch_ended(self, batch_id: int) -> None:
        """Spark is about to commit it."""
        self._snapshotter.batch_ended(batch_id)

    def stop(self) -> None:
        """No more snapshots."""
        self._snapshotter.stop()

    def _snapshot_taken(self, snapshot: Snapshot) -> None:
        with self._lock:
            if self._bounds.safe_batch is None:
                self._reads.clear()  # nobody is waited for: only the newest may matter later
            self._reads[snapshot.batch_id] = snapshot.reads
        self._tell(snapshot)
