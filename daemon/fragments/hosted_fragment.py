"""What a host writes down about a fragment that it has, and how that may change (DESIGN: Ownership).

    ACCEPTED ----> RUNNING <---> STOPPING      and from each of them to
      (claim)       (claim)   (a move)         HANDED_OVER: nothing is left to do but to delete the folder

Only a claim that the keeper granted leads to RUNNING, and nobody but the host itself leads it away from there: so while
one host has RUNNING, no other one does. Writing comes before doing, so that a host that is killed knows at its restart
what may have been done.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path

import msgspec
import trio

from daemon.durable import on_disk, read_if_there, sync, write_durably
from daemon.fragments.state_copies import StateCopies
from daemon.peering.query_messages import Assignment, KeptBy, Location
from daemon.peering.subscription_messages import RelayAt
from sbon.engine_messages import FlightAddress, SnapshotTaken
from sbon.errors import SbonError
from sbon.ownership.leases import Lease
from sbon.ownership.replication import Replication

log = logging.getLogger("sbon.hosting")

#: A fragment that fails more often than this within so long fails its query.
MAX_RESTARTS = 2
FAILURES_WITHIN_S = 120.0
RECORD_FILE = "hosting.msgpack"
_SAFE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}")


class Phase(StrEnum):
    ACCEPTED = "accepted"  # the folder is here, durably, and the keeper has not confirmed it yet
    RUNNING = "running"  # it is ours to run
    STOPPING = "stopping"  # it is, or is about to be, on its way to another host
    HANDED_OVER = "handed-over"  # somebody else's, or nobody's


_NEXT: dict[Phase, frozenset[Phase]] = {
    Phase.ACCEPTED: frozenset({Phase.RUNNING, Phase.HANDED_OVER}),
    Phase.RUNNING: frozenset({Phase.RUNNING, Phase.STOPPING, Phase.HANDED_OVER}),
    Phase.STOPPING: frozenset({Phase.RUNNING, Phase.HANDED_OVER}),
    Phase.HANDED_OVER: frozenset({Phase.HANDED_OVER}),
}


class HostingRecord(msgspec.Struct, frozen=True):
    """The file ``hosting.msgpack`` in a fragment's folder. ``owner`` is the host's own node id."""

    owner: str
    assignment: Assignment
    phase: Phase = Phase.ACCEPTED

    def to(self, phase: Phase, assignment: Assignment | None = None) -> HostingRecord:
        """The record in its next phase. AssertionError for a step that there is not: our own mistake."""
        assert phase in _NEXT[self.phase], f"{self.assignment.fragment_id} went from {self.phase} to {phase}"
        return HostingRecord(self.owner, assignment or self.assignment, phase)


class HostedFragment:
    """A fragment on this host, in memory. ``record`` is what is on disk.

    ``confirmed``: the keeper granted our claim since this daemon started, and has not said otherwise.
    ``up``: it was instantiated on the engine that runs now. ``error``: it cannot be, for good.
    ``failed_at_s``: when its query lately ended by itself, on trio's clock.
    ``lease``: what its owner holds of the keepers' permission, None for what needs none. ``replication``: what its
    replicas have, None for what is never replicated; ``snapshot``: the engine's latest for them.
    ``copies``: what other hosts have of its state during this stay. ``came_from``: the host that it has left for this.
    ``spark_version``: of the engine that it was last started on.
    ``conducting``: a move from here is under way, and what happens to the fragment is the conductor's business.
    """

    def __init__(self, record: HostingRecord, folder: Path) -> None:
        self.record = record
        self.folder = folder
        self.lock = trio.Lock()
        self.confirmed = False
        self.up = False
        self.spark_version = ""
        self.conducting = False
        self.settling = False
        self.error: str | None = None
        self.failed_at_s: list[float] = []
        self.flight_address: FlightAddress | None = None
        self.output_schema: str | None = None
        self.lease: Lease | None = None
        self.replication: Replication | None = None
        self.snapshot: SnapshotTaken | None = None
        self.copies = StateCopies()
        self.came_from: str | None = None
        self.producers: dict[str, Location] = {}
        #: Through whom it reads them, by producer; not written down, because it is said again every few seconds.
        self.relays: dict[str, RelayAt] = {}
        self.learn_producers(record.assignment)

    @property
    def fragment_id(self) -> str:
        return self.record.assignment.fragment_id

    @property
    def generation(self) -> int:
        return self.record.assignment.generation

    def fails_too_often(self, now_s: float) -> bool:
        """Note that its query has ended by itself; whether it does so again and again."""
        recent = [at_s for at_s in self.failed_at_s if at_s > now_s - FAILURES_WITHIN_S]
        self.failed_at_s = [*recent, now_s]
        return len(recent) >= MAX_RESTARTS

    def count_among(self, keepers: tuple[str, ...], lease_s: float) -> None:
        """These grant the lease now."""
        if self.lease is None:
            self.lease = Lease(keepers, lease_s)
        self.lease.change_keepers(keepers)

    def learn_producers(self, assignment: Assignment) -> None:
        """Take over what is newer than what is known."""
        for location in assignment.producers:
            if self.is_news(location):
                self.producers[location.fragment_id] = location

    def is_news(self, location: Location) -> bool:
        """Whether a producer is said to be elsewhere than where it was known to be, and not by an old word."""
        known = self.producers.get(location.fragment_id)
        if known is None:
            return True
        if location.generation != known.generation:
            return location.generation > known.generation
        return location.flight_address not in (None, known.flight_address)

    def feeds(self) -> dict[str, tuple[Location, RelayAt | None]]:
        """Where each producer is, and through whom it is read."""
        return {producer: (location, self.relays.get(producer)) for producer, location in self.producers.items()}

    def without_address(self) -> list[str]:
        """Producers that no port here can be fed by as yet."""
        producers = {producer for port in self.record.assignment.spec.ports for producer in port.producers}
        known = {location.fragment_id for location in self.producers.values() if location.flight_address is not None}
        return sorted(producers - known)


class FragmentStore:
    """The folders of the hosted fragments, ``<state_dir>/fragments/<fragment id>``.

    What the disk refuses is an UnavailableError; the fragment is then what it was.
    """

    def __init__(self, root: Path, owner: str) -> None:
        self._root = root
        self._owner = owner
        root.mkdir(parents=True, exist_ok=True)

    def folder(self, fragment_id: str) -> Path:
        """Raises SbonError for an id that is not one of ours: it comes from a peer, and becomes a path."""
        if not _SAFE_ID.fullmatch(fragment_id):
            raise SbonError(f"{fragment_id[:100]!r} is not the id of a fragment")
        return self._root / fragment_id

    def load(self) -> Iterator[HostedFragment]:
        """All fragments that were here when the daemon ended. What has no record was never accepted.

        Raises UnavailableError if that cannot be said of one now: its state may be the only one that there is.
        """
        for folder in sorted(self._root.iterdir()):
            data = read_if_there(folder / RECORD_FILE)
            if data is None:
                log.warning("deleting %s: no record of a hosted fragment", folder)
                shutil.rmtree(folder, ignore_errors=True)
                continue
            try:
                record = msgspec.msgpack.decode(data, type=HostingRecord)
            except msgspec.MsgspecError as error:
                log.warning("%s of %s is damaged (%s): put to %s", RECORD_FILE, folder, error, self._put_aside(folder))
                continue
            yield HostedFragment(record, folder)

    def create(self, assignment: Assignment) -> HostedFragment:
        """A new fragment without any state yet."""
        folder = self.folder(assignment.fragment_id)
        shutil.rmtree(folder, ignore_errors=True)
        with on_disk(folder):
            folder.mkdir()
        sync(self._root)
        return self._accepted(assignment, folder)

    def adopt(self, assignment: Assignment, received: Path) -> HostedFragment:
        """A fragment whose folder has arrived, complete and durable, at ``received``; from then on it is ours."""
        folder = self.folder(assignment.fragment_id)
        record = HostingRecord(self._owner, assignment)
        # Over the record of the sender, which travelled with the folder; the rename is what accepts both.
        write_durably(received / RECORD_FILE, msgspec.msgpack.encode(record))
        shutil.rmtree(folder, ignore_errors=True)
        with on_disk(folder):
            received.rename(folder)
        sync(self._root)
        return HostedFragment(record, folder)

    def put_aside(self, fragment: HostedFragment) -> Path:
        """Have its folder, which is damaged, here no longer, but kept for whoever looks into it. Where it is then."""
        return self._put_aside(fragment.folder)

    def _put_aside(self, folder: Path) -> Path:
        kept = self._root.with_name("damaged") / folder.name
        shutil.rmtree(kept, ignore_errors=True)
        with on_disk(kept):
            kept.parent.mkdir(exist_ok=True)
            folder.rename(kept)
        sync(self._root)
        return kept

    def write(self, fragment: HostedFragment, phase: Phase, assignment: Assignment | None = None) -> None:
        """Take a step, durably."""
        record = fragment.record.to(phase, assignment)
        if record != fragment.record:
            write_durably(fragment.folder / RECORD_FILE, msgspec.msgpack.encode(record))
            fragment.record = record

    def learn_keepers(self, fragment: HostedFragment, kept_by: KeptBy) -> None:
        """The query of a fragment that runs here is kept by others now. If that cannot be written down now, they say so
        again."""
        assignment = fragment.record.assignment.under(kept_by)
        if fragment.record.phase is Phase.RUNNING and assignment is not fragment.record.assignment:
            self.write(fragment, Phase.RUNNING, assignment)
            if fragment.lease is not None:
                fragment.lease.change_keepers(assignment.keepers)

    def _accepted(self, assignment: Assignment, folder: Path) -> HostedFragment:
        record = HostingRecord(self._owner, assignment)
        write_durably(folder / RECORD_FILE, msgspec.msgpack.encode(record))
        return HostedFragment(record, folder)
