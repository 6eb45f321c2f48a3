"""Before a fragment arrives: is there room for its state, is Spark the same here, and does it run?

All of it is asked while the fragment still runs where it is, so a refusal costs it nothing. The engine is started and
runs the fragment for a moment on nothing: it starts faster then. The same goes for fragments that may arrive any time,
because a replica is here: they are rehearsed if there is an engine, or one is kept warm for them, and on a copy of
their state, too, anew when it has grown. So when a fragment moves to where its replica is, nothing is left to be tried,
which would take time from those that run there.
"""

from __future__ import annotations

import itertools
import logging
import math
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Generic, TypeVar

import trio

from daemon.events import Events
from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.replica_store import ReplicaStore
from daemon.fragments.reserving import HostBook
from daemon.peering.host_messages import PrepareEngine
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment
from daemon.peering.requests import Done
from daemon.peering.room import check_room
from sbon.engine_messages import Hello, Rehearse
from sbon.errors import SbonError, UnavailableError

log = logging.getLogger("sbon.hosting")

LOOK_PERIOD_S = 1.0
#: The state of an owner that has just started is not rehearsed yet: it has something to catch up with, is heard only
#: once its state is here, and perhaps needs the same processors, those of the host that it has left, say.
OWNER_SETTLES_S = 3.0
#: After an engine that did not start, or a rehearsal that failed.
PAUSE_S = 30.0
#: A state is rehearsed on again when it is so many times as large; up to so many bytes all are alike.
GROWN = 4
SMALL_BYTES = 10_000_000
#: Of so many fragments, the latest, it is known that they were tried on the engine here: they come and go.
MOST_TRIED = 256


def check_spark(node: str, here: str, fragment_id: str, its: str) -> None:
    """Raises SbonError unless the state of a fragment, which Spark ``its`` has written, can be opened by Spark ``here``
    on this ``node``. No version of Spark promises to read another one's state, and some give wrong rows."""
    if its != here:
        raise SbonError(
            f"{node} has Spark {here}, and the state of {fragment_id} is of Spark {its}: install the same version of "
            "sbon, and with it of Spark, on both"
        )


@dataclass(frozen=True, slots=True)
class _Tried:
    """A rehearsal on a state: how large it was; and which replica was looked at since."""

    state_bytes: int
    looked_at: tuple[int, int] = (0, 0)


_Known = TypeVar("_Known")


class _OfEngine(Generic[_Known]):
    """What is known of fragments on one engine, the one that runs; of the latest MOST_TRIED of them."""

    def __init__(self) -> None:
        self._hello: Hello | None = None
        self.known: dict[str, _Known] = {}

    def get(self, hello: Hello, fragment_id: str) -> _Known | None:
        """None on any other engine."""
        return self.known.get(fragment_id) if hello is self._hello else None

    def note(self, hello: Hello, fragment_id: str, known: _Known) -> None:
        """Of another engine than before: all that was known is forgotten."""
        if hello is not self._hello:
            self._hello, self.known = hello, {}
        self.known.pop(fragment_id, None)
        self.known[fragment_id] = known
        if len(self.known) > MOST_TRIED:
            del self.known[next(iter(self.known))]


