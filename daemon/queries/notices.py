"""Notices of what this node has, left where others look for it, and found from anywhere (:mod:`overlay.shelves`)."""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterable

import msgspec
import trio

from daemon.peering.peers import Peers
from daemon.peering.requests import Done
from overlay.identity import NodeId
from overlay.records import NodeRecord
from overlay.shelves import HOLDERS, MAX_TOPICS, RENEW_S, SHELVES, Board, place_of, shelf_of
from sbon.errors import SbonError
from sbon.objectives import NearestTo

log = logging.getLogger("sbon.notices")

#: What is new is told after so long at most.
LOOK_PERIOD_S = 5.0
#: Whoever looks for a name waits so long.
FIND_TIMEOUT_S = 3.0
#: Of searches for shelves, at a time.
AT_ONCE = 4


class LeaveNotices(msgspec.Struct, frozen=True):
    """The sender has these, by name."""

    owner: NodeRecord
    topics: tuple[str, ...]


class FindNotices(msgspec.Struct, frozen=True):
    """Who has something of these names? None: who has anything?"""

    topics: tuple[str, ...] | None


class NoticesFound(msgspec.Struct, frozen=True):
    owners: tuple[NodeRecord, ...]


class Notices:
    """Leaves, keeps and finds them. ``topics()`` are the names that this node has something to say about."""

    def __init__(self, peers: Peers, topics: Callable[[], frozenset[str]]) -> None:
        self._peers = peers
        self._topics = topics
        self._board = Board()
        peers.handle(LeaveNotices, self._leave_for)
        peers.handle(FindNotices, self._find_for)

    async def run(self) -> None:
        """Until cancelled."""
        told: frozenset[str] = frozenset()
        due_s = trio.current_time()
        while True:
            await trio.sleep(LOOK_PERIOD_S)
            topics = self._topics()
            if topics and (topics - told or trio.current_time() >= due_s):
                await self._leave(topics)
                told, due_s = topics, trio.current_time() + RENEW_S

    async def find(self, topics: Iterable[str] | None) -> list[NodeRecord]:
        """Those who have left word of something of these names, as far as they are found within seconds; None: all."""
        names = None if topics is None else tuple(topics)
        shelves = range(SHELVES) if names is None else sorted({shelf_of(name) for name in names})
        found: dict[NodeId, NodeRecord] = {}

        async def ask(holders: list[NodeRecord]) -> None:
            gathered = await self._peers.gather(
                FindNotices(names), NoticesFound, [holder.node_id for holder in holders], FIND_TIMEOUT_S
            )
            for answer in gathered.answers.values():
                found.update({owner.node_id: owner for owner in answer.owners})

        with trio.move_on_after(FIND_TIMEOUT_S):
            await self._at_shelves(shelves, lambda _, holders: ask(holders))
        for owner in found.values():
            self._peers.meet(owner)
        return list(found.values())

    async def _leave(self, topics: frozenset[str]) -> None:
        by_shelf: defaultdict[int, list[str]] = defaultdict(list)
        for topic in sorted(topics)[:MAX_TOPICS]:
            by_shelf[shelf_of(topic)].append(topic)
        by_holder: defaultdict[NodeId, list[str]] = defaultdict(list)

        async def note(shelf: int, holders: list[NodeRecord]) -> None:
            for holder in holders:
                by_holder[holder.node_id] += by_shelf[shelf]

        await self._at_shelves(by_shelf, note)
        own = self._peers.overlay.record
        for holder, there in by_holder.items():
            try:
                await self._peers.ask(holder, LeaveNotices(own, tuple(there)), Done)
            except SbonError as error:
                log.debug("no notice left at %s: %s", self._peers.name(holder), error)

    async def _at_shelves(
        self, shelves: Iterable[int], then: Callable[[int, list[NodeRecord]], Awaitable[None]]
    ) -> None:
        """``await then(shelf, those who keep it)``, for each."""
        turn = trio.CapacityLimiter(AT_ONCE)

        async def search(shelf: int) -> None:
            async with turn:
                place = place_of(shelf, len(self._peers.overlay.coordinate.vector_ms))
                try:
                    holders = await self._peers.search(NearestTo(place), HOLDERS)
                except SbonError as error:
                    log.debug("shelf %d is not found: %s", shelf, error)
                    return
            await then(shelf, holders)

        async with trio.open_nursery() as nursery:
            for shelf in shelves:
                nursery.start_soon(search, shelf)

    async def _leave_for(self, message: LeaveNotices, sender: NodeId) -> Done:
        if message.owner.node_id != sender:
            raise SbonError("a node leaves notices of what it has itself, and of nothing else")
        if not self._board.leave(message.owner, message.topics, trio.current_time()):
            raise SbonError("there is no room for more notices here")
        return Done()

    async def _find_for(self, message: FindNotices, _sender: NodeId) -> NoticesFound:
        return NoticesFound(tuple(self._board.find(message.topics, trio.current_time())))
