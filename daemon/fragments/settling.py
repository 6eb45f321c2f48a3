"""How a fragment comes to run on this host, whatever happens to the engine, the daemon or the keeper.

A fragment that is here is *settled*: the keeper is asked whether it is still ours (:class:`Claim`), the engine is
started, the fragment instantiated and its ports connected; each of it again and again until it succeeds, or until the
keeper says that the fragment is somebody else's, and its folder is deleted. That is all there is to a restart, to an
engine that was lost, to a move that arrives and to one that failed.
"""

from __future__ import annotations

import logging
import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio

from daemon.durable import remove_at_once
from daemon.events import Events
from daemon.fragments.engine_news import START_TIMEOUT_S, EngineNews
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment, Phase
from daemon.fragments.leasing import Leasing
from daemon.fragments.linking import Linking
from daemon.fragments.permits import Permits
from daemon.fragments.preparing import Preparing
from daemon.fragments.replica_store import ReplicaStore
from daemon.fragments.reporting import Reporting
from daemon.fragments.state_copies import StateCopies
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Claim, Claimed
from sbon.engine_messages import (
    Destroy,
    FragmentState,
    FragmentStatus,
    Instantiate,
    LinkLost,
    Migrate,
    SnapshotTaken,
)
from sbon.errors import DamagedError, SbonError, UnavailableError
from sbon.ownership.replication import NOTHING, Replication

log = logging.getLogger("sbon.hosting")

#: Pauses between attempts to settle a fragment.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
#: An engine that refuses a fragment so often in a row will not take it at all.
MAX_REFUSALS = 4