class Preparing:
    """Answers whoever is about to send a fragment, or to start one here."""

    def __init__(
        self,
        peers: Peers,
        supervisor: EngineSupervisor,
        book: HostBook,
        replicas: ReplicaStore,
        events: Events,
        scratch: Path,
        *,
        warm: bool,
    ) -> None:
        """``scratch``: a folder on the disk of the fragments; ``warm``: keep an engine for the replicas here."""
        self._peers = peers
        self._supervisor = supervisor
        self._book = book
        self._replicas = replicas
        self._events = events
        self._scratch = scratch
        shutil.rmtree(scratch, ignore_errors=True)  # of a daemon before us that was killed: copies of states, say
        self._warm = warm
        #: Whether a fragment was rehearsed, with or without a state.
        self._rehearsed: _OfEngine[bool] = _OfEngine()
        self._tried_on_state: _OfEngine[_Tried] = _OfEngine()
        #: Since when, on trio's clock, there is a replica of that fragment and generation here.
        self._since_s: dict[tuple[str, int], float] = {}
        #: Each has a name of its own: one may still be rehearsed on when the next is made.
        self._copies = itertools.count()
        self._expected_until_s = -math.inf
        peers.handle(PrepareEngine, self._prepare)

    @property
    def expects_one(self) -> bool:
        """Whether a fragment is on its way here, or is to start at once when it comes."""
        return self._stands_by or trio.current_time() < self._expected_until_s

    @property
    def _stands_by(self) -> bool:
        return self._warm and bool(self._replicas.replicas)

    def has_come(self) -> None:
        """One has arrived."""
        self._expected_until_s = -math.inf

    def has_run(self, fragment_id: str, state_bytes: int) -> None:
        """One has left, which ran on such a state: when it comes back, there is nothing to be tried on that."""
        if self._supervisor.hello is not None:
            self._tried_on_state.note(self._supervisor.hello, fragment_id, _Tried(state_bytes))

    async def stand_by(self) -> None:
        """Rehearse what replicas are here of, until cancelled."""
        while True:
            await trio.sleep(LOOK_PERIOD_S)
            try:
                if self._stands_by:
                    await self._supervisor.prepare()
                assignments = [replica.record.assignment for replica in self._replicas.replicas]
                for assignment in self._settled(assignments):
                    await self._rehearse_replica(assignment)
            except SbonError as error:
                log.info("a replica is not rehearsed: %s", error)
                await trio.sleep(PAUSE_S)

    def _settled(self, assignments: Sequence[Assignment]) -> list[Assignment]:
        """Those whose owner has sent its state for a while."""
        now_s = trio.current_time()
        by_stay = {(assignment.fragment_id, assignment.generation): assignment for assignment in assignments}
        self._since_s = {stay: self._since_s.get(stay, now_s) for stay in by_stay}
        return [assignment for stay, assignment in by_stay.items() if now_s - self._since_s[stay] >= OWNER_SETTLES_S]

    async def _rehearse_replica(self, assignment: Assignment) -> None:
        """Once on each engine, and when its state has grown."""
        hello, fragment_id = self._supervisor.hello, assignment.fragment_id
        if hello is None:
            return
        state = await self._copied_state(assignment, hello)
        if state is not None or not self._rehearsed.get(hello, fragment_id):
            await self._rehearse(assignment, hello, state)
            self._events.publish("replica-rehearsed", fragment=fragment_id)

    async def _prepare(self, message: PrepareEngine, _sender: str) -> Done:
        """It may have to wait for others that feed it, once all is ready."""
        coming = message.coming
        node = self._peers.overlay.record.name
        if coming is not None:
            check_room(node, self._scratch.parent, f"the state of {coming.fragment_id}", message.state_bytes)
        self._book.commit(message.query_id)
        hello = await self._supervisor.prepare()
        if coming is not None:
            check_spark(node, hello.spark_version, coming.fragment_id, message.spark_version)
            await self._rehearse(coming, hello, await self._copied_state(coming, hello))
        self._expected_until_s = trio.current_time() + START_TIMEOUT_S
        return Done()

    async def _copied_state(self, coming: Assignment, hello: Hello) -> Path | None:
        """Of the replica that is here, to be rehearsed on; None if it was, on this engine, or one about as large."""
        fragment_id = coming.fragment_id
        replica = self._replicas.find(fragment_id)
        if replica is None or not coming.spec.stateful:
            return None
        tried = self._tried_on_state.get(hello, fragment_id)
        if tried is not None and tried.looked_at == replica.age:
            return None
        state_bytes = await trio.to_thread.run_sync(replica.state_bytes)
        tried = self._tried_on_state.get(hello, fragment_id)
        if tried is not None and state_bytes < GROWN * max(tried.state_bytes, SMALL_BYTES):
            self._tried_on_state.note(hello, fragment_id, replace(tried, looked_at=replica.age))
            return None
        # Taken down before it is copied: who asks meanwhile is not to do the same.
        self._tried_on_state.note(hello, fragment_id, _Tried(state_bytes, replica.age))
        copy = self._scratch / f"{fragment_id}.state{next(self._copies)}.rehearsal"
        try:
            await trio.to_thread.run_sync(self._replicas.copy_to, fragment_id, copy)
        except (SbonError, OSError) as error:
            log.info("%s is rehearsed without its state: %s", fragment_id, error)
            self._tried_on_state.known.pop(fragment_id, None)
            return None
        return copy

    async def _rehearse(self, coming: Assignment, hello: Hello, state: Path | None) -> None:
        """In a folder of which nothing is left, nor of the copied ``state``. Raises SbonError if the fragment cannot
        run here; one that only takes too long to try will take long to start, too."""
        self._rehearsed.note(hello, coming.fragment_id, True)
        command = Rehearse(
            fragment_id=coming.fragment_id,
            generation=coming.generation,
            owner=self._peers.node_id,
            spec=coming.spec,
            folder=str(self._scratch / f"{coming.fragment_id}.rehearsal"),
            port_schemas=coming.port_schemas,
            state=None if state is None else str(state),
        )
        try:
            await self._supervisor.call(command, START_TIMEOUT_S / 2.0)
        except UnavailableError as error:
            log.info("%s is not rehearsed: %s", coming.fragment_id, error)
