"""What this host runs: fragments on its engine, whatever happens to the engine, the daemon or the keeper.

A fragment that is here is *settled*: the keeper is asked whether it is still ours (:class:`Claim`), the engine is
started, the fragment instantiated and its ports connected; each of it again and again until it succeeds, or until the
keeper says that the fragment is somebody else's, and its folder is deleted. That is all there is to a restart, to an
engine that was lost, to a move that arrives and to one that failed.
"""

from __future__ import annotations

import logging
import math
import shutil
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import trio

from daemon.engine_supervisor import EngineSupervisor
from daemon.events import Events
from daemon.hosted_fragment import FragmentStore, HostedFragment, Phase
from daemon.peers import Peers
from daemon.query_messages import (
    AcceptFragment,
    Assignment,
    AwaitRunning,
    Claim,
    Claimed,
    ConnectTo,
    FragmentReport,
    Hosted,
    HostFragment,
    Locate,
    Location,
    NowRunning,
    PrepareEngine,
    ReleaseFragment,
    Report,
    Reported,
)
from daemon.requests import Done
from sbon.engine_messages import Connect, Destroy, FragmentState, FragmentStatus, Instantiate, LinkLost, Migrate
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

log = logging.getLogger("sbon.hosting")

REPORT_PERIOD_S = 1.0
REPORT_TIMEOUT_S = 5.0
#: Pauses between attempts to settle a fragment, and between two questions about one producer.
FIRST_PAUSE_S = 0.5
LONGEST_PAUSE_S = 15.0
LOCATE_PAUSE_S = 1.0
#: An engine that refuses a fragment so often in a row will not take it at all.
MAX_REFUSALS = 4
#: A fragment that fails more often than this within so long fails its query.
MAX_RESTARTS = 2
FAILURES_WITHIN_S = 120.0
#: How long a first batch may take before a fragment that runs is taken to have nothing to do.
FIRST_BATCH_S = 5.0
START_TIMEOUT_S = 180.0


