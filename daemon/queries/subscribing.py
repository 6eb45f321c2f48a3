"""Fragments that several queries read: subscriptions, at the keepers of both sides (DESIGN: Queries, fragments, ports).

The keepers of the query with which a fragment came grant them; the keepers of a query that reads renew them, each for
itself, for as long as the query needs them, and learn on the way where the fragment is. A subscription that a majority
of the granting keepers has not heard of for long is dropped, and so is one whose reader does not read although others
wait for it; what nobody reads then ends. A query whose subscription is gone fails, and says why.
"""

from __future__ import annotations

import logging
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping

import trio

from daemon.events import Events
from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import FragmentStore, Phase
from daemon.fragments.hosting import Hosting
from daemon.peering.peers import Peers
from daemon.peering.query_messages import KeptBy, QueryStatus, Reader, Reused
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import (
    AskUnread,
    ConsumersSet,
    Reading,
    RenewSubscriptions,
    SetConsumers,
    Subscribe,
    Subscribed,
    SubscriptionsRenewed,
    Unread,
    Unsubscribe,
)
from daemon.queries import sharing
from daemon.queries.keeper import Keeper
from daemon.queries.record_keeping import RecordKeeping
from daemon.queries.relaying import Relaying
from sbon.engine_messages import SetReaders, cursor_name
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

log = logging.getLogger("sbon.subscribing")

#: A subscription outlives the lease of an owner so many times: a takeover must not end it.
LEASES = 8
#: It is renewed so often while it lasts, and at least once in so long: on the way is heard who reads, and from where.
RENEWALS = 10
LONGEST_PAUSE_S = 5.0
ASK_TIMEOUT_S = 5.0
_RUN_OUT = "its subscription has run out, or it did not read while others had to wait for it"
#: For the owner of a fragment to tell its engine of a new reader.
SUBSCRIBE_TIMEOUT_S = 30.0