class Settling:
    """The fragments on this host. Drives the engine, and is told by it."""

    def __init__(
        self,
        peers: Peers,
        supervisor: EngineSupervisor,
        events: Events,
        root: Path,
        leasing: Leasing,
        replicas: ReplicaStore,
        preparing: Preparing,
    ) -> None:
        """``root``: the fragments' folders; ``replicas``: those kept for others."""
        self._peers = peers
        self._supervisor = supervisor
        self._events = events
        self._store = FragmentStore(root, peers.node_id)
        self._leasing = leasing
        self._replicas = replicas
        self.permits = Permits(peers.node_id, supervisor, root.with_name("snapshots"))
        #: Set by daemon.fragments.replicating: called when there is a new snapshot of a fragment here.
        self.on_snapshot: Callable[[HostedFragment], None] = lambda _: None
        self._fragments: dict[str, HostedFragment] = {}
        self._preparing = preparing
        self._nursery: trio.Nursery | None = None
        self._news = EngineNews(self.find, self.status)
        leasing.on_kept_by = learn = self._store.learn_keepers
        self._reporting = Reporting(peers, supervisor, lambda: self.fragments, self._disowned, learn)
        self._linking = Linking(peers, supervisor, events, self._store, self.find)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Resume what was here, and serve until cancelled. The supervisor runs already."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            shutil.rmtree(self.permits.snapshots, ignore_errors=True)
            for fragment in self._store.load():
                self._fragments[fragment.fragment_id] = fragment
                self._settle_soon(fragment)
            nursery.start_soon(self._reporting.run)
            nursery.start_soon(self._linking.run, lambda: self.fragments)
            nursery.start_soon(self._leasing.run, lambda: self.fragments, self.permits.tell, self._suspend)
            task_status.started()
            try:
                await trio.sleep_forever()
            finally:
                self._nursery = None  # a move that ends now settles nothing any more

    # --- reading

    @property
    def fragments(self) -> list[HostedFragment]:
        """Everything that is here, by fragment id."""
        return [self._fragments[fragment_id] for fragment_id in sorted(self._fragments)]

    def find(self, fragment_id: str) -> HostedFragment | None:
        return self._fragments.get(fragment_id)

    def status(self, fragment_id: str) -> FragmentStatus | None:
        """The engine's latest word on a fragment here."""
        return self._supervisor.status(fragment_id)

    # --- told by the engine (EngineListener)

    @property
    def needs_engine(self) -> bool:
        return self._preparing.expects_one or any(fragment.error is None for fragment in self._fragments.values())

    def status_changed(self, status: FragmentStatus) -> None:
        fragment = self._fragments.get(status.fragment_id)
        if fragment is not None and fragment.up and status.state is FragmentState.FAILED:
            if status.damaged and self._nursery is not None:
                fragment.up = False
                self._nursery.start_soon(self._leave_to_replica, fragment, status.error or "it is damaged")
            else:
                self._start_over(fragment, status.error or "see the engine's log")
        if status.state is FragmentState.FINISHED:
            self._reporting.soon()
        self._news.tell()

    def _start_over(self, fragment: HostedFragment, error: str) -> None:
        """A query of Spark's has ended by itself. Most reasons pass: it goes on from its checkpoint, a few times."""
        fragment.up = False
        if fragment.fails_too_often(trio.current_time()):
            self._fail(fragment, error)
            return
        self._events.publish("fragment-restarted", fragment=fragment.fragment_id, error=error)
        self._settle_soon(fragment)

    def link_lost(self, lost: LinkLost) -> None:
        fragment = self._fragments.get(lost.fragment_id)
        if fragment is not None and self._nursery is not None:
            log.debug("%s lost its link to %s: %s", lost.fragment_id, lost.producer, lost.reason)
            self._nursery.start_soon(self._linking.locate, fragment, lost.producer)

    def snapshot_taken(self, snapshot: SnapshotTaken) -> None:
        fragment = self._fragments.get(snapshot.fragment_id)
        if fragment is not None and fragment.up and fragment.generation == snapshot.generation:
            fragment.snapshot = snapshot
            self.on_snapshot(fragment)
            self._news.tell()

    def engine_lost(self) -> None:
        for fragment in self.fragments:
            fragment.up = False
            fragment.flight_address = None
            self._settle_soon(fragment)
        self._news.tell()

    # --- settling

    def _settle_soon(self, fragment: HostedFragment) -> None:
        if self._nursery is not None and not fragment.settling and not fragment.conducting:
            fragment.settling = True
            self._nursery.start_soon(self._settle, fragment)

    async def _settle(self, fragment: HostedFragment) -> None:
        """Try until the fragment runs, is not ours, or can never run here."""
        pause_s = FIRST_PAUSE_S
        refusals = 0
        try:
            while not fragment.conducting and self._is_here(fragment):
                try:
                    await self._settle_once(fragment)
                    return
                except UnavailableError as error:
                    log.info("%s has to wait: %s", fragment.fragment_id, error)
                except DamagedError as error:
                    await self._leave_to_replica(fragment, str(error))
                    return
                except SbonError as error:
                    refusals += 1
                    log.warning("%s does not start: %s", fragment.fragment_id, error)
                    if refusals >= MAX_REFUSALS:
                        self._fail(fragment, str(error))
                        return
                await trio.sleep(pause_s)
                pause_s = min(LONGEST_PAUSE_S, 2.0 * pause_s)
        finally:
            fragment.settling = False

    async def _settle_once(self, fragment: HostedFragment) -> None:
        async with fragment.lock:
            if fragment.lease is not None and not fragment.up:
                fragment.confirmed = False  # a new stay begins with what the keepers say of its replicas
            if self._is_here(fragment) and await self._claim(fragment) and not fragment.up:
                await self._start(fragment)

    def _disowned(self, fragment: HostedFragment) -> None:
        if self._is_here(fragment):
            fragment.confirmed = False
            self._settle_soon(fragment)

    # --- leases

    async def _suspend(self, fragment: HostedFragment) -> None:
        """It may have another owner by now: stop it, and ask until the keepers say what is to become of it."""
        async with fragment.lock:
            if not self._is_here(fragment) or fragment.conducting or self._leasing.holds(fragment):
                return
            fragment.confirmed = False
            self._events.publish("lease-lost", fragment=fragment.fragment_id, generation=fragment.generation)
            if fragment.up:
                with suppress(SbonError):
                    await self._let_go(fragment)
        self._settle_soon(fragment)

    async def _leave_to_replica(self, fragment: HostedFragment, error: str) -> None:
        """What is here of it is damaged. Who has a replica takes over once the keepers miss it here."""
        async with fragment.lock:
            if not self._is_here(fragment):
                return
            if fragment.replication is None or not fragment.replication.agreed:
                self._fail(fragment, f"{error}, and there is no replica of it")
                return
            with suppress(SbonError):  # it may not run at all
                await self._let_go(fragment)
            del self._fragments[fragment.fragment_id]
            try:
                kept = await trio.to_thread.run_sync(self._store.put_aside, fragment)
            except UnavailableError as unavailable:  # it does not run here anyway; the next start tries again
                log.warning("%s is not put aside: %s", fragment.fragment_id, unavailable)
                kept = fragment.folder
        self._events.publish("fragment-damaged", fragment=fragment.fragment_id, error=error, kept=str(kept))

    async def _let_go(self, fragment: HostedFragment) -> int:
        """Have the engine stop it; its folder is then all of it. Returns its size in bytes. Needs the fragment's lock.

        If it is not known whether it has stopped, it is to be started again, which does no harm.
        """
        command = Migrate(fragment.fragment_id, fragment.generation, self._peers.node_id)
        try:
            return (await self._supervisor.call(command, START_TIMEOUT_S)).state_bytes
        finally:
            fragment.up = False
            fragment.flight_address = None

    def _is_here(self, fragment: HostedFragment) -> bool:
        return self._fragments.get(fragment.fragment_id) is fragment

    def _fail(self, fragment: HostedFragment, error: str) -> None:
        fragment.error = error
        self._events.publish("fragment-failed", fragment=fragment.fragment_id, error=error)
        self._reporting.soon()
        self._news.tell()

    async def _claim(self, fragment: HostedFragment) -> bool:
        """Whether the fragment is ours by the keeper's word; if it is not, it is deleted. Needs the fragment's lock."""
        assignment = fragment.record.assignment
        if fragment.record.phase is not Phase.HANDED_OVER:
            if fragment.confirmed:
                return True
            claim = Claim(assignment.query_id, assignment.fragment_id, assignment.generation, assignment.keepers)
            granted = (await self._peers.ask_any(assignment.keepers, claim, Claimed)).assignment
            if granted is not None:
                if (granted.fragment_id, granted.generation) != (assignment.fragment_id, assignment.generation):
                    raise SbonError(f"a keeper grants {assignment.fragment_id} something else than was claimed")
                fragment.learn_producers(granted)
                self._store.write(fragment, Phase.RUNNING, granted)
                fragment.confirmed = True
                if granted.is_leased:
                    fragment.count_among(granted.keepers, self._leasing.lease_s)
                await trio.to_thread.run_sync(self._replicas.drop, fragment.fragment_id)
                return True
            self._store.write(fragment, Phase.HANDED_OVER)
        await self._delete(fragment)
        return False

    async def _start(self, fragment: HostedFragment) -> None:
        """Instantiate and connect. Needs the fragment's lock, and a claim that was granted."""
        assignment = fragment.record.assignment
        hello = await self._supervisor.prepare()
        if not await self._leasing.acquire(fragment):
            raise UnavailableError("too few of its keepers answer")
        # What this stay has shipped counts from its own start: replicas may have the state of an earlier owner.
        fragment.snapshot, fragment.copies = None, StateCopies()
        fragment.spark_version = hello.spark_version
        fragment.replication = Replication(assignment.replicas, NOTHING) if assignment.is_leased else None
        self._supervisor.forget_status(fragment.fragment_id)
        reply = await self._supervisor.call(
            Instantiate(
                fragment_id=fragment.fragment_id,
                generation=fragment.generation,
                owner=self._peers.node_id,
                spec=assignment.spec,
                folder=str(fragment.folder),
                port_schemas=assignment.port_schemas,
                consumers=assignment.consumers,
                bounds=self.permits.bounds(fragment),
            )
        )
        if fragment.replication is not None:
            fragment.replication.let_out(reply.newest_batch)
        await self._linking.connect_all(fragment)
        fragment.flight_address = hello.flight_address._replace(host=self._peers.overlay.record.host)
        fragment.output_schema = reply.output_schema
        fragment.error = None
        fragment.up = self._supervisor.hello is hello
        if not fragment.up:
            raise UnavailableError("the engine ended while the fragment was starting")
        self._events.publish("fragment-started", fragment=fragment.fragment_id, generation=fragment.generation)
        self._reporting.soon()
        self._news.tell()

    async def _delete(self, fragment: HostedFragment) -> None:
        """Stop it, if it runs, and delete its folder. Needs the fragment's lock; its record says HANDED_OVER."""
        folder = fragment.folder
        if self._supervisor.hello is not None:
            command = Destroy(fragment.fragment_id, fragment.generation, self._peers.node_id, str(folder))
            try:
                await self._supervisor.call(command)
            except SbonError as error:
                log.warning("the engine does not let go of %s: %s", fragment.fragment_id, error)
        await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))
        await trio.to_thread.run_sync(remove_at_once, self.permits.snapshots / fragment.fragment_id)
        fragment.up = False
        self._supervisor.forget_status(fragment.fragment_id)
        del self._fragments[fragment.fragment_id]
        self._events.publish("fragment-released", fragment=fragment.fragment_id, generation=fragment.generation)
        self._news.tell()
