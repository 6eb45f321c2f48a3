"""The conductor of a move, at the host that the fragment leaves (SBON ICDE'06 section 3.3; DESIGN: Ownership).

The steps: *announce* (the target holds room for it, and the keepers grant it the next generation), *prepare* (the
target looks whether its disk has room for the state and its Spark is the same, starts its engine and rehearses the
fragment, which still runs here), *copy* (its state as it is now goes ahead), *await-output* (it has just let rows out:
then its silence is shortest), *stop*, *ship* (what has changed since, its durable acceptance, and the target's claim,
which commits the move), *activate* (the target instantiates it from the folder and connects its inputs; the keepers
point its consumers at it).

If anything fails before the commit, the fragment goes on here; if it is not known whether it failed, the keeper is
asked, and until it answers the fragment rests: it is never lost and never runs twice.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import trio

from daemon.events import Events
from daemon.fragments import own_costs
from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.hosted_fragment import RECORD_FILE, HostedFragment
from daemon.fragments.hosting import Hosting
from daemon.fragments.reserving import Reserving
from daemon.peering.host_messages import PrepareEngine
from daemon.peering.move_messages import (
    AnnounceMove,
    AwaitRunning,
    ConductMove,
    MoveDone,
    MoveGranted,
    NowRunning,
)
from daemon.peering.parcels import Parcels
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment, MoveReport
from daemon.peering.requests import Done
from sbon.errors import SbonError, UnavailableError

log = logging.getLogger("sbon.migration")

#: For each MiB of a folder on its way, and for the target to make it durable.
SHIP_TIMEOUT_S = 60.0
#: After a copy that large another one is made, up to so many.
MUCH_BYTES = 4_000_000
MOST_COPIES = 3
#: What in a fragment's folder is about the host, and stays.
HOSTS_OWN = frozenset({RECORD_FILE, "lock"})


class Conductor:
    """Moves fragments away from this host. Several may move at once, of different queries."""

    def __init__(self, peers: Peers, hosting: Hosting, events: Events, parcels: Parcels, reserving: Reserving) -> None:
        self._peers = peers
        self._reserving = reserving
        self._hosting = hosting
        self._events = events
        self._parcels = parcels
        peers.handle(ConductMove, self._conduct)

    async def _conduct(self, message: ConductMove, _sender: str) -> MoveReport:
        fragment = self._hosting.find(message.fragment_id)
        if fragment is not None and fragment.generation != message.generation:
            raise UnavailableError(f"{message.fragment_id} has just changed its owner: try again")
        return await self.move(message.fragment_id, message.target, message.reason)

    async def move(self, fragment_id: str, target: str, reason: str) -> MoveReport:
        """Move a fragment that runs here to the node ``target``; return when it runs there.

        Raises SbonError, with the reason, if it stays here. Raises UnavailableError too if it has gone, but cannot be
        seen to run yet: its new host goes on trying.
        """
        with self._hosting.conducting(fragment_id) as fragment:
            move = _Move(
                self._peers, self._hosting, self._events, self._parcels, self._reserving, fragment, target, reason
            )
            return await move.carry_out()


class _Move:
    """One move, with what is measured of it."""

    def __init__(
        self,
        peers: Peers,
        hosting: Hosting,
        events: Events,
        parcels: Parcels,
        reserving: Reserving,
        fragment: HostedFragment,
        target: str,
        reason: str,
    ) -> None:
        self._peers = peers
        self._hosting = hosting
        self._events = events
        self._parcels = parcels
        self._reserving = reserving
        self._fragment = fragment
        self._target = target
        self._reason = reason
        self._steps_s: dict[str, float] = {}
        self._sent_bytes: Counter[str] = Counter()

    async def carry_out(self) -> MoveReport:
        fragment = self._fragment
        name = self._peers.name(self._target)
        shipping = False
        state_bytes = 0
        try:
            with self._step("announce"):
                taken = own_costs.demand(self._hosting, fragment)
                await self._reserving.for_move(self._target, fragment.record.assignment, taken)
                granted = await self._announce()
            with self._step("prepare"):
                await self._peers.ask(self._target, self._preparation(granted), Done, START_TIMEOUT_S)
            with self._step("copy"):
                await self._copy_ahead()
            with self._step("await-output"):
                await self._hosting.await_output(fragment)
            async with self._alone_with_target():
                stopped_s = trio.current_time()
                with self._step("stop"):
                    state_bytes = await self._hosting.stop(fragment)
                with self._step("ship"):
                    shipping = True
                    await self._ship(granted)
        except SbonError as error:
            stays = await self._stays()
            if stays or not shipping or not isinstance(error, UnavailableError):
                await self._reserving.release(fragment.record.assignment.query_id, [self._target])
                what = "stays where it is" if stays else "was not moved: its query has ended"
                self._events.publish("move-failed", fragment=fragment.fragment_id, target=name, error=str(error))
                raise type(error)(f"{fragment.fragment_id} {what} ({error})") from error
            # Only the answer was lost: it has gone.
        await self._hosting.leave_behind(fragment)
        with self._step("activate"):
            running = await self._peers.ask(
                self._target, AwaitRunning(fragment.fragment_id, granted.generation), NowRunning, START_TIMEOUT_S + 10.0
            )
            idle_s = running.waited_s if running.batch_id < 0 else 0.0
            downtime_s = trio.current_time() - stopped_s - idle_s
        report = MoveReport(
            query_id=granted.query_id,
            fragment_id=fragment.fragment_id,
            generation=granted.generation,
            source=self._peers.overlay.record.name,
            target=name,
            reason=self._reason,
            state_bytes=state_bytes,
            downtime_ms=downtime_s * 1000.0,
            steps_s=self._steps_s,
            sent_bytes=dict(self._sent_bytes),
        )
        await self._finish(report)
        return report

    async def _announce(self) -> Assignment:
        assignment = self._fragment.record.assignment
        message = AnnounceMove(assignment.query_id, assignment.fragment_id, assignment.generation, self._target)
        return (await self._peers.ask_any(assignment.keepers, message, MoveGranted)).assignment

    def _preparation(self, granted: Assignment) -> PrepareEngine:
        status = self._hosting.status(granted.fragment_id)
        state_bytes = 0 if status is None else status.state_bytes
        return PrepareEngine(granted.query_id, granted, state_bytes, self._fragment.spark_version)

    async def _copy_ahead(self) -> None:
        """Most of the state, while the fragment goes on; again, as long as much has changed meanwhile. Without it the
        move only takes longer."""
        with self._copying():
            for _ in range(MOST_COPIES):
                async with self._fragment.copies.turn(self._target):
                    sent_bytes = await self._copy_once()
                if sent_bytes + await self._follow() < MUCH_BYTES:
                    return

    @asynccontextmanager
    async def _alone_with_target(self) -> AsyncIterator[None]:
        """Inside the block nobody else sends the target anything of the fragment. It may be a replica, too: results
        wait for it meanwhile, so no more is sent before the stop than it lacks of the newest batches."""
        async with self._fragment.copies.turn(self._target):
            with self._copying():
                if self._fragment.snapshot is not None:
                    await self._copy_once()
            yield

    @contextmanager
    def _copying(self) -> Iterator[None]:
        try:
            with self._hosting.reading_snapshots(self._fragment):
                yield
        except (SbonError, OSError) as error:
            log.info("no state of %s goes ahead: %s", self._fragment.fragment_id, error)

    async def _copy_once(self) -> int:
        """What the target does not have of a snapshot, in our turn. Returns its bytes."""
        fragment = self._fragment
        snapshot = await self._hosting.snapshot(fragment)
        if snapshot is None:
            return 0
        sent_bytes = await fragment.copies.send(
            self._peers,
            self._parcels,
            self._target,
            fragment.record.assignment,
            snapshot,
            fragment.spark_version,
            SHIP_TIMEOUT_S,
        )
        self._sent_bytes["copy"] += sent_bytes
        return sent_bytes

    async def _follow(self) -> int:
        """What a copy of a snapshot could do without. Returns its bytes."""
        fragment = self._fragment
        assignment = fragment.record.assignment
        sent_bytes = await fragment.copies.follow(self._parcels, self._target, assignment, SHIP_TIMEOUT_S)
        self._sent_bytes["copy"] += sent_bytes
        return sent_bytes

    async def _ship(self, granted: Assignment) -> None:
        """All that is in the folder now, of which the target has some. SbonError, but not UnavailableError, if this
        host's own disk refuses: then the target has not got it."""
        fragment = self._fragment
        try:
            self._sent_bytes["ship"] = await fragment.copies.hand_over(
                self._parcels, self._target, granted, fragment.folder, HOSTS_OWN, SHIP_TIMEOUT_S
            )
        except OSError as error:
            raise SbonError(f"{fragment.folder} cannot be sent ({error.strerror or error}): see its disk") from error

    async def _stays(self) -> bool:
        """Whether the fragment is still ours after a failure. If the keeper does not answer, hosting goes on asking."""
        try:
            return await self._hosting.reclaim(self._fragment)
        except UnavailableError:
            return True

    async def _finish(self, report: MoveReport) -> None:
        self._events.publish("migrated", **_as_fields(report))
        try:
            await self._peers.ask_any(self._fragment.record.assignment.keepers, MoveDone(report), Done)
        except SbonError as error:
            log.info("the keeper does not hear of the end of the move: %s", error)
        await self._hosting.hand_over(self._fragment)

    @contextmanager
    def _step(self, name: str) -> Iterator[None]:
        began_s = trio.current_time()
        yield
        self._steps_s[name] = trio.current_time() - began_s
        self._events.publish(
            f"move-{name}",
            fragment=self._fragment.fragment_id,
            target=self._peers.name(self._target),
            seconds=self._steps_s[name],
            sent_bytes=self._sent_bytes[name],
        )


def _as_fields(report: MoveReport) -> dict[str, object]:
    """For an event: the report under the names that events use."""
    return {
        "query": report.query_id,
        "fragment": report.fragment_id,
        "generation": report.generation,
        "source": report.source,
        "target": report.target,
        "reason": report.reason,
        "state_bytes": report.state_bytes,
        "downtime_ms": report.downtime_ms,
        "steps_s": report.steps_s,
        "sent_bytes": report.sent_bytes,
    }
