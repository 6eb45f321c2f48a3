"""The keeper: the records of the queries whose sinks this node owns, on disk, and who may ask what of them.

The rules are those of :mod:`daemon.query_record`; here a record is made durable before anything is answered, consumers
are told where their producers are, and what has ended is released everywhere. A host that does not hear of it now asks,
or reports, later, and is told then.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import trio

from daemon import query_record
from daemon.durable import remove_durably, write_durably
from daemon.events import Events
from daemon.peers import Peers
from daemon.query_messages import (
    AnnounceMove,
    CancelQuery,
    Claim,
    Claimed,
    ConductMove,
    ConnectTo,
    DescribeQuery,
    FragmentReport,
    FragmentView,
    ListQueries,
    Locate,
    Location,
    MoveDone,
    MoveGranted,
    MoveReport,
    QueryStatus,
    QueryView,
    QueryViews,
    ReleaseFragment,
    Report,
    Reported,
    RequestMove,
)
from daemon.query_record import QueryRecord
from daemon.requests import Done
from sbon.engine_messages import FlightAddress, FragmentState
from sbon.errors import SbonError
from sbon.network_usage import Link, network_usage
from sbon.placement.problem import CostView

log = logging.getLogger("sbon.keeper")

#: A move that takes longer is given up; if it was committed, only its lock on the query is.
MOVE_TIMEOUT_S = 300.0
#: Records of ended queries that are kept to be shown.
MAX_ENDED = 100
_SUFFIX = ".query"
_SAFE_ID = re.compile(r"[A-Za-z0-9]{1,64}")


class Keeper:
    """The queries kept here. ``wall_s`` is the time of day in seconds since the epoch."""

    def __init__(self, peers: Peers, events: Events, root: Path, wall_s: Callable[[], float] = time.time) -> None:
        """``root`` is the folder of the records."""
        self._peers = peers
        self._events = events
        self._root = root
        self._wall_s = wall_s
        self._records: dict[str, QueryRecord] = {}
        self._reports: dict[str, FragmentReport] = {}
        #: Rates in bytes/s that were measured on links, by (producer, consumer); kept while a link is interrupted.
        self._rates: dict[tuple[str, str], float] = {}
        self._rtt_ms: dict[tuple[str, str], float] = {}
        self._nursery: trio.Nursery | None = None
        root.mkdir(parents=True, exist_ok=True)
        peers.handle(Claim, self._claim)
        peers.handle(Locate, self._locate)
        peers.handle(Report, self._report)
        peers.handle(AnnounceMove, self._announce)
        peers.handle(MoveDone, self._move_done)
        peers.handle(RequestMove, self._request_move)
        peers.handle(CancelQuery, self._cancel)
        peers.handle(DescribeQuery, self._describe)
        peers.handle(ListQueries, self._list)
        self._load()

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take up what was under way when the daemon ended, and serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            for record in list(self._records.values()):
                if record.status is QueryStatus.DEPLOYING:
                    self.end(record.query_id, QueryStatus.FAILED, "the daemon was restarted while it was being started")
                elif record.move is not None:
                    nursery.start_soon(self._expire, record.query_id, record.move)
            task_status.started()
            await trio.sleep_forever()

    # --- records

    def _load(self) -> None:
        for path in self._root.glob(f"*{_SUFFIX}"):
            try:
                record = msgspec.msgpack.decode(path.read_bytes(), type=QueryRecord)
            except msgspec.MsgspecError as error:
                raise SbonError(f"{path} cannot be read ({error}): move it away to start without that query") from error
            self._records[record.query_id] = record

    def _store(self, record: QueryRecord) -> None:
        """Durable first, then in force. There is no await in it: transitions follow each other."""
        if record is self._records.get(record.query_id):
            return
        assert _SAFE_ID.fullmatch(record.query_id)
        write_durably(self._root / f"{record.query_id}{_SUFFIX}", msgspec.msgpack.encode(record))
        self._records[record.query_id] = record

    def record(self, query_id: str) -> QueryRecord:
        """Raises SbonError if the query is not kept here."""
        record = self._records.get(query_id)
        if record is None:
            raise SbonError(f"query {query_id} is not kept here: see `sbon queries`")
        return record

    # --- for a deployment from here

    def add(self, record: QueryRecord) -> None:
        """A query that is being deployed."""
        self._forget_oldest()
        self._store(record)

    def started(self, query_id: str, fragment_id: str, address: FlightAddress, output_schema: str) -> None:
        """A fragment of a query that is being deployed has started at its first host."""
        record = self.record(query_id)
        fragment = record.fragment(fragment_id)
        self._store(
            query_record.started(
                record, fragment.owner, fragment_id, fragment.generation, address, output_schema=output_schema
            )
        )

    def set_running(self, query_id: str) -> None:
        """All fragments have started. Raises SbonError if the query has ended meanwhile."""
        self._store(query_record.running(self.record(query_id), self._wall_s()))
        self._events.publish("query-running", query=query_id)

    async def withdraw(self, query_id: str) -> None:
        """The deployment failed: release what was started, and forget that there was such a query."""
        record = self.record(query_id)
        self._store(query_record.ended(record, QueryStatus.FAILED))
        await self._release(record)
        self._forget(query_id)

    def end(self, query_id: str, status: QueryStatus, error: str | None = None) -> None:
        """The query is over: say so from now on, and release its fragments in the background."""
        record = self.record(query_id)
        if record.status.ended:
            return
        self._store(query_record.ended(record, status, error))
        details = {} if error is None else {"error": error}
        self._events.publish(f"query-{status}", query=query_id, **details)
        if self._nursery is not None:
            self._nursery.start_soon(self._release, record)

    async def _release(self, record: QueryRecord) -> None:
        async with trio.open_nursery() as nursery:
            for fragment_id, fragment in record.fragments.items():
                # A target of a move that is under way is told when it claims.
                nursery.start_soon(self._release_at, fragment.owner, ReleaseFragment(fragment_id, fragment.granted))

    async def _release_at(self, node_id: str, message: ReleaseFragment) -> None:
        try:
            await self._peers.ask(node_id, message, Done, timeout_s=60.0)
        except SbonError as error:
            log.info("%s is not told to release %s now: %s", self._peers.name(node_id), message.fragment_id, error)

    def _forget_oldest(self) -> None:
        ended = [record for record in self._records.values() if record.status.ended]
        for record in sorted(ended, key=lambda record: record.submitted_at_s)[: max(0, len(ended) - MAX_ENDED + 1)]:
            self._forget(record.query_id)

    def _forget(self, query_id: str) -> None:
        remove_durably(self._root / f"{query_id}{_SUFFIX}")
        record = self._records.pop(query_id)
        for fragment_id in record.fragments:
            self._reports.pop(fragment_id, None)
            for link in [link for link in self._rates if fragment_id in link]:
                del self._rates[link]

    # --- ownership

    async def _claim(self, message: Claim, sender: str) -> Claimed:
        record = self._records.get(message.query_id)
        if record is None:
            return Claimed(None)
        record, granted = query_record.claim(record, sender, message.fragment_id, message.generation)
        if not granted:
            return Claimed(None)
        before = self._records[message.query_id]
        assignment = record.assignment(message.fragment_id)
        self._store(record)
        if record.move is not before.move:
            what = "move-revoked" if record.move is None else "move-committed"
            self._events.publish(what, fragment=message.fragment_id, node=self._peers.name(sender))
        return Claimed(assignment)

    async def _locate(self, message: Locate, _sender: str) -> Location:
        return self.record(message.query_id).location(message.fragment_id)

    async def _report(self, message: Report, sender: str) -> Reported:
        not_yours = []
        self._rtt_ms.update({(sender, node_id): rtt_ms for node_id, rtt_ms in message.rtt_ms.items()})
        for report in message.fragments:
            record = self._records.get(message.query_id)
            if record is None or not query_record.owns(record, sender, report.fragment_id, report.generation):
                not_yours.append(report.fragment_id)
            else:
                self._take_report(record, sender, report)
        return Reported(tuple(not_yours))

    def _take_report(self, record: QueryRecord, sender: str, report: FragmentReport) -> None:
        fragment_id, generation = report.fragment_id, report.generation
        self._reports[fragment_id] = report
        self._note_rates(report)
        if report.flight_address is not None:
            known = record
            record = query_record.started(record, sender, fragment_id, generation, report.flight_address)
            if record is not known and self._nursery is not None:
                self._nursery.start_soon(self._tell_consumers, record, fragment_id)
            record = query_record.unlocked(record, fragment_id, generation)
        status = report.status
        if status is not None and status.state is FragmentState.FINISHED:
            record = query_record.finished(record, sender, fragment_id, generation)
        if record.status is QueryStatus.FINISHED:
            self.end(record.query_id, QueryStatus.FINISHED)
            return
        self._store(record)
        failed = status is not None and status.state is FragmentState.FAILED
        error = report.error or (status.error if status is not None and failed else None)
        if error is not None or failed:
            where = f"{fragment_id} on {self._peers.name(sender)}"
            self.end(record.query_id, QueryStatus.FAILED, f"{where} failed: {error or 'see its log'}")

    async def _tell_consumers(self, record: QueryRecord, fragment_id: str) -> None:
        """Best effort: a consumer that misses it asks as soon as its pulls fail."""
        location = record.location(fragment_id)
        async with trio.open_nursery() as nursery:
            for consumer in {consumer for consumer, _ in record.consumers(fragment_id)}:
                nursery.start_soon(self._tell_consumer, record.fragment(consumer).owner, ConnectTo(consumer, location))

    async def _tell_consumer(self, node_id: str, message: ConnectTo) -> None:
        try:
            await self._peers.ask(node_id, message, Done)
        except SbonError as error:
            log.info("%s is not told where %s is: %s", message.consumer, message.producer.fragment_id, error)

    # --- moves

    async def _request_move(self, message: RequestMove, _sender: str) -> MoveReport:
        record = self._record_of(message.fragment_id)
        query_record.check_movable(record, message.fragment_id, message.target)
        self._check_target(message.target)
        fragment = record.fragment(message.fragment_id)
        conduct = ConductMove(message.fragment_id, fragment.generation, message.target, message.reason)
        return await self._peers.ask(fragment.owner, conduct, MoveReport, MOVE_TIMEOUT_S)

    async def _announce(self, message: AnnounceMove, sender: str) -> MoveGranted:
        self._check_target(message.target)
        record = query_record.announce(
            self.record(message.query_id), sender, message.fragment_id, message.generation, message.target
        )
        move = record.move
        assert move is not None
        assignment = record.assignment(message.fragment_id, move.generation)
        self._store(record)
        if self._nursery is not None:
            self._nursery.start_soon(self._expire, record.query_id, move)
        return MoveGranted(assignment)

    def _check_target(self, node_id: str) -> None:
        target = self._peers.record(node_id)
        if not target.accepts_operators:
            raise SbonError(f"{target.name} takes no operators: set accept_operators = true in its configuration")

    async def _expire(self, query_id: str, move: query_record.PendingMove) -> None:
        await trio.sleep(MOVE_TIMEOUT_S)
        record = self._records.get(query_id)
        now = None if record is None else record.move
        if record is None or now is None:
            return
        if (now.fragment_id, now.generation) == (move.fragment_id, move.generation):
            self._store(query_record.expired(record))
            self._events.publish("move-expired", fragment=move.fragment_id, generation=move.generation)

    async def _move_done(self, message: MoveDone, _sender: str) -> Done:
        report = message.report
        self._store(query_record.moved(self.record(report.query_id), report, self._wall_s()))
        return Done()

    # --- what there is

    async def _cancel(self, message: CancelQuery, _sender: str) -> Done:
        record = self.record(message.query_id)
        if record.status.ended:
            raise SbonError(f"query {message.query_id} is {record.status} already")
        self.end(message.query_id, QueryStatus.CANCELLED)
        return Done()

    async def _describe(self, message: DescribeQuery, _sender: str) -> QueryView:
        return self.view(self.record(message.query_id))

    async def _list(self, _message: ListQueries, _sender: str) -> QueryViews:
        records = sorted(self._records.values(), key=lambda record: record.submitted_at_s)
        return QueryViews(tuple(self.view(record) for record in records))

    def _record_of(self, fragment_id: str) -> QueryRecord:
        for record in self._records.values():
            if fragment_id in record.fragments:
                return record
        raise SbonError(f"no query that is kept here has a fragment {fragment_id}: see `sbon operators`")

    def view(self, record: QueryRecord) -> QueryView:
        """A query with what was reported of it last."""
        now_s = self._wall_s()
        last_change_s = record.last_move_at_s or record.running_at_s or now_s
        links = self._links(record)
        usage, at_consumer = (None, None) if record.status.ended else self._usages(record, links)
        fragments = tuple(self._fragment_view(record, fragment_id) for fragment_id in record.fragments)
        hosts = (self._peers.known(node_id) for node_id in sorted({fragment.node_id for fragment in fragments}))
        return QueryView(
            query_id=record.query_id,
            sql=record.sql,
            keeper=record.keeper,
            status=record.status,
            submitted_at_s=record.submitted_at_s,
            age_s=max(0.0, now_s - record.submitted_at_s),
            since_last_move_s=max(0.0, now_s - last_change_s),
            fragments=fragments,
            links=links,
            choices=record.choices,
            moves=record.moves,
            moving=None if record.move is None else record.move.fragment_id,
            error=record.error,
            network_usage=usage,
            network_usage_at_consumer=at_consumer,
            hosts=tuple(host for host in hosts if host is not None),
        )

    def _fragment_view(self, record: QueryRecord, fragment_id: str) -> FragmentView:
        fragment = record.fragment(fragment_id)
        report = self._reports.get(fragment_id)
        if report is not None and report.generation != fragment.generation:
            report = None
        status = None if report is None else report.status
        if record.status.ended:
            state = str(record.status)
        elif record.move is not None and record.move.fragment_id == fragment_id:
            state = "moving"
        elif fragment.finished:
            state = str(FragmentState.FINISHED)
        else:
            state = str(FragmentState.STARTING if status is None else status.state)
        return FragmentView(fragment.spec, fragment.owner, fragment.generation, state, status)

    def _note_rates(self, report: FragmentReport) -> None:
        measured: dict[tuple[str, str], float] = {}
        for port in report.status.ports if report.status is not None else ():
            if port.settled:
                link = (port.producer, report.fragment_id)
                measured[link] = measured.get(link, 0.0) + port.rate_bytes_per_s
        self._rates |= measured

    def _links(self, record: QueryRecord) -> tuple[Link, ...]:
        """The links with their measured rates, or all with the estimates while one is not measured yet.

        Never some of each: what counts is how they compare, and an estimate may be off by any factor.
        """
        rates = [self._rates.get((link.source, link.target)) for link in record.links]
        if any(rate is None for rate in rates):
            return record.links
        return tuple(
            msgspec.structs.replace(link, rate_bytes_per_s=rate) for link, rate in zip(record.links, rates, strict=True)
        )

    def _usages(self, record: QueryRecord, links: tuple[Link, ...]) -> tuple[float, float]:
        view = self.cost_view()
        placement = record.placement
        at_consumer = {
            fragment_id: fragment.owner if fragment.spec.pinned else record.keeper
            for fragment_id, fragment in record.fragments.items()
        }
        return network_usage(links, placement, view.rtt_ms), network_usage(links, at_consumer, view.rtt_ms)

    def cost_view(self) -> CostView:
        """Paths as this node and the hosts of its queries have measured them."""
        return self._peers.cost_view(self._rtt_ms)
