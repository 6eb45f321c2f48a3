"""Readers of a fragment that read it through another reader, so that it crosses the sea once.

The first keeper of the query that is read tells who else reads it (:class:`Fellow`); that of the query that reads
decides, again with each renewal of its subscriptions, and tells the host of the reader. So it does for the readers of
its own query. A relay has no state
(:mod:`spark_bridge.relay`): all of this may be lost or wrong at any time, and only bytes take another way.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from daemon.events import Events
from daemon.peering.peers import Peers
from daemon.peering.query_messages import QueryStatus, Reused
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import Fellow, Reading, ReadThrough, RelayAt
from daemon.queries.flows import Flows
from sbon.engine_messages import FlightAddress, cursor_name
from sbon.errors import SbonError
from sbon.placement.problem import CostView

log = logging.getLogger("sbon.subscribing")

#: A relay is to be so much nearer than the producer before reading begins through it.
NEARER = 0.5
#: So many are told to each who asks.
MAX_FELLOWS = 4


class Relaying:
    """For the queries that this node keeps."""

    def __init__(self, peers: Peers, flows: Flows, events: Events) -> None:
        self._peers = peers
        self._flows = flows
        self._events = events

    def fellows(
        self, record: QueryRecord, asking: Mapping[str, Reading], readings: Mapping[str, Reading]
    ) -> tuple[Fellow, ...]:
        """Who else reads, and not through anybody, what is read by those who ask: for each the nearest ones.

        ``readings``: those of other queries, as far as they are known here, by cursor as ``asking``. Hosts report to
        the first keeper, so the others do not know.
        """
        if record.keeper != self._peers.node_id:
            return ()
        view, found = self._flows.cost_view(), dict[str, Fellow]()
        for cursor, reading in asking.items():
            direct = self._direct(record, record.readers[cursor].fragment_id, readings)
            others = [fellow for fellow in direct if fellow.cursor != cursor]
            others.sort(key=lambda fellow: view.rtt_ms(fellow.record.node_id, reading.node_id))
            found.update({fellow.cursor: fellow for fellow in others[:MAX_FELLOWS]})
        return tuple(found.values())

    def _direct(self, record: QueryRecord, fragment_id: str, readings: Mapping[str, Reading]) -> list[Fellow]:
        found = [
            self._fellow(fragment_id, cursor_name(consumer, port), reader.owner, reader.flight_address, is_own=True)
            for consumer, port in record.consumers(fragment_id)
            for reader in [record.fragment(consumer)]
            if self._flows.relay(fragment_id, consumer) is None
        ]
        found += [
            self._fellow(fragment_id, cursor, reading.node_id, reading.flight_address, is_own=False)
            for cursor, reading in readings.items()
            if record.readers[cursor].fragment_id == fragment_id and reading.through is None
        ]
        return [fellow for fellow in found if fellow is not None]

    def _fellow(
        self, fragment_id: str, cursor: str, node_id: str, address: FlightAddress | None, *, is_own: bool
    ) -> Fellow | None:
        """None as long as too little is known of it here."""
        node = self._peers.known(node_id)
        return None if node is None or address is None else Fellow(fragment_id, cursor, node, address, is_own)

    async def look(self, record: QueryRecord, reused: Reused, fellows: Iterable[Fellow]) -> None:
        """Have each consumer of ``reused`` read through whom it should."""
        if record.keeper != self._peers.node_id:
            return
        others = [each for each in fellows if each.fragment_id == reused.fragment_id]
        for each in others:
            self._peers.meet(each.record)
        await self._look(record, reused.fragment_id, reused.location.node_id, others)

    async def look_at_own(self, record: QueryRecord) -> None:
        """The same for what several fragments of one query read."""
        if record.keeper != self._peers.node_id or record.status is not QueryStatus.RUNNING:
            return
        for fragment_id, fragment in record.fragments.items():
            if len({consumer for consumer, _ in record.consumers(fragment_id)}) > 1:
                direct = self._direct(record, fragment_id, {})
                own = [msgspec.structs.replace(fellow, is_own=False) for fellow in direct]  # one of another
                await self._look(record, fragment_id, fragment.owner, own)

    async def _look(self, record: QueryRecord, fragment_id: str, producer: str, fellows: Sequence[Fellow]) -> None:
        view = self._flows.cost_view()
        for consumer in dict.fromkeys(consumer for consumer, _ in record.consumers(fragment_id)):
            host, present = record.fragment(consumer).owner, self._flows.relay(fragment_id, consumer)
            fellow = choose(host, consumer, producer, fellows, present, view)
            if fellow is not None or present is not None:
                relay = None if fellow is None else RelayAt(fellow.record.node_id, fellow.flight_address)
                await self._tell(host, ReadThrough(consumer, fragment_id, relay), present)

    async def _tell(self, host: str, message: ReadThrough, present: str | None) -> None:
        """Again and again: who is told may be started anew, and the engine of the relay, too."""
        try:
            await self._peers.ask(host, message, Done)
        except SbonError as error:
            log.info("%s does not hear through whom it reads: %s", message.consumer, error)
            return
        relay = None if message.relay is None else message.relay.node_id
        if relay != present:
            through = None if relay is None else self._peers.name(relay)
            self._events.publish("reads-through", consumer=message.consumer, producer=message.producer, node=through)


def choose(
    host: str, consumer: str, producer: str, fellows: Iterable[Fellow], present: str | None, view: CostView
) -> Fellow | None:
    """Through whom ``consumer`` on the node ``host`` is to read what runs on the node ``producer``; None: directly.

    ``present``: the node through which it reads now. Of two other queries' readers only who is nearer to the producer
    relays to who is farther (of two on one node the lesser name): so no two wait for each other.
    """
    direct_ms = view.rtt_ms(producer, host)
    best, best_ms = None, direct_ms
    for fellow in sorted((each for each in fellows if each.consumer != consumer), key=lambda each: each.cursor):
        node_id = fellow.record.node_id
        apart_ms = view.rtt_ms(node_id, host)
        is_near = apart_ms < (1.0 if node_id == present else NEARER) * direct_ms
        is_before = fellow.is_own or (view.rtt_ms(producer, node_id), fellow.consumer) < (direct_ms, consumer)
        if is_near and is_before and apart_ms < best_ms:
            best, best_ms = fellow, apart_ms
    return best
