"""The state of fragments here, shipped batch by batch to hosts nearby (DESIGN: Ownership).

What may be let out before it has arrived is up to :class:`sbon.ownership.replication.Replication`; here replicas are
chosen, snapshots of the engine travel, as far as the replica does not have their files, and the record is asked to
name those who have caught up, and not to name those who are lost.
"""

from __future__ import annotations

import logging
from collections.abc import Container
from pathlib import Path

import trio

from daemon.durable import remove_at_once
from daemon.events import Events
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import HostedFragment
from daemon.fragments.hosting import Hosting
from daemon.fragments.preparing import check_spark
from daemon.fragments.replica_store import ReplicaStore
from daemon.fragments.state_copies import StateCopies
from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.keeper_messages import (
    ChangeReplicas,
    CheckReplica,
    DescribeReplica,
    ReplicaChecked,
    ReplicaFiles,
    Replicas,
    StoreAhead,
    StoreReplica,
)
from daemon.peering.parcels import Parcels
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment, DescribeQuery, QueryView
from daemon.peering.requests import Done
from sbon.engine_messages import SnapshotTaken
from sbon.errors import SbonError, StaleGenerationError, UnavailableError
from sbon.ownership.replication import Replication

log = logging.getLogger("sbon.replicas")

LOOK_PERIOD_S = 1.0
SHIP_TIMEOUT_S = 20.0
#: A replica that stores nothing for so long, while there is something to store, is done without.
PATIENCE_S = 8.0
#: A host that has failed to keep a replica is not tried again for so long.
AVOID_S = 60.0
#: What results may wait longer for a replica where the state is already.
DETOUR_MS = 30.0
#: How often the keepers are asked whether a replica here is still of use.
SWEEP_PERIOD_S = 60.0


class _Stay:
    """What is known, during one stay of a fragment here, of its replicas."""

    def __init__(self, replication: Replication, copies: StateCopies, changes: int) -> None:
        self.replication = replication
        self.copies = copies
        self.changes = changes
        #: Since when a host owes us something, on trio's clock.
        self.owes_since_s: dict[str, float] = {}
        self.bounded = False
        #: Who is to become a replica, and gets a first copy meanwhile; nobody waits for it yet.
        self.candidate: str | None = None
        #: Until when, on trio's clock, a host is not tried again.
        self.avoid_until_s: dict[str, float] = {}
        #: To whom something is on its way that no batch waits for, or who rests after it could not be sent.
        self.followed: set[str] = set()
        #: A proposal's outcome is not known.
        self.in_doubt = False