class Subscriptions:
    """What this node, as a keeper, grants to others, and what it asks of others."""

    def __init__(
        self,
        peers: Peers,
        keeping: RecordKeeping,
        keeper: Keeper,
        events: Events,
        lease_s: float,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """``lease_s``: as for owners of fragments, the same on all nodes."""
        self._peers = peers
        self._keeping = keeping
        self._keeper = keeper
        self._events = events
        self._lasts_s = LEASES * lease_s
        self._monotonic_s = monotonic_s
        #: By cursor: when it was heard of here, and what was said.
        self._heard_s: dict[str, float] = {}
        self._readings: dict[str, Reading] = {}
        self._dropped: set[tuple[str, str]] = set()
        #: By fragment: cursors for which others have waited for too long.
        self._stuck: defaultdict[str, set[str]] = defaultdict(set)
        self._relaying = Relaying(peers, keeper.flows, events)
        self._due = trio.Event()
        keeper.flows.readings = self._of_readers
        keeper.on_release = self._look_soon
        keeper.on_waiting = self._note_stuck
        peers.handle(Subscribe, self._subscribe)
        peers.handle(Unsubscribe, self._unsubscribe)
        peers.handle(RenewSubscriptions, self._renew_for)
        peers.handle(AskUnread, self._answer_unread)

    async def run(self) -> None:
        """Renew what is needed here, and drop what nobody renews, until cancelled."""
        while True:
            self._forget()
            async with trio.open_nursery() as nursery:
                for record in self._keeping.records:
                    if record.reused:
                        nursery.start_soon(self._renew, record)
                    if record.readers:
                        nursery.start_soon(self._drop_silent, record)
                    for fragment_id in record.fragments.keys() & self._stuck.keys():
                        nursery.start_soon(self._detach, record, fragment_id, self._stuck.pop(fragment_id))
                    nursery.start_soon(self._relaying.look_at_own, record)
            with trio.move_on_after(min(LONGEST_PAUSE_S, self._lasts_s / RENEWALS)):
                await self._due.wait()
            self._due = trio.Event()

    def _forget(self) -> None:
        """What is about cursors and queries that are not known here any more."""
        cursors = {cursor for record in self._keeping.records for cursor in record.readers}
        queries = {record.query_id for record in self._keeping.records}
        self._heard_s = {cursor: at_s for cursor, at_s in self._heard_s.items() if cursor in cursors}
        self._readings = {cursor: reading for cursor, reading in self._readings.items() if cursor in cursors}
        self._dropped = {key for key in self._dropped if key[0] in queries}

    def _look_soon(self) -> None:
        self._due.set()

    # --- granting

    async def _subscribe(self, message: Subscribe, _sender: str) -> Subscribed:
        reader = Reader(message.fragment_id, message.reader, message.reader_keepers)
        known = self._keeper.record(message.query_id)
        record = await self._keeping.change(
            message.query_id,
            known.keepers,
            lambda record: record and sharing.subscribe(record, message.cursors, reader),
        )
        if record is None:
            raise SbonError(f"query {message.query_id} is not kept any more")
        self._heard_s.update(dict.fromkeys(message.cursors, self._monotonic_s()))
        fragment = record.fragment(message.fragment_id)
        assert fragment.output_schema is not None, "it has started"
        assignment = record.assignment(message.fragment_id)
        reply = await self._peers.ask(fragment.owner, SetConsumers(assignment), ConsumersSet, SUBSCRIBE_TIMEOUT_S)
        self._events.publish("subscribed", fragment=message.fragment_id, reader=message.reader)
        starts = {cursor: reply.starts[cursor] for cursor in message.cursors if cursor in reply.starts}
        if len(starts) < len(message.cursors):
            raise UnavailableError(f"the readers of {message.fragment_id} have just changed: try again")
        return Subscribed(record.location(message.fragment_id), fragment.output_schema, starts)

    async def _unsubscribe(self, message: Unsubscribe, _sender: str) -> Done:
        if self._keeping.find(message.query_id) is not None:
            await self._drop(self._keeper.record(message.query_id), message.cursors)
        return Done()

    async def _drop(self, known: QueryRecord, cursors: tuple[str, ...]) -> None:
        if not known.readers.keys() & set(cursors):
            return
        record = await self._keeping.change(
            known.query_id, known.keepers, lambda record: record and sharing.unsubscribe(record, cursors)
        )
        for cursor in cursors:
            self._heard_s.pop(cursor, None)
            self._readings.pop(cursor, None)
        if record is not None:
            self._events.publish("unsubscribed", query=known.query_id, cursors=list(cursors))
            self._keeper.release_soon(record)

    async def _renew_for(self, message: RenewSubscriptions, _sender: str) -> SubscriptionsRenewed:
        known = self._keeping.last_known(message.query_id)
        record = self._keeping.find(message.query_id)
        if known is not None and record is None:
            return SubscriptionsRenewed((), {}, known.kept_by)
        readers = {} if record is None else record.readers
        why = "its query is not known here" if record is None else record.error or _RUN_OUT
        gone = {cursor: why for cursor in message.readings if cursor not in readers}
        for cursor in message.readings.keys() - gone.keys():
            self._heard_s[cursor] = self._monotonic_s()
            reading = message.readings[cursor]
            if reading.rate_bytes_per_s is not None or cursor not in self._readings:
                self._readings[cursor] = reading  # or else that keeper is not the one who hears of it
        if record is None:
            return SubscriptionsRenewed((), gone)
        asking = {cursor: reading for cursor, reading in message.readings.items() if cursor not in gone}
        locations = tuple(record.location(each) for each in {readers[cursor].fragment_id for cursor in asking})
        fellows = self._relaying.fellows(record, asking, self._of_readers(record))
        return SubscriptionsRenewed(locations, gone, record.kept_by, fellows)

    def _of_readers(self, record: QueryRecord) -> Mapping[str, Reading]:
        return {cursor: self._readings[cursor] for cursor in record.readers if cursor in self._readings}

    async def _drop_silent(self, record: QueryRecord) -> None:
        """What a majority has not heard of, and not only this node."""
        for cursor in [cursor for cursor in record.readers if self._is_unread(cursor)]:
            question = AskUnread(record.query_id, cursor)
            gathered = await self._peers.gather(question, Unread, record.keepers, ASK_TIMEOUT_S)
            if sum(answer.unread for answer in gathered.answers.values()) > len(record.keepers) // 2:
                try:
                    await self._drop(record, (cursor,))
                except SbonError as error:
                    log.info("%s is not dropped now: %s", cursor, error)

    def _note_stuck(self, fragment_id: str, waited_for_s: Mapping[str, float]) -> None:
        """As long as a subscription lasts without a word; who reads again meanwhile is waited for."""
        if stuck := {cursor for cursor, waited_s in waited_for_s.items() if waited_s >= self._lasts_s}:
            self._stuck[fragment_id] |= stuck
            self._due.set()

    async def _detach(self, record: QueryRecord, fragment_id: str, stuck: set[str]) -> None:
        """Other queries wait for them no longer: their own fail."""
        behind = sharing.left_behind(record, fragment_id, stuck)
        try:
            await self._drop(record, tuple(behind & record.readers.keys()))
            if own := sorted(behind - record.readers.keys()):
                why = f"{own[0].partition(':')[0]} did not read {fragment_id} while other queries had to wait for it"
                await self._keeper.end(record.query_id, QueryStatus.FAILED, why)
        except SbonError as error:  # the owner says so again
            log.info("%s is not left behind now: %s", ", ".join(sorted(behind)), error)

    def _is_unread(self, cursor: str) -> bool:
        now_s = self._monotonic_s()
        return now_s - self._heard_s.setdefault(cursor, now_s) >= self._lasts_s

    async def _answer_unread(self, message: AskUnread, _sender: str) -> Unread:
        return Unread(self._is_unread(message.cursor))

    # --- reading

    async def subscribe(
        self, offered: Reader, cursors: tuple[str, ...], reader: str, reader_keepers: tuple[str, ...]
    ) -> Subscribed:
        """Subscribe to a fragment of the query ``offered.query_id``. Raises SbonError if it cannot be read (now)."""
        message = Subscribe(offered.query_id, offered.fragment_id, cursors, reader, reader_keepers)
        return await self._peers.ask_any(offered.keepers, message, Subscribed, SUBSCRIBE_TIMEOUT_S + ASK_TIMEOUT_S)

    async def unsubscribe(self, query_id: str, keepers: tuple[str, ...], cursors: tuple[str, ...]) -> None:
        """As well as can be: what is not told now runs out."""
        try:
            await self._peers.ask_any(keepers, Unsubscribe(query_id, cursors), Done)
        except SbonError as error:
            log.info("%s is not told that %s read no longer: %s", query_id, ", ".join(cursors), error)

    async def _renew(self, record: QueryRecord) -> None:
        needed = sharing.subscriptions(record)
        for fragment_id, reused in record.reused.items():
            if fragment_id in needed:
                await self._renew_one(record, reused, needed[fragment_id])
            elif (record.query_id, fragment_id) not in self._dropped:
                self._dropped.add((record.query_id, fragment_id))
                await self.unsubscribe(reused.query_id, reused.keepers, all_cursors(record, fragment_id))

    async def _renew_one(self, record: QueryRecord, reused: Reused, cursors: tuple[str, ...]) -> None:
        readings = {}
        for cursor in cursors:
            consumer = cursor.partition(":")[0]
            reader, flows = record.fragment(consumer), self._keeper.flows
            link = reused.fragment_id, consumer
            readings[cursor] = Reading(reader.owner, flows.rate(*link), reader.flight_address, flows.relay(*link))
        message = RenewSubscriptions(reused.query_id, readings)
        gathered = await self._peers.gather(message, SubscriptionsRenewed, reused.keepers, ASK_TIMEOUT_S)
        answers = list(gathered.answers.values())
        kept_by = max((each.kept_by for each in answers if each.kept_by), key=lambda each: each.changes, default=None)
        votes = Counter(reason for answer in answers for reason in set(answer.gone.values()))
        try:
            if sum(votes.values()) > len(reused.keepers) // 2:
                why = f"{reused.fragment_id}, which it reads, is gone: {votes.most_common(1)[0][0]}"
                await self._fail(record, reused.fragment_id, why)
                return
            await self._learn_keepers(record, reused.query_id, kept_by)
            await self._locate(record, reused, answers)
            await self._relaying.look(record, reused, [fellow for answer in answers for fellow in answer.fellows])
        except SbonError as error:
            log.info("query %s does not keep what became of %s now: %s", record.query_id, reused.fragment_id, error)

    async def _learn_keepers(self, known: QueryRecord, query_id: str, kept_by: KeptBy | None) -> None:
        """One is replaced at a time, and asked of several times before the next one is: so one of them always knows."""
        if kept_by is not None and sharing.read_from_keepers(known, query_id, kept_by) is not known:
            await self._keeping.change(
                known.query_id,
                known.keepers,
                lambda record: record and sharing.read_from_keepers(record, query_id, kept_by),
            )

    async def _locate(self, known: QueryRecord, reused: Reused, answers: list[SubscriptionsRenewed]) -> None:
        locations = [location for answer in answers for location in answer.locations]
        here = [location for location in locations if location.fragment_id == reused.fragment_id]
        newest = max(here, key=lambda location: location.generation, default=None)
        if newest is None or newest.flight_address is None or sharing.located(known, newest) is known:
            return
        record = await self._keeping.change(
            known.query_id, known.keepers, lambda record: record and sharing.located(record, newest)
        )
        if record is not None:
            await self._keeper.tell_consumers(record, reused.fragment_id)

    async def _fail(self, known: QueryRecord, fragment_id: str, why: str) -> None:
        """The query, and those that read what it made of the fragment."""
        record = await self._keeping.change(
            known.query_id, known.keepers, lambda record: record and sharing.broken(record, fragment_id)
        )
        if record is not None:
            self._keeper.release_soon(record)
        await self._keeper.end(known.query_id, QueryStatus.FAILED, why)


def all_cursors(record: QueryRecord, fragment_id: str) -> tuple[str, ...]:
    """Those with which a fragment of another query was ever read by this one."""
    return tuple(
        cursor_name(consumer, port.name)
        for consumer, fragment in record.fragments.items()
        for port in fragment.spec.ports
        if fragment_id in port.producers
    )


class ConsumerSetting:
    """At hosts: the consumers of the fragments here, as their keepers say, written down and told to the engine."""

    def __init__(self, peers: Peers, hosting: Hosting, supervisor: EngineSupervisor, store: FragmentStore) -> None:
        self._peers = peers
        self._hosting = hosting
        self._supervisor = supervisor
        self._store = store
        peers.handle(SetConsumers, self._set)

    async def _set(self, message: SetConsumers, sender: str) -> ConsumersSet:
        new = message.assignment
        fragment = self._hosting.find(new.fragment_id)
        if fragment is None or fragment.generation != new.generation:
            raise StaleGenerationError(f"{new.fragment_id} is not here with generation {new.generation}")
        fragment.record.assignment.check_keeper(sender)
        async with fragment.lock:
            if not fragment.up or fragment.record.phase is not Phase.RUNNING:
                raise UnavailableError(f"{new.fragment_id} is starting or moving: try again in some seconds")
            assignment = fragment.record.assignment.read_by(new)
            self._store.write(fragment, Phase.RUNNING, assignment)
            command = SetReaders(
                assignment.fragment_id, assignment.generation, self._peers.node_id, assignment.consumers
            )
            return ConsumersSet((await self._supervisor.call(command)).starts)
