"""What this host runs, and what keepers, other hosts and moves ask of it.

How a fragment that is here comes to run is :mod:`daemon.fragments.settling`'s part; here is how one comes, and goes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from daemon.events import Events
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import HostedFragment, Phase
from daemon.fragments.leasing import Leasing
from daemon.fragments.preparing import Preparing
from daemon.fragments.replica_store import LEFT_BEHIND, ReplicaStore
from daemon.fragments.reserving import HostBook
from daemon.fragments.settling import Settling
from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.host_messages import Hosted, HostFragment, ReleaseFragment
from daemon.peering.keeper_messages import Adopted, AdoptFragment, StoreReplica
from daemon.peering.move_messages import AcceptFragment, AwaitRunning
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment
from daemon.peering.requests import Done
from sbon.engine_messages import AwaitOutput, SnapshotTaken
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

#: A fragment that has not done a batch for so long has no state to copy ahead.
SNAPSHOT_TIMEOUT_S = 3.0
OUTPUT_TIMEOUT_S = 10.0


class Hosting(Settling):
    """The fragments on this host, as they come and go. Answers the keepers."""

    def __init__(
        self,
        peers: Peers,
        supervisor: EngineSupervisor,
        events: Events,
        root: Path,
        leasing: Leasing,
        replicas: ReplicaStore,
        book: HostBook,
        preparing: Preparing,
    ) -> None:
        """``root``: the fragments' folders; ``replicas``: those kept for others; ``book``: for what there is room."""
        super().__init__(peers, supervisor, events, root, leasing, replicas, preparing)
        self._book = book
        self._adopting: set[str] = set()
        peers.handle(HostFragment, self._host)
        peers.handle(ReleaseFragment, self._release)
        peers.handle(AwaitRunning, self._news.until_running)
        peers.handle(AdoptFragment, self._adopt)
        peers.handle_folder(AcceptFragment, self._accept)

    # --- asked by keepers and other hosts

    async def _host(self, message: HostFragment, sender: str) -> Hosted:
        assignment = message.assignment
        assignment.check_keeper(sender)
        self._preparing.has_come()
        await self._make_way(assignment)
        self._book.admit(assignment)
        fragment = self._store.create(assignment)
        self._fragments[fragment.fragment_id] = fragment
        try:
            async with fragment.lock:
                if not await self._claim(fragment):
                    raise StaleGenerationError(f"{fragment.fragment_id} is not to run here any more")
                await self._start(fragment)
        finally:
            if self._is_here(fragment) and not fragment.up:
                self._settle_soon(fragment)  # it ends with the keeper's word, which now may be that the query failed
        assert fragment.flight_address is not None
        return Hosted(fragment.flight_address, fragment.output_schema or "")

    async def _accept(self, message: AcceptFragment, sender: str, received: ReceivedFolder) -> Done:
        """The end of a move: durable here first, then the claim that commits it; starting it comes after the answer."""
        assignment = message.assignment
        self._preparing.has_come()
        await self._make_way(assignment)
        whole = await trio.to_thread.run_sync(self._replicas.complete, message, received)
        self._book.admit(assignment)
        fragment = self._store.adopt(assignment, whole)
        fragment.came_from = sender
        self._fragments[fragment.fragment_id] = fragment
        try:
            async with fragment.lock:
                if not await self._claim(fragment):
                    raise StaleGenerationError(f"the move of {fragment.fragment_id} was revoked meanwhile")
        finally:
            if self._is_here(fragment):
                self._settle_soon(fragment)
        self._events.publish("move-accepted", fragment=fragment.fragment_id, generation=fragment.generation)
        return Done()

    async def _adopt(self, message: AdoptFragment, sender: str) -> Adopted:
        """The owner is lost, or this node is one without knowing: start the fragment from the replica that is here.

        The replica stays until a claim was granted: the keeper may have been told of what was never agreed on.
        """
        assignment = message.assignment
        assignment.check_keeper(sender)
        assignment.taken.check()
        fragment = self._fragments.get(assignment.fragment_id)
        if fragment is None or fragment.generation < assignment.generation:
            replica = self._replicas.find(assignment.fragment_id)
            if (
                replica is None
                or replica.is_left_behind
                or replica.record.assignment.generation >= assignment.generation
            ):
                return Adopted(here=False)  # nobody counts on it, or a later owner has shipped here since
            if assignment.fragment_id in self._adopting:
                return Adopted(here=True)
            self._adopting.add(assignment.fragment_id)
            try:
                fragment = await self._adopt_replica(assignment)
            finally:
                self._adopting.discard(assignment.fragment_id)
        self._settle_soon(fragment)
        return Adopted(here=True)

    async def _adopt_replica(self, assignment: Assignment) -> HostedFragment:
        await self._make_way(assignment)
        fragment_id = assignment.fragment_id
        copy = self._store.folder(fragment_id).with_name(f".{fragment_id}.replica")
        await trio.to_thread.run_sync(self._replicas.copy_to, fragment_id, copy)
        fragment = self._store.adopt(assignment, copy)
        self._fragments[fragment_id] = fragment
        self._events.publish("fragment-adopted", fragment=fragment_id, generation=assignment.generation)
        return fragment

    async def _make_way(self, assignment: Assignment) -> None:
        """Delete what is left here of an earlier stay. StaleGenerationError if the fragment is here rightfully."""
        while (fragment := self._fragments.get(assignment.fragment_id)) is not None:
            stale = StaleGenerationError(
                f"{fragment.fragment_id} is here already, with generation {fragment.generation}"
            )
            if fragment.generation >= assignment.generation or fragment.conducting:
                raise stale
            async with fragment.lock:
                fragment.confirmed = False
                if self._is_here(fragment) and await self._claim(fragment):
                    raise stale

    async def _release(self, message: ReleaseFragment, sender: str) -> Done:
        """The query has ended."""
        fragment = self._fragments.get(message.fragment_id)
        if fragment is not None and fragment.generation <= message.generation:
            fragment.record.assignment.check_keeper(sender)
            if fragment.conducting:
                return Done()  # its folder is being read; the claim at the end of the move is refused then
            async with fragment.lock:
                if self._is_here(fragment):
                    self._store.write(fragment, Phase.HANDED_OVER)
                    await self._delete(fragment)
        return Done()

    # --- for the conductor of a move away from here (daemon.fragments.migration)

    @contextmanager
    def conducting(self, fragment_id: str) -> Iterator[HostedFragment]:
        """Leave the fragment to the conductor inside the block. SbonError if it is not one that can be moved now."""
        fragment = self._fragments.get(fragment_id)
        if fragment is None:
            raise SbonError(f"{fragment_id} does not run on this node: see `sbon operators`")
        if fragment.conducting:
            raise SbonError(f"{fragment_id} is moving already: try again when it has arrived")
        if not fragment.up or fragment.settling or fragment.record.phase is not Phase.RUNNING:
            raise UnavailableError(f"{fragment_id} is still starting: try again in some seconds")
        fragment.conducting = True
        try:
            yield fragment
        finally:
            fragment.conducting = False
            fragment.confirmed = False  # whatever has happened, the next word on it is the keeper's
            if self._is_here(fragment):
                self._settle_soon(fragment)

    async def await_output(self, fragment: HostedFragment) -> None:
        """Until it has just let rows out, if it does so often: who waits for them notices least if it stops then."""
        with suppress(SbonError):  # it does not run: then there is nothing to wait for
            await self._supervisor.call(
                AwaitOutput(fragment.fragment_id, fragment.generation, self._peers.node_id), OUTPUT_TIMEOUT_S
            )

    async def stop(self, fragment: HostedFragment) -> int:
        """Have the engine let go of the fragment; its folder is then all of it. Returns its size in bytes."""
        async with fragment.lock:
            self._store.write(fragment, Phase.STOPPING)
            state_bytes = await self._let_go(fragment)
        self._preparing.has_run(fragment.fragment_id, state_bytes)
        return state_bytes

    @contextmanager
    def reading_snapshots(self, fragment: HostedFragment) -> Iterator[None]:
        """Inside the block there are snapshots of the fragment, and none is deleted."""
        copies = fragment.copies
        copies.snapshot_readers += 1
        try:
            yield
        finally:
            copies.snapshot_readers -= 1

    async def snapshot(self, fragment: HostedFragment) -> SnapshotTaken | None:
        """The fragment's state after its last batch or so, while it goes on; None if there is none within seconds."""
        await self.permits.tell(fragment)
        with trio.move_on_after(SNAPSHOT_TIMEOUT_S):
            while fragment.up and fragment.snapshot is None:
                await self._news.wait()
        return fragment.snapshot

    async def reclaim(self, fragment: HostedFragment) -> bool:
        """After a move of which the outcome is not known: ask the keeper. True if the fragment stays, and goes on."""
        async with fragment.lock:
            if not self._is_here(fragment):  # its query ended meanwhile
                return False
            fragment.confirmed = False
            return await self._claim(fragment)

    async def leave_behind(self, fragment: HostedFragment) -> None:
        """The move is committed: the state that is here is a replica from now on, if this fragment has such."""
        assignment, files = fragment.record.assignment, fragment.copies.left
        if fragment.replication is None or not files:
            return
        record = StoreReplica(assignment, LEFT_BEHIND, files, fragment.spark_version)
        async with self._replicas.turn(assignment.fragment_id):
            with suppress(OSError, SbonError):  # the disk is full, say: its new owner sends all of it to whom it wants
                await trio.to_thread.run_sync(self._replicas.take_over, record, fragment.folder)

    async def hand_over(self, fragment: HostedFragment) -> None:
        """The move is committed: forget the fragment."""
        async with fragment.lock:
            if self._is_here(fragment):
                self._store.write(fragment, Phase.HANDED_OVER)
                await self._delete(fragment)