class Replicating:
    """Both sides: ships what is here to others, and keeps what others ship."""

    def __init__(
        self,
        peers: Peers,
        hosting: Hosting,
        supervisor: EngineSupervisor,
        store: ReplicaStore,
        events: Events,
        parcels: Parcels,
        wanted: int,
    ) -> None:
        """``wanted`` is the number of replicas."""
        self._peers = peers
        self._hosting = hosting
        self._supervisor = supervisor
        self._store = store
        self._events = events
        self._parcels = parcels
        self._wanted = wanted
        self._stays: dict[str, _Stay] = {}
        self._busy: set[str] = set()
        #: Replicas that fragments had left behind here, and nobody has taken up, as of the last look.
        self._left_behind: set[tuple[str, int]] = set()
        self._news = trio.Event()
        self._nursery: trio.Nursery
        hosting.on_snapshot = lambda _: self._news.set()
        peers.handle(DescribeReplica, self._describe)
        peers.handle(CheckReplica, self._check)
        peers.handle_folder(StoreReplica, self._keep)
        peers.handle_folder(StoreAhead, self._keep_ahead)

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            nursery.start_soon(self._sweep)
            while True:
                with trio.move_on_after(LOOK_PERIOD_S):
                    await self._news.wait()
                self._news = trio.Event()
                self._forget_all_but({fragment.fragment_id for fragment in self._hosting.fragments})
                for fragment in self._hosting.fragments:
                    if fragment.up and fragment.confirmed and fragment.fragment_id not in self._busy:
                        self._busy.add(fragment.fragment_id)
                        nursery.start_soon(self._tend, fragment)

    # --- as an owner

    def _forget_all_but(self, here: Container[str]) -> None:
        """Of what has gone, nothing needs to be known any more."""
        self._stays = {fragment_id: stay for fragment_id, stay in self._stays.items() if fragment_id in here}

    async def _tend(self, fragment: HostedFragment) -> None:
        """One look after one fragment."""
        snapshot = fragment.snapshot
        try:
            if fragment.replication is not None:
                await self._look_after(fragment, self._stay(fragment))
        except (SbonError, OSError) as error:  # a snapshot that has gone, a disk that is full: the next look is near
            log.info("replicas of %s: %s", fragment.fragment_id, error)
        finally:
            self._busy.discard(fragment.fragment_id)
            if fragment.snapshot is not snapshot:
                self._news.set()  # nobody has looked at it if it came in the meantime

    def _stay(self, fragment: HostedFragment) -> _Stay:
        assert fragment.replication is not None
        stay = self._stays.get(fragment.fragment_id)
        if stay is None or stay.replication is not fragment.replication:
            stay = _Stay(fragment.replication, fragment.copies, fragment.record.assignment.replica_changes)
            stay.bounded = bool(fragment.replication.required)
            self._stays[fragment.fragment_id] = stay
        return stay

    async def _look_after(self, fragment: HostedFragment, stay: _Stay) -> None:
        replication = stay.replication
        if not replication.required:
            stay.bounded = False  # the engine may have been told so
        if stay.candidate is None and len(replication.required) < self._wanted:
            stay.candidate = self._choose(stay, fragment.came_from)
            if stay.candidate is not None:
                stay.copies.snapshot_readers += 1
                await self._hosting.permits.tell(fragment)
        if stay.candidate is not None and fragment.snapshot is not None:
            await self._copy_to_candidate(fragment, stay, stay.candidate, fragment.snapshot)
        if replication.required and not stay.bounded:
            replication.let_out(await self._hosting.permits.tell(fragment))
            stay.bounded = True
        snapshot = fragment.snapshot
        if snapshot is not None:
            safe = replication.safe_batch
            await self._ship_to_all(fragment, stay, snapshot)
            if replication.safe_batch != safe:
                await self._hosting.permits.tell(fragment)
            if not stay.copies.snapshot_readers:
                await trio.to_thread.run_sync(_delete_older, Path(snapshot.folder))
        await self._propose(fragment, stay)

    async def _copy_to_candidate(
        self, fragment: HostedFragment, stay: _Stay, host: str, snapshot: SnapshotTaken
    ) -> None:
        """A first copy, while nobody waits for it; from then on it is waited for, and soon has the rest."""
        await self._ship(host, fragment, stay, snapshot)
        stay.candidate = None
        stay.copies.snapshot_readers -= 1
        if stay.replication.has(host, snapshot.batch_id):
            stay.replication.join(host)
        else:
            stay.avoid_until_s[host] = trio.current_time() + AVOID_S

    def _choose(self, stay: _Stay, came_from: str | None) -> str | None:
        """The nearest host that takes operators and has nothing of this fragment yet; or, if it is not much further,
        the one that it has come from: that has most of it."""
        costs = self._peers.cost_view({})
        now_s = trio.current_time()
        taken = {self._peers.node_id, *stay.replication.required}
        candidates = [
            member.node_id
            for member in self._peers.overlay.members()
            if member.accepts_operators
            and member.node_id not in taken
            and stay.avoid_until_s.get(member.node_id, now_s) <= now_s
        ]
        rtts_ms = {node_id: costs.rtt_ms(self._peers.node_id, node_id) for node_id in candidates}
        nearest = min(candidates, key=rtts_ms.__getitem__, default=None)
        if nearest is not None and came_from in rtts_ms and rtts_ms[came_from] <= rtts_ms[nearest] + DETOUR_MS:
            return came_from
        return nearest

    async def _ship_to_all(self, fragment: HostedFragment, stay: _Stay, snapshot: SnapshotTaken) -> None:
        due = [host for host in stay.replication.required if not stay.replication.has(host, snapshot.batch_id)]
        if not due:
            return
        now_s = trio.current_time()
        for host in due:
            stay.owes_since_s.setdefault(host, now_s)
        try:
            async with trio.open_nursery() as nursery:
                for host in due:
                    nursery.start_soon(self._ship, host, fragment, stay, snapshot)
        except* OSError as errors:  # the snapshot has gone, say, with its fragment
            raise OSError(str(errors.exceptions[0])) from None

    async def _ship(self, host: str, fragment: HostedFragment, stay: _Stay, snapshot: SnapshotTaken) -> None:
        assignment, spark = fragment.record.assignment, fragment.spark_version
        try:
            async with stay.copies.turn(host):
                await stay.copies.send(self._peers, self._parcels, host, assignment, snapshot, spark, SHIP_TIMEOUT_S)
        except SbonError as error:
            log.info("%s does not keep the state of %s: %s", self._peers.name(host), fragment.fragment_id, error)
            return
        stay.replication.stored(host, snapshot.batch_id)
        stay.owes_since_s.pop(host, None)
        if stay.copies.lacks(host) and host not in stay.followed:
            stay.followed.add(host)
            self._nursery.start_soon(self._follow, host, fragment, stay)

    async def _follow(self, host: str, fragment: HostedFragment, stay: _Stay) -> None:
        """Send what no batch waits for."""
        try:
            await stay.copies.follow(self._parcels, host, fragment.record.assignment, SHIP_TIMEOUT_S)
        except (SbonError, OSError) as error:
            log.info("%s does not get a snapshot of %s: %s", self._peers.name(host), fragment.fragment_id, error)
            await trio.sleep(AVOID_S)
        stay.followed.discard(host)

    async def _propose(self, fragment: HostedFragment, stay: _Stay) -> None:
        """Have the record name those who have caught up, and not those who are lost."""
        replication = stay.replication
        late = {host for host in replication.required if self._is_late(host, stay)}
        ready = {host for host in replication.required if stay.bounded and replication.may_be_proposed(host)}
        if not stay.in_doubt:
            for host in late - replication.agreed:
                replication.give_up(host)
        for host in late:
            stay.avoid_until_s[host] = trio.current_time() + AVOID_S
        wanted = (replication.agreed - late) | (ready - late)
        if wanted == replication.agreed and not stay.in_doubt:
            return
        assignment = fragment.record.assignment
        message = ChangeReplicas(
            assignment.query_id, assignment.fragment_id, assignment.generation, stay.changes, tuple(sorted(wanted))
        )
        stay.in_doubt = True
        answer = await self._peers.ask_any(assignment.keepers, message, Replicas)
        stay.in_doubt = False
        if not answer.owns:
            return  # hosting will hear of it
        stay.changes = answer.changes
        before = replication.agreed
        replication.agree(answer.replicas)
        if replication.agreed != before:
            names = [self._peers.name(host) for host in answer.replicas]
            self._events.publish("replicas-changed", fragment=assignment.fragment_id, replicas=names)
            await self._hosting.permits.tell(fragment)
        self._news.set()

    def _is_late(self, host: str, stay: _Stay) -> bool:
        since_s = stay.owes_since_s.get(host)
        return since_s is not None and trio.current_time() - since_s > PATIENCE_S

    # --- as a replica

    async def _describe(self, message: DescribeReplica, _sender: str) -> ReplicaFiles:
        replica = self._store.find(message.fragment_id)
        return ReplicaFiles({} if replica is None else replica.record.files)

    async def _check(self, message: CheckReplica, _sender: str) -> ReplicaChecked:
        """One that is damaged is of no use: it is deleted, and the owner, if there is one, sends it anew."""
        fragment_id = message.fragment_id
        async with self._store.turn(fragment_id):
            damage = await trio.to_thread.run_sync(self._store.find_damage, fragment_id)
            if damage is not None:
                self._events.publish("replica-damaged", fragment=fragment_id, error=damage)
                await trio.to_thread.run_sync(self._store.drop, fragment_id)
        return ReplicaChecked(self._store.find(fragment_id) is not None)

    async def _keep(self, message: StoreReplica, _sender: str, received: ReceivedFolder) -> Done:
        assignment = message.assignment
        node = self._peers.overlay.record.name
        check_spark(node, self._supervisor.spark_version, assignment.fragment_id, message.spark_version)
        self._check_generation(assignment)
        async with self._store.turn(assignment.fragment_id):
            await trio.to_thread.run_sync(self._store.store, message, received)
        return Done()

    async def _keep_ahead(self, message: StoreAhead, _sender: str, received: ReceivedFolder) -> Done:
        fragment_id = message.assignment.fragment_id
        self._check_generation(message.assignment)
        async with self._store.turn(fragment_id):
            await trio.to_thread.run_sync(self._store.store_ahead, fragment_id, message.files, received)
        return Done()

    def _check_generation(self, assignment: Assignment) -> None:
        here = self._hosting.find(assignment.fragment_id)
        if here is not None and here.generation >= assignment.generation:
            raise StaleGenerationError(f"{assignment.fragment_id} runs here now, with generation {here.generation}")

    async def _sweep(self) -> None:
        """Delete replicas of what nobody needs any more. Who cannot be asked may still need them; what a fragment has
        left behind is of use to its new owner within a minute, or never."""
        while True:
            await trio.sleep(SWEEP_PERIOD_S)
            before, self._left_behind = self._left_behind, set()
            for replica in self._store.replicas:
                assignment = replica.record.assignment
                if replica.is_left_behind:
                    self._left_behind.add((assignment.fragment_id, assignment.generation))
                is_old = (assignment.fragment_id, assignment.generation) in self._left_behind & before
                if is_old or await self._has_ended(assignment):
                    async with self._store.turn(assignment.fragment_id):
                        await trio.to_thread.run_sync(self._store.drop, assignment.fragment_id)

    async def _has_ended(self, assignment: Assignment) -> bool:
        """Whether a keeper says that nobody needs the fragment, or a majority has never heard of its query or has
        forgotten it."""
        unknown = 0
        for keeper in assignment.keepers:
            try:
                view = await self._peers.ask(keeper, DescribeQuery(assignment.query_id), QueryView)
            except UnavailableError:
                continue
            except SbonError:
                unknown += 1
                continue
            running = {fragment.spec.fragment_id for fragment in view.fragments if not fragment.released}
            if assignment.fragment_id not in running:
                return True
        return unknown > len(assignment.keepers) // 2


def _delete_older(snapshot: Path) -> None:
    """The snapshots beside this one that are older; their names are batch ids."""
    for other in snapshot.parent.iterdir():
        if other.name.isdigit() and int(other.name) < int(snapshot.name):
            remove_at_once(other)
