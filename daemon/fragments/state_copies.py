"""What other hosts have of the state of one fragment here: its replicas, and the host that it is about to move to.

One and the same host may be both, and a replica goes on growing until the fragment stops: so whoever sends to a host
waits for its :meth:`StateCopies.turn`, and they share what they know of its files. A large snapshot that the
state can do without for now follows outside of these turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path

import trio

from daemon.fragments.replica_store import Digests
from daemon.fragments.state_snapshots import following
from daemon.peering.keeper_messages import DescribeReplica, ReplicaFiles, StoreAhead, StoreReplica
from daemon.peering.move_messages import AcceptFragment
from daemon.peering.parcels import Parcels
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment
from sbon.engine_messages import SnapshotTaken

_NO_BATCH = -1
#: Snapshots that a state can do without follow later if they are that large: nothing waits for them.
LATER_BYTES = 8_000_000


class StateCopies:
    """During one stay of the fragment."""

    def __init__(self) -> None:
        #: How many want snapshots of the fragment besides its replicas, to copy its state ahead.
        self.snapshot_readers = 0
        #: Path -> digest, of all that was in the fragment's folder when it was handed over.
        self.left: dict[str, str] = {}
        self._digests = Digests()
        #: Host -> path -> digest. Who is missing has to be asked.
        self._files: dict[str, dict[str, str]] = {}
        self._batches: dict[str, int] = {}
        #: What hosts have beyond that, ahead of the state that it belongs to, and what is to follow, and where it lies.
        self._ahead: dict[str, dict[str, str]] = {}
        self._later: dict[str, tuple[Path, dict[str, str]]] = {}
        self._following: defaultdict[str, trio.Lock] = defaultdict(trio.Lock)
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
        """Have ``host`` keep ``snapshot``, or a newer one, in one's turn, with all that it needs to go on from there:
        some may :meth:`follow`. Returns the bytes sent; SbonError if it does not, OSError if it has gone here."""
        if self._batches.get(host, _NO_BATCH) >= snapshot.batch_id:
            return 0
        folder = Path(snapshot.folder)
        files = await trio.to_thread.run_sync(self._digests.of, folder)
        if host not in self._files:
            reply = await peers.ask(host, DescribeReplica(assignment.fragment_id), ReplicaFiles)
            self._files[host] = reply.files
        # Not known any more if it fails.
        ahead = self._ahead.pop(host, {})
        known = self._files.pop(host) | ahead
        now, later = _can_wait(folder, files, known)
        message = StoreReplica(assignment, snapshot.batch_id, now, spark_version)
        sent_bytes = await parcels.send(host, message, folder, now, known, timeout_s)
        self._files[host], self._batches[host], self._later[host] = now, snapshot.batch_id, (folder, later)
        if not ahead.items() & now.items():  # else it has taken them
            self._ahead.setdefault(host, ahead)
        return sent_bytes

    def lacks(self, host: str) -> bool:
        """Whether something is to follow; it may be on its way."""
        _, later = self._later.get(host, (None, {}))
        return bool(later) and later != self._ahead.get(host)

    async def follow(self, parcels: Parcels, host: str, assignment: Assignment, timeout_s: float) -> int:
        """Send ``host`` what could not be waited for, unless somebody else does meanwhile. Returns the bytes sent;
        SbonError if it does not keep it, OSError if it is not here any more."""
        async with self._following[host]:
            folder, later = self._later.get(host, (Path(), {}))
            if not later or later == self._ahead.get(host):
                return 0
            ahead = self._ahead.pop(host, {})  # nobody else is to count on it meanwhile
            sent_bytes = await parcels.send(host, StoreAhead(assignment, later), folder, later, ahead, timeout_s)
            self._ahead[host] = later
            return sent_bytes

    async def hand_over(
        self, parcels: Parcels, host: str, granted: Assignment, folder: Path, without: frozenset[str], timeout_s: float
    ) -> int:
        """Send ``host`` all that is in the ``folder`` of the fragment, which has stopped, as far as it lacks and needs
        it, for it to take over, in one's turn. Returns the bytes sent; SbonError if it does not."""
        self.left = files = await trio.to_thread.run_sync(self._digests.of, folder, without)
        known = self._files.pop(host, {}) | self._ahead.pop(host, {})
        needed, _ = _can_wait(folder, files, known)  # a large snapshot of the last moment is done without, for good
        return await parcels.send(host, AcceptFragment(granted, needed), folder, needed, known, timeout_s)


def _can_wait(
    folder: Path, files: Mapping[str, str], known: Mapping[str, str]
) -> tuple[dict[str, str], dict[str, str]]:
    """What is to be sent now of ``files`` (path in ``folder`` -> digest), and what is so large that nothing waits for
    it."""
    now, later = following(files, known)
    return (now, later) if sum((folder / name).stat().st_size for name in later) >= LATER_BYTES else (dict(files), {})
