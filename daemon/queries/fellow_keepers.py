"""The keepers of a query look after each other: who knows less is told, and who is lost is replaced.

The rules are :mod:`sbon.ownership.company` and :mod:`sbon.ownership.register`.
"""

from __future__ import annotations

import logging
import math
import time
from collections import defaultdict
from collections.abc import Callable, Iterable

import trio

from daemon.events import Events
from daemon.peering import query_rules
from daemon.peering.keeper_messages import CompareRecords, RecordsCompared
from daemon.peering.peers import Peers
from daemon.peering.query_record import KEEPERS, QueryRecord
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError
from sbon.ownership.company import Company, next_keepers

log = logging.getLogger("sbon.keeper")

#: How often one keeper asks another while a lease lasts, and after how many leases of silence it is replaced.
ASKS_PER_LEASE = 2
PATIENCE_LEASES = 4.0


def keeper_candidates(peers: Peers, owners: Iterable[str]) -> list[str]:
    """Other nodes that could keep a query, the best first: the ``owners`` of its streams, then the nearest."""
    members = {record.node_id for record in peers.overlay.members()}
    first = [owner for owner in dict.fromkeys(owners) if owner in members]
    near = sorted(members - set(first), key=lambda node_id: peers.overlay.measured_rtt_ms(node_id) or math.inf)
    return [*first, *near]


class FellowKeepers:
    """Of all queries that this node keeps with others. ``lease_s`` is the same on all nodes."""

    def __init__(
        self,
        peers: Peers,
        keeping: RecordKeeping,
        events: Events,
        lease_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._peers = peers
        self._keeping = keeping
        self._events = events
        self._period_s = lease_s / ASKS_PER_LEASE
        self._company = Company(PATIENCE_LEASES * lease_s)
        self._monotonic_s = monotonic_s
        peers.handle(CompareRecords, self._compare)

    async def run(self) -> None:
        while True:
            await trio.sleep(self._period_s)
            await self._ask_all()
            await self._replace_lost()

    def _kept_with_others(self) -> list[QueryRecord]:
        return [record for record in self._keeping.records if not record.is_over and len(record.keepers) > 1]

    async def _ask_all(self) -> None:
        shared: defaultdict[str, dict[str, int]] = defaultdict(dict)
        for record in self._kept_with_others():
            for keeper in record.keepers:
                if keeper != self._peers.node_id:
                    shared[keeper][record.query_id] = record.keeper_changes
        async with trio.open_nursery() as nursery:
            for keeper, changes in shared.items():
                nursery.start_soon(self._ask, keeper, changes)

    async def _ask(self, keeper: str, changes: dict[str, int]) -> None:
        try:
            compared = await self._peers.ask(keeper, CompareRecords(changes), RecordsCompared, self._period_s)
        except SbonError as error:
            log.debug("keeper %s: %s", self._peers.name(keeper), error)
            return
        self._company.heard(keeper, self._monotonic_s())
        for query_id in compared.different:
            await self._agree(query_id, lambda record: record)  # whoever knew less knows it then

    async def _compare(self, message: CompareRecords, _sender: str) -> RecordsCompared:
        known = {query_id: self._keeping.last_known(query_id) for query_id in message.keeper_changes}
        return RecordsCompared(
            tuple(
                query_id
                for query_id, changes in message.keeper_changes.items()
                if (record := known[query_id]) is None or record.keeper_changes != changes
            )
        )

    async def _replace_lost(self) -> None:
        kept = self._kept_with_others()
        fellows = {keeper for record in kept for keeper in record.keepers} - {self._peers.node_id}
        lost = self._company.lost(fellows, self._monotonic_s())
        for record in kept:
            owners = [fragment.owner for fragment in record.fragments.values() if fragment.spec.pinned]
            keepers = next_keepers(record.keepers, lost, keeper_candidates(self._peers, reversed(owners)), KEEPERS)
            if keepers is not None:
                await self._replace(record, keepers)

    async def _replace(self, record: QueryRecord, keepers: tuple[str, ...]) -> None:
        def change(known: QueryRecord | None) -> QueryRecord | None:
            return known and query_rules.with_keepers(known, keepers, record.keeper_changes)

        if await self._agree(record.query_id, change):
            names = [self._peers.name(keeper) for keeper in keepers]
            self._events.publish("keepers-changed", query=record.query_id, keepers=names)

    async def _agree(self, query_id: str, change: Callable[[QueryRecord | None], QueryRecord | None]) -> bool:
        known = self._keeping.last_known(query_id)
        if known is None:
            return False
        try:
            await self._keeping.change(query_id, known.keepers, change)
        except SbonError as error:
            log.info("the keepers of query %s: %s", query_id, error)
            return False
        return True
