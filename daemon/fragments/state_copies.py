"""What other hosts have of the state of one fragment here: its replicas, and the host that it is about to move to.

One and the same host may be both, and a replica goes on growing until the fragment stops: so whoever sends to a host
waits for its :meth:`StateCopies.turn`, and they share what they know of its files.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import trio

from daemon.fragments.replica_store import Digests
from daemon.peering.keeper_messages import DescribeReplica, ReplicaFiles, StoreReplica
from daemon.peering.move_messages import AcceptFragment
from daemon.peering.parcels import Parcels
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment
from sbon.engine_messages import SnapshotTaken

_NO_BATCH = -1


class StateCopies:
    """During one stay of the fragment."""

    def __init__(self) -> None:
        #: How many want snapshots of the fragment besides its replicas, to copy its state ahead.
        self.snapshot_readers = 0
        self._digests = Digests()
        #: Host -> path -> digest. Who is missing has to be asked.
        self._files: dict[str, dict[str, str]] = {}
        self._batches: dict[str, int] = {}
        self._turns: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)

    def turn(self, host: str) -> trio.Lock:
        """Whoever has it is the only one who sends anything of the fragment to ``host``."""
        return self._turns[host]

    async def send(
        self,
        peers: Peers,
        parcels: Parcels,
        host: str,
        assignment: Assignment,
        snapshot: SnapshotTaken,
        spark_version: str,
        timeout_s: float,
    ) -> int:
        """Have ``host`` keep ``snapshot``, or a newer one, in one's turn. Returns the bytes sent; SbonError if it does
        not."""
        if self._batches.get(host, _NO_BATCH) >= snapshot.batch_id:
            return 0
        folder = Path(snapshot.folder)
        files = await trio.to_thread.run_sync(self._digests.of, folder)
        if host not in self._files:
            reply = await peers.ask(host, DescribeReplica(assignment.fragment_id), ReplicaFiles)
            self._files[host] = reply.files
        known = self._files.pop(host)  # not known any more if it fails
        message = StoreReplica(assignment, snapshot.batch_id, files, spark_version)
        sent_bytes = await parcels.send(host, message, folder, files, known, timeout_s)
        self._files[host], self._batches[host] = files, snapshot.batch_id
        return sent_bytes

    async def hand_over(
        self, parcels: Parcels, host: str, granted: Assignment, folder: Path, without: frozenset[str], timeout_s: float
    ) -> int:
        """Send ``host`` all that is in the ``folder`` of the fragment, which has stopped, as far as it lacks it, for it
        to take over, in one's turn. Returns the bytes sent; SbonError if it does not."""
        files = await trio.to_thread.run_sync(self._digests.of, folder, without)
        known = self._files.pop(host, {})
        return await parcels.send(host, AcceptFragment(granted, files), folder, files, known, timeout_s)