class Hosting:
    """The fragments on this host. Drives the engine; is told by it; answers the keepers."""

    def __init__(self, peers: Peers, supervisor: EngineSupervisor, events: Events, root: Path) -> None:
        """``root`` is the folder of the fragments' folders."""
        self._peers = peers
        self._supervisor = supervisor
        self._events = events
        self._store = FragmentStore(root, peers.node_id)
        self._fragments: dict[str, HostedFragment] = {}
        self._expected_until_s = -math.inf
        self._nursery: trio.Nursery | None = None
        self._report_due = trio.Event()
        self._engine_news = trio.Event()
        self._reporting: set[str] = set()
        self._locating: set[tuple[str, str]] = set()
        peers.handle(PrepareEngine, self._prepare_for)
        peers.handle(HostFragment, self._host)
        peers.handle(ReleaseFragment, self._release)
        peers.handle(ConnectTo, self._connect_to)
        peers.handle(AwaitRunning, self._await_running)
        peers.handle_folder(AcceptFragment, self._accept)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Resume what was here, and serve until cancelled. The supervisor runs already."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for fragment in self._store.load():
                self._fragments[fragment.fragment_id] = fragment
                self._settle_soon(fragment)
            nursery.start_soon(self._report_forever)
            task_status.started()

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
        is_expected = trio.current_time() < self._expected_until_s
        return is_expected or any(fragment.error is None for fragment in self._fragments.values())

    def status_changed(self, status: FragmentStatus) -> None:
        fragment = self._fragments.get(status.fragment_id)
        if fragment is not None and fragment.up and status.state is FragmentState.FAILED:
            self._start_over(fragment, status.error or "see the engine's log")
        if status.state is FragmentState.FINISHED:
            self._report_due.set()
        self._tell_waiting()

    def _start_over(self, fragment: HostedFragment, error: str) -> None:
        """A query of Spark's has ended by itself. Most reasons pass: it goes on from its checkpoint, a few times."""
        now_s = trio.current_time()
        recent = [at_s for at_s in fragment.failed_at_s if at_s > now_s - FAILURES_WITHIN_S]
        fragment.failed_at_s = [*recent, now_s]
        fragment.up = False
        if len(recent) >= MAX_RESTARTS:
            self._fail(fragment, error)
            return
        self._events.publish("fragment-restarted", fragment=fragment.fragment_id, error=error)
        self._settle_soon(fragment)

    def link_lost(self, lost: LinkLost) -> None:
        fragment = self._fragments.get(lost.fragment_id)
        key = (lost.fragment_id, lost.producer)
        if fragment is None or self._nursery is None or key in self._locating:
            return
        self._locating.add(key)
        log.debug("%s lost its link to %s: %s", lost.fragment_id, lost.producer, lost.reason)
        self._nursery.start_soon(self._locate, fragment, lost.producer)

    def engine_lost(self) -> None:
        for fragment in self.fragments:
            fragment.up = False
            fragment.flight_address = None
            self._settle_soon(fragment)
        self._tell_waiting()

    def _tell_waiting(self) -> None:
        self._engine_news.set()
        self._engine_news = trio.Event()

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
            if self._is_here(fragment) and await self._claim(fragment) and not fragment.up:
                await self._start(fragment)

    def _is_here(self, fragment: HostedFragment) -> bool:
        return self._fragments.get(fragment.fragment_id) is fragment

    def _fail(self, fragment: HostedFragment, error: str) -> None:
        fragment.error = error
        self._events.publish("fragment-failed", fragment=fragment.fragment_id, error=error)
        self._report_due.set()
        self._tell_waiting()

    async def _claim(self, fragment: HostedFragment) -> bool:
        """Whether the fragment is ours by the keeper's word; if it is not, it is deleted. Needs the fragment's lock."""
        assignment = fragment.record.assignment
        if fragment.record.phase is not Phase.HANDED_OVER:
            if fragment.confirmed:
                return True
            claim = Claim(assignment.query_id, assignment.fragment_id, assignment.generation)
            granted = (await self._peers.ask(assignment.keepers[0], claim, Claimed)).assignment
            if granted is not None:
                fragment.learn_producers(granted)
                self._store.write(fragment, Phase.RUNNING, granted)
                fragment.confirmed = True
                return True
            self._store.write(fragment, Phase.HANDED_OVER)
        await self._delete(fragment)
        return False

    async def _start(self, fragment: HostedFragment) -> None:
        """Instantiate and connect. Needs the fragment's lock, and a claim that was granted."""
        assignment = fragment.record.assignment
        hello = await self._supervisor.prepare()
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
            )
        )
        for location in list(fragment.producers.values()):
            await self._connect(fragment, location)
        fragment.flight_address = hello.flight_address._replace(host=self._peers.overlay.record.host)
        fragment.output_schema = reply.output_schema
        fragment.error = None
        fragment.up = self._supervisor.hello is hello
        if not fragment.up:
            raise UnavailableError("the engine ended while the fragment was starting")
        self._events.publish("fragment-started", fragment=fragment.fragment_id, generation=fragment.generation)
        self._report_due.set()
        self._tell_waiting()

    async def _delete(self, fragment: HostedFragment) -> None:
        """Stop it, if it runs, and delete its folder. Needs the fragment's lock; its record says HANDED_OVER."""
        folder = fragment.folder
        if self._supervisor.hello is not None:
            command = Destroy(fragment.fragment_id, fragment.generation, self._peers.node_id, str(folder))
            try:
                await self._supervisor.call(command)
            except SbonError as error:
                log.warning("the engine does not let go of %s: %s", fragment.fragment_id, error)
        await trio.to_thread.run_sync(lambda: shutil.rmtree(folder, ignore_errors=True))
        fragment.up = False
        self._supervisor.forget_status(fragment.fragment_id)
        del self._fragments[fragment.fragment_id]
        self._events.publish("fragment-released", fragment=fragment.fragment_id, generation=fragment.generation)
        self._tell_waiting()

    # --- asked by keepers and other hosts

    async def _prepare_for(self, _message: PrepareEngine, _sender: str) -> Done:
        """Whoever asks for an engine is about to send a fragment; it may have to wait for others that feed it."""
        await self._supervisor.prepare()
        self._expected_until_s = trio.current_time() + START_TIMEOUT_S
        return Done()

    async def _host(self, message: HostFragment, sender: str) -> Hosted:
        assignment = message.assignment
        _check_keeper(assignment, sender)
        self._expected_until_s = -math.inf
        await self._make_way(assignment)
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

    async def _accept(self, message: AcceptFragment, _sender: str, received: Path) -> Done:
        """The end of a move: durable here first, then the claim that commits it; starting it comes after the answer."""
        assignment = message.assignment
        self._expected_until_s = -math.inf
        await self._make_way(assignment)
        fragment = self._store.adopt(assignment, received)
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
            _check_keeper(fragment.record.assignment, sender)
            if fragment.conducting:
                return Done()  # its folder is being read; the claim at the end of the move is refused then
            async with fragment.lock:
                if self._is_here(fragment):
                    self._store.write(fragment, Phase.HANDED_OVER)
                    await self._delete(fragment)
        return Done()

    async def _await_running(self, message: AwaitRunning, _sender: str) -> NowRunning:
        """Raises SbonError if the fragment does not come up."""
        began_s = trio.current_time()
        running_s: float | None = None
        while True:
            news = self._engine_news
            fragment = self._fragments.get(message.fragment_id)
            if fragment is None or fragment.generation != message.generation:
                raise StaleGenerationError(f"{message.fragment_id} is not here with generation {message.generation}")
            if fragment.error is not None:
                raise SbonError(fragment.error)
            now_s = trio.current_time()
            status = self._supervisor.status(message.fragment_id)
            if fragment.up and status is not None and status.state is not FragmentState.STARTING:
                running_s = now_s if running_s is None else running_s
                if status.batch_id >= 0 or now_s >= running_s + FIRST_BATCH_S:
                    return NowRunning(status.batch_id, now_s - running_s)
            if now_s >= began_s + START_TIMEOUT_S:
                raise UnavailableError(f"{message.fragment_id} did not start within {START_TIMEOUT_S:g} s: it goes on")
            with trio.move_on_after(1.0):
                await news.wait()

    # --- links

    async def _connect_to(self, message: ConnectTo, sender: str) -> Done:
        fragment = self._fragments.get(message.consumer)
        if fragment is not None:
            _check_keeper(fragment.record.assignment, sender)
            await self._repoint(fragment, message.producer)
        return Done()

    async def _locate(self, fragment: HostedFragment, producer: str) -> None:
        """Ask where a producer is now, at most once in a while: the engine goes on complaining until it is found."""
        try:
            assignment = fragment.record.assignment
            location = await self._peers.ask(assignment.keepers[0], Locate(assignment.query_id, producer), Location)
            await self._repoint(fragment, location)
        except SbonError as error:
            log.info("%s cannot find %s: %s", fragment.fragment_id, producer, error)
        await trio.sleep(LOCATE_PAUSE_S)
        self._locating.discard((fragment.fragment_id, producer))

    async def _repoint(self, fragment: HostedFragment, location: Location) -> None:
        if not fragment.is_news(location):
            return
        fragment.producers[location.fragment_id] = location
        if fragment.up:
            await self._connect(fragment, location)

    async def _connect(self, fragment: HostedFragment, location: Location) -> None:
        """Feed all ports that read this producer."""
        if location.flight_address is None:
            return  # its host tells when its engine is up
        for port in fragment.record.assignment.spec.ports:
            if location.fragment_id in port.producers:
                await self._supervisor.call(
                    Connect(
                        fragment_id=fragment.fragment_id,
                        generation=fragment.generation,
                        owner=self._peers.node_id,
                        port=port.name,
                        producer=location.fragment_id,
                        producer_generation=location.generation,
                        address=location.flight_address,
                    )
                )
        self._events.publish(
            "link-connected",
            fragment=fragment.fragment_id,
            producer=location.fragment_id,
            node=self._peers.name(location.node_id),
        )

    # --- reporting to keepers

    async def _report_forever(self) -> None:
        while True:
            with trio.move_on_after(REPORT_PERIOD_S):
                await self._report_due.wait()
            self._report_due = trio.Event()
            by_query: defaultdict[str, list[HostedFragment]] = defaultdict(list)
            for fragment in self.fragments:
                if fragment.record.phase is Phase.RUNNING and fragment.confirmed and not fragment.conducting:
                    by_query[fragment.record.assignment.query_id].append(fragment)
            assert self._nursery is not None
            for query_id, fragments in by_query.items():
                if query_id not in self._reporting:
                    self._reporting.add(query_id)
                    self._nursery.start_soon(self._report, query_id, fragments)

    async def _report(self, query_id: str, fragments: list[HostedFragment]) -> None:
        """One report; it is no misfortune if it does not arrive, the next one comes soon."""
        sources = {location.node_id for fragment in fragments for location in fragment.producers.values()}
        measured = ((node_id, self._peers.overlay.measured_rtt_ms(node_id)) for node_id in sources)
        report = Report(
            query_id,
            tuple(self._fragment_report(fragment) for fragment in fragments),
            {node_id: rtt_ms for node_id, rtt_ms in measured if rtt_ms is not None},
        )
        try:
            keeper = fragments[0].record.assignment.keepers[0]
            reported = await self._peers.ask(keeper, report, Reported, REPORT_TIMEOUT_S)
        except SbonError as error:
            log.debug("no report of %s: %s", query_id, error)
            return
        finally:
            self._reporting.discard(query_id)
        for fragment in fragments:
            if fragment.fragment_id in reported.not_yours and self._is_here(fragment):
                fragment.confirmed = False
                self._settle_soon(fragment)

    def _fragment_report(self, fragment: HostedFragment) -> FragmentReport:
        status = self._supervisor.status(fragment.fragment_id) if fragment.up else None
        return FragmentReport(
            fragment.fragment_id, fragment.generation, fragment.flight_address, status, fragment.error
        )

    # --- for the conductor of a move away from here (daemon.migration)

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
        fragment.confirmed = False  # whatever happens, the next word on it is the keeper's
        try:
            yield fragment
        finally:
            fragment.conducting = False
            if self._is_here(fragment):
                self._settle_soon(fragment)

    async def stop(self, fragment: HostedFragment) -> int:
        """Have the engine let go of the fragment; its folder is then all of it. Returns its size in bytes."""
        async with fragment.lock:
            self._store.write(fragment, Phase.STOPPING)
            reply = await self._supervisor.call(
                Migrate(fragment.fragment_id, fragment.generation, self._peers.node_id), START_TIMEOUT_S
            )
            fragment.up = False
            fragment.flight_address = None
            return reply.state_bytes

    async def reclaim(self, fragment: HostedFragment) -> bool:
        """After a move of which the outcome is not known: ask the keeper. True if the fragment stays, and goes on."""
        async with fragment.lock:
            if not self._is_here(fragment):  # its query ended meanwhile
                return False
            fragment.confirmed = False
            return await self._claim(fragment)

    async def hand_over(self, fragment: HostedFragment) -> None:
        """The move is committed: forget the fragment."""
        async with fragment.lock:
            if self._is_here(fragment):
                self._store.write(fragment, Phase.HANDED_OVER)
                await self._delete(fragment)


def _check_keeper(assignment: Assignment, sender: str) -> None:
    if sender != assignment.keepers[0]:
        raise SbonError(f"only the keeper of query {assignment.query_id} may do that")
