"""At keepers: when an owner's lease is over, its fragment goes to a replica (DESIGN: Ownership)."""

from __future__ import annotations

import logging
from contextlib import suppress
from dataclasses import dataclass, field

import trio

from daemon.events import Events
from daemon.peering import query_rules
from daemon.peering.keeper_messages import (
    Adopted,
    AdoptFragment,
    AskMissed,
    CheckReplica,
    Missed,
    ReplicaChecked,
)
from daemon.peering.peers import Peers
from daemon.peering.query_record import QueryRecord
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError

log = logging.getLogger("sbon.failover")

LOOK_PERIOD_S = 0.5
ASK_TIMEOUT_S = 2.0
#: Between two attempts about one fragment by one keeper.
PAUSE_S = 3.0
#: For which a keeper leaves it to those who come before it in the record.
TURN_S = 1.5


@dataclass(slots=True)
class _Found:
    """Whether the owner has the fragment, whether a majority of keepers misses the owner, and who has a replica of it
    that is not damaged."""

    there: bool = False
    missed: bool = False
    whole: set[str] = field(default_factory=set)


class Failover:
    """Looks after the fragments whose owners this node, as one of their keepers, does not hear of any more."""

    def __init__(self, peers: Peers, keeping: RecordKeeping, events: Events) -> None:
        self._peers = peers
        self._keeping = keeping
        self._events = events
        self._busy: set[str] = set()

    async def run(self) -> None:
        async with trio.open_nursery() as nursery:
            while True:
                for record, fragment_id in self._keeping.overdue():
                    if fragment_id not in self._busy:
                        self._busy.add(fragment_id)
                        nursery.start_soon(self._rescue, record, fragment_id)
                await trio.sleep(LOOK_PERIOD_S)

    async def _rescue(self, record: QueryRecord, fragment_id: str) -> None:
        """Remind the owner: it may not know that it is one. If it does not have the fragment, a replica is to."""
        fragment = record.fragment(fragment_id)
        try:
            found = await self._look_into(record, fragment_id)
            if found.missed and not found.there and await self._is_still_so(record, fragment_id):
                agreed = await self._keeping.change(
                    record.query_id,
                    record.keepers,
                    lambda record: (
                        record and query_rules.take_over(record, fragment_id, fragment.generation, found.whole)
                    ),
                )
                if agreed is not None:
                    self._tell(agreed, fragment_id, fragment.owner)
                    await self._adopts(agreed, fragment_id)
        except SbonError as error:
            log.info("%s is not taken over now: %s", fragment_id, error)
        await trio.sleep(PAUSE_S)
        self._busy.discard(fragment_id)

    async def _is_still_so(self, record: QueryRecord, fragment_id: str) -> bool:
        """Wait for one's turn: keepers find it out at the same moment, and would be in each other's way."""
        fragment = record.fragment(fragment_id)
        turns = sorted(record.keepers, key=lambda keeper: keeper == fragment.owner)  # who is missed comes last
        await trio.sleep(TURN_S * turns.index(self._peers.node_id))
        now = self._keeping.find(record.query_id)
        return now is not None and now.fragment(fragment_id).generation == fragment.generation

    async def _look_into(self, record: QueryRecord, fragment_id: str) -> _Found:
        """Ask everybody at once, since some of them will not answer."""
        found = _Found()

        async def remind() -> None:
            found.there = await self._adopts(record, fragment_id)
            if found.there:
                nursery.cancel_scope.cancel()

        async def look() -> None:
            found.missed = await self._is_missed(record, fragment_id)

        async def check(host: str) -> None:
            with suppress(SbonError):
                checked = await self._peers.ask(host, CheckReplica(fragment_id), ReplicaChecked, ASK_TIMEOUT_S)
                if checked.whole:
                    found.whole.add(host)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(remind)
            nursery.start_soon(look)
            for host in record.fragment(fragment_id).replicas:
                nursery.start_soon(check, host)
        return found

    async def _is_missed(self, record: QueryRecord, fragment_id: str) -> bool:
        """Whether a majority misses the owner. Others would refuse a takeover, and it would only be in the way."""
        message = AskMissed(record.query_id, fragment_id, record.fragment(fragment_id).generation)
        gathered = await self._peers.gather(message, Missed, record.keepers, ASK_TIMEOUT_S)
        return sum(1 for answer in gathered.answers.values() if answer.missed) > len(record.keepers) // 2

    async def _adopts(self, record: QueryRecord, fragment_id: str) -> bool:
        """Whether the owner, by the record, has the fragment. False as well if it cannot be told or does not answer."""
        try:
            message = AdoptFragment(record.assignment(fragment_id))
            return (await self._peers.ask(record.fragment(fragment_id).owner, message, Adopted, ASK_TIMEOUT_S)).here
        except SbonError as error:
            log.info("the owner of %s: %s", fragment_id, error)
            return False

    def _tell(self, record: QueryRecord, fragment_id: str, before: str) -> None:
        fragment = record.fragment(fragment_id)
        self._events.publish(
            "fragment-taken-over",
            fragment=fragment_id,
            generation=fragment.generation,
            source=self._peers.name(before),
            target=self._peers.name(fragment.owner),
        )
