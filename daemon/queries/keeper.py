"""The keeper: the records of the queries that this node keeps, alone or with others, and who may ask what of them.

The rules are those of :mod:`daemon.peering.query_rules`; that a record is agreed on and durable before anything is
answered is up to :mod:`daemon.queries.record_keeping`. Here consumers are told where their producers are, and what has
ended is released everywhere. A host that does not hear of it now asks, or reports, later, and is told then.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from functools import partial

import msgspec
import trio

from daemon.events import Events
from daemon.peering import query_record, query_rules
from daemon.peering.host_messages import ConnectTo, ReleaseFragment, SetPorts
from daemon.peering.keeper_messages import ChangeReplicas, Replicas
from daemon.peering.move_messages import AnnounceMove, ConductMove, MoveDone, MoveGranted, RequestMove
from daemon.peering.peers import Peers
from daemon.peering.query_messages import (
    CancelQuery,
    Claim,
    Claimed,
    DescribeQuery,
    FragmentReport,
    FragmentView,
    ListQueries,
    Locate,
    Location,
    MoveReport,
    NewPlan,
    QueryStatus,
    QueryView,
    QueryViews,
    Report,
    Reported,
)
from daemon.peering.query_record import QueryRecord
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import ConsumersSet, SetConsumers
from daemon.queries import sharing, switching
from daemon.queries.flows import Flows
from daemon.queries.record_keeping import RecordKeeping
from sbon.engine_messages import FlightAddress, FragmentState
from sbon.errors import SbonError, StaleGenerationError, UnavailableError

log = logging.getLogger("sbon.keeper")

#: A move that takes longer is given up; if it was committed, only its lock on the query is.
MOVE_TIMEOUT_S = 300.0
#: Between attempts at what has to be agreed on sooner or later.
AGAIN_S = 5.0
#: How often what was reported of what has gone is forgotten.
FORGET_PERIOD_S = 60.0
#: Records of ended queries that are kept to be shown.
MAX_ENDED = 100


class Keeper:
    """The queries kept here. ``wall_s`` is the time of day in seconds since the epoch."""

    def __init__(
        self, peers: Peers, keeping: RecordKeeping, events: Events, wall_s: Callable[[], float] = time.time
    ) -> None:
        self._peers = peers
        self._keeping = keeping
        self._events = events
        self._wall_s = wall_s
        self._reports: dict[str, FragmentReport] = {}
        self.flows = Flows(peers)
        #: Called when something is released.
        self.on_release: Callable[[], None] = lambda: None
        #: Told of the cursors on a fragment for which others wait, and for how long (FragmentStatus).
        self.on_waiting: Callable[[str, Mapping[str, float]], None] = lambda fragment_id, waited_for_s: None
        self._nursery: trio.Nursery | None = None
        peers.handle(Claim, self._claim)
        peers.handle(Locate, self._locate)
        peers.handle(Report, self._report)
        peers.handle(AnnounceMove, self._announce)
        peers.handle(MoveDone, self._move_done)
        peers.handle(RequestMove, self._request_move)
        peers.handle(CancelQuery, self._cancel)
        peers.handle(DescribeQuery, self._describe)
        peers.handle(ListQueries, self._list)
        peers.handle(ChangeReplicas, self._change_replicas)

    async def run(self, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Take up what was under way when the daemon ended, and serve until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            task_status.started()
            for record in self._keeping.records:
                if record.status is QueryStatus.DEPLOYING and record.keeper == self._peers.node_id:
                    why = "the daemon was restarted while it was being started"
                    nursery.start_soon(self._end_at_last, record.query_id, QueryStatus.FAILED, why)
                elif record.move is not None:
                    nursery.start_soon(self._expire, record.query_id, record.move)
            try:
                while True:
                    await trio.sleep(FORGET_PERIOD_S)
                    self._forget_reports()
            finally:
                self._nursery = None

    def _forget_reports(self) -> None:
        """On fragments that are not kept here any more, whoever has said so, or that a new plan has replaced."""
        records = self._keeping.records
        here = {
            fragment_id
            for record in records
            for fragment_id, fragment in record.fragments.items()
            if record.status.ended or not fragment.released  # what has ended is shown as it was
        }
        self._reports = {fragment_id: report for fragment_id, report in self._reports.items() if fragment_id in here}
        self.flows.forget_all_but(
            here.union(*(record.reused for record in records)), {record.query_id for record in records}
        )

    # --- records

    async def _change(self, query_id: str, change: Callable[[QueryRecord], QueryRecord]) -> QueryRecord:
        """Have the keepers agree on a change; nothing is asked of them if it changes nothing here.

        Raises what ``change`` raises, and SbonError if the query is not kept here (any more).
        """
        known = self.record(query_id)
        if change(known) is known:
            return known
        record = await self._keeping.change(query_id, known.keepers, lambda record: record and change(record))
        if record is None:
            raise SbonError(f"query {query_id} is not kept any more: see `sbon queries`")
        return record

    def record(self, query_id: str) -> QueryRecord:
        """Raises SbonError if the query is not kept here, UnavailableError if others keep it now."""
        record = self._keeping.find(query_id)
        if record is None and self._keeping.last_known(query_id) is not None:
            raise UnavailableError(f"query {query_id} is kept by other nodes now: see `sbon queries`")
        if record is None:
            raise SbonError(f"query {query_id} is not kept here: see `sbon queries`")
        return record

    # --- for a deployment from here

    async def add(self, record: QueryRecord) -> None:
        """A query that is being deployed. UnavailableError if too few of its keepers answer."""
        await self._forget_oldest()
        try:
            await self._keeping.change(record.query_id, record.keepers, lambda known: known or record)
        except UnavailableError:
            await self._keeping.forget(record)
            raise

    async def started(self, query_id: str, fragment_id: str, address: FlightAddress, output_schema: str) -> None:
        """A fragment of a query that is being deployed has started at its first host."""

        def change(record: QueryRecord) -> QueryRecord:
            fragment = record.fragment(fragment_id)
            return query_rules.started(
                record, fragment.owner, fragment_id, fragment.generation, address, output_schema=output_schema
            )

        await self._change(query_id, change)

    async def set_running(self, query_id: str) -> None:
        """All fragments have started. Raises SbonError if the query has ended meanwhile."""
        at_s = self._wall_s()
        await self._change(query_id, lambda record: query_rules.running(record, at_s))
        self._events.publish("query-running", query=query_id)

    async def withdraw(self, query_id: str) -> None:
        """The deployment failed: release what was started, and forget the query, if nobody reads of it."""
        if self._keeping.find(query_id) is None:
            return  # it was never agreed on
        try:
            record = await self._change(query_id, lambda record: query_rules.ended(record, QueryStatus.FAILED))
        except UnavailableError:
            if self._nursery is not None:
                self._nursery.start_soon(self._end_at_last, query_id, QueryStatus.FAILED, "it could not be started")
            return
        await self._release(record)
        if record.is_over:
            await self._keeping.forget(record)

    # --- for a new plan of a query that runs

    async def change_plan(self, query_id: str, change: Callable[[QueryRecord], QueryRecord]) -> QueryRecord:
        """See :func:`daemon.queries.switching.begin`."""
        return await self._change(query_id, change)

    async def decide_plan(self, query_id: str, new: str) -> None:
        """From now on the query goes by its new plan. Raises SbonError if it was called off, or cannot."""
        at_s = self._wall_s()
        record = await self._change(query_id, lambda record: switching.decided(record, new, at_s))
        for change in () if record.new_plan is None else record.new_plan.changes:
            sink = record.fragment(change.consumer)
            await self._tell(sink.owner, SetPorts(record.assignment(change.consumer)), Done)

    async def call_off_plan(self, query_id: str, new: str) -> None:
        """Go on as before, unless it is decided."""
        known = self.record(query_id)
        record = await self._change(query_id, lambda record: switching.called_off(record, new))
        if known.new_plan is not None and record.new_plan is None:
            self._new_plan_is_over(known.new_plan, record)

    async def end(self, query_id: str, status: QueryStatus, error: str | None = None) -> None:
        """The query is over: say so from now on, and release its fragments in the background."""
        if self.record(query_id).status.ended:
            return
        record = await self._change(query_id, lambda record: query_rules.ended(record, status, error))
        if record.status is status:
            self._has_ended(record)

    def _has_ended(self, record: QueryRecord) -> None:
        details = {} if record.error is None else {"error": record.error}
        self._events.publish(f"query-{record.status}", query=record.query_id, **details)
        self.release_soon(record)

    async def _end_at_last(self, query_id: str, status: QueryStatus, error: str) -> None:
        """As :meth:`end`, however long it takes until the keepers are there."""
        while True:
            try:
                await self.end(query_id, status, error)
                return
            except SbonError as failure:
                log.info("query %s is not ended yet: %s", query_id, failure)
            await trio.sleep(AGAIN_S)

    def release_soon(self, record: QueryRecord) -> None:
        """Tell the hosts of all that nobody needs any more, in the background."""
        self.on_release()
        if self._nursery is not None:
            self._nursery.start_soon(self._release, record)

    async def _release(self, record: QueryRecord) -> None:
        async with trio.open_nursery() as nursery:
            for fragment_id, fragment in record.fragments.items():
                if fragment.released:
                    # A target of a move that is under way is told when it claims.
                    nursery.start_soon(self._release_at, fragment.owner, ReleaseFragment(fragment_id, fragment.granted))

    async def _release_at(self, node_id: str, message: ReleaseFragment) -> None:
        try:
            await self._peers.ask(node_id, message, Done, timeout_s=60.0)
        except SbonError as error:
            log.info("%s is not told to release %s now: %s", self._peers.name(node_id), message.fragment_id, error)

    async def _forget_oldest(self) -> None:
        ended = [record for record in self._keeping.records if record.is_over]
        for record in sorted(ended, key=lambda record: record.submitted_at_s)[: max(0, len(ended) - MAX_ENDED + 1)]:
            await self._keeping.forget(record)

    # --- ownership

    async def _claim(self, message: Claim, sender: str) -> Claimed:
        before = self._keeping.last_known(message.query_id)
        fragment_id, generation = message.fragment_id, message.generation
        is_owner = before is not None and query_rules.owns(before, sender, fragment_id, generation)
        if before is not None and is_owner and before.fragment(fragment_id).spec.pinned:
            return Claimed(before.assignment(fragment_id))  # nobody else ever owns it
        # Not _change: that it is refused must be agreed on, too, because the claimant then deletes what it has.
        record = await self._keeping.change(
            message.query_id,
            message.keepers if before is None else before.keepers,
            lambda record: record and query_rules.claim(record, sender, fragment_id, generation)[0],
        )
        if record is None or not query_rules.owns(record, sender, fragment_id, generation):
            return Claimed(None)
        move = None if before is None else before.move
        if move is not None and move != record.move and move.fragment_id == fragment_id:
            what = "move-revoked" if record.move is None else "move-committed"
            self._events.publish(what, fragment=fragment_id, node=self._peers.name(sender))
        return Claimed(record.assignment(fragment_id))

    async def _locate(self, message: Locate, _sender: str) -> Location:
        record = self.record(message.query_id)
        reused = record.reused.get(message.fragment_id)
        if reused is None:
            return record.location(message.fragment_id)
        return await self._peers.ask_any(reused.keepers, Locate(reused.query_id, message.fragment_id), Location)

    async def _report(self, message: Report, sender: str) -> Reported:
        not_yours = []
        for report in message.fragments:
            record = self._keeping.find(message.query_id)
            if record is None or not query_rules.owns(record, sender, report.fragment_id, report.generation):
                not_yours.append(report.fragment_id)
            else:
                self.flows.note_paths(record, sender, message.rtt_ms)
                await self._take_report(record, sender, report)
        known = self._keeping.last_known(message.query_id)
        return Reported(tuple(not_yours), None if known is None else known.kept_by)

    async def _take_report(self, known: QueryRecord, sender: str, report: FragmentReport) -> None:
        fragment_id, generation, status = report.fragment_id, report.generation, report.status
        self._reports[fragment_id] = report
        self.flows.note(report)
        if status is not None and status.waited_for_s:
            self.on_waiting(fragment_id, status.waited_for_s)

        def change(record: QueryRecord) -> QueryRecord:
            if report.flight_address is not None:
                record = query_rules.started(record, sender, fragment_id, generation, report.flight_address)
                record = query_rules.unlocked(record, fragment_id, generation)
            if status is not None and status.state is FragmentState.FINISHED:
                record = query_rules.finished(record, sender, fragment_id, generation)
            return switching.heard(record, report)

        record = await self._change(known.query_id, change)
        if self._nursery is not None:
            if record.location(fragment_id) != known.location(fragment_id):
                self._nursery.start_soon(self.tell_consumers, record, fragment_id)
            if report.consumer_changes < record.fragment(fragment_id).consumer_changes:
                message = SetConsumers(record.assignment(fragment_id))
                self._nursery.start_soon(self._tell, sender, message, ConsumersSet)
            if report.port_changes < record.fragment(fragment_id).spec.port_changes:
                self._nursery.start_soon(self._tell, sender, SetPorts(record.assignment(fragment_id)), Done)
        if known.new_plan is not None and record.new_plan is None and not record.status.ended:
            self._new_plan_is_over(known.new_plan, record)
        if record.status is QueryStatus.FINISHED and not known.status.ended:
            self._has_ended(record)
        if switching.has_failed(report) and not record.fragment(fragment_id).released:
            error = report.error or (status.error if status is not None else None)
            where = f"{fragment_id} on {self._peers.name(sender)}"
            if record.readers:
                self.release_soon(await self._change(record.query_id, partial(sharing.broken, fragment_id=fragment_id)))
            await self.end(record.query_id, QueryStatus.FAILED, f"{where} failed: {error or 'see its log'}")

    def _new_plan_is_over(self, plan: NewPlan, record: QueryRecord) -> None:
        what = "plan-changed" if plan.decided else "plan-called-off"
        self._events.publish(what, query=record.query_id, fragments=list(plan.fragments))
        self.release_soon(record)

    async def tell_consumers(self, record: QueryRecord, fragment_id: str) -> None:
        """Best effort: a consumer that misses it asks as soon as its pulls fail."""
        location = record.location(fragment_id)
        async with trio.open_nursery() as nursery:
            for consumer in {consumer for consumer, _ in record.consumers(fragment_id)}:
                nursery.start_soon(self._tell, record.fragment(consumer).owner, ConnectTo(consumer, location), Done)

    async def _tell(
        self, node_id: str, message: ConnectTo | SetConsumers | SetPorts, reply_type: type[msgspec.Struct]
    ) -> None:
        try:
            await self._peers.ask(node_id, message, reply_type)
        except SbonError as error:
            log.info("%s does not hear of %s now: %s", self._peers.name(node_id), message, error)

    # --- moves

    async def _request_move(self, message: RequestMove, _sender: str) -> MoveReport:
        record = self._record_of(message.fragment_id)
        query_rules.check_movable(record, message.fragment_id, message.target)
        self._check_target(message.target)
        fragment = record.fragment(message.fragment_id)
        conduct = ConductMove(message.fragment_id, fragment.generation, message.target, message.reason)
        return await self._peers.ask(fragment.owner, conduct, MoveReport, MOVE_TIMEOUT_S)

    async def _announce(self, message: AnnounceMove, sender: str) -> MoveGranted:
        self._check_target(message.target)
        fragment_id, generation, target = message.fragment_id, message.generation, message.target
        record = await self._change(
            message.query_id, lambda record: query_rules.announce(record, sender, fragment_id, generation, target)
        )
        move = record.move
        assert move is not None
        if self._nursery is not None:
            self._nursery.start_soon(self._expire, record.query_id, move)
        return MoveGranted(record.assignment(fragment_id, move.generation))

    def _check_target(self, node_id: str) -> None:
        target = self._peers.record(node_id)
        if not target.accepts_operators:
            raise SbonError(f"{target.name} takes no operators: set accept_operators = true in its configuration")

    async def _expire(self, query_id: str, move: query_record.PendingMove) -> None:
        await trio.sleep(MOVE_TIMEOUT_S)

        def change(record: QueryRecord) -> QueryRecord:
            now = record.move
            if now is None or (now.fragment_id, now.generation) != (move.fragment_id, move.generation):
                return record
            return query_rules.expired(record)

        while (record := self._keeping.find(query_id)) is not None and change(record) is not record:
            try:
                await self._change(query_id, change)
                self._events.publish("move-expired", fragment=move.fragment_id, generation=move.generation)
            except SbonError as error:
                log.info("the move of %s does not expire yet: %s", move.fragment_id, error)
                await trio.sleep(AGAIN_S)

    async def _move_done(self, message: MoveDone, _sender: str) -> Done:
        report, at_s = message.report, self._wall_s()
        await self._change(report.query_id, lambda record: query_rules.moved(record, report, at_s))
        return Done()

    # --- replicas

    async def _change_replicas(self, message: ChangeReplicas, sender: str) -> Replicas:
        """What is answered is agreed on, whether the change was accepted or came too late."""
        known = self.record(message.query_id)
        fragment_id, generation = message.fragment_id, message.generation

        def change(record: QueryRecord | None) -> QueryRecord | None:
            try:
                return record and query_rules.replicated(
                    record, sender, fragment_id, generation, message.changes, message.replicas
                )
            except StaleGenerationError:
                return record

        record = await self._keeping.change(message.query_id, known.keepers, change)
        if record is None:
            return Replicas((), 0, owns=False)
        fragment = record.fragment(fragment_id)
        owns = query_rules.owns(record, sender, fragment_id, generation)
        return Replicas(fragment.replicas, fragment.replica_changes, owns)

    # --- what there is

    async def _cancel(self, message: CancelQuery, _sender: str) -> Done:
        record = self.record(message.query_id)
        if record.status.ended:
            raise SbonError(f"query {message.query_id} is {record.status} already")
        await self.end(message.query_id, QueryStatus.CANCELLED)
        return Done()

    async def _describe(self, message: DescribeQuery, _sender: str) -> QueryView:
        return self.view(self.record(message.query_id))

    async def _list(self, _message: ListQueries, _sender: str) -> QueryViews:
        records = sorted(self._keeping.records, key=lambda record: record.submitted_at_s)
        return QueryViews(tuple(self.view(record) for record in records))

    def _record_of(self, fragment_id: str) -> QueryRecord:
        for record in self._keeping.records:
            if fragment_id in record.fragments:
                return record
        raise SbonError(f"no query that is kept here has a fragment {fragment_id}: see `sbon operators`")

    def view(self, record: QueryRecord) -> QueryView:
        """A query with what was reported of it last."""
        now_s = self._wall_s()
        last_change_s = record.last_move_at_s or record.running_at_s or now_s
        elsewhere = self.flows.read_at(record)
        elsewhere |= {cursor: reading.node_id for cursor, reading in self.flows.readings(record).items()}
        fragments = tuple(
            self._fragment_view(record, fragment_id)
            for fragment_id, fragment in record.fragments.items()
            if record.status.ended or not fragment.released  # or else it was of an earlier plan
        )
        node_ids = {fragment.node_id for fragment in fragments} | set(elsewhere.values())
        hosts = (self._peers.known(node_id) for node_id in sorted(node_ids))
        view = QueryView(
            query_id=record.query_id,
            sql=record.sql,
            keepers=record.keepers,
            status=record.status,
            submitted_at_s=record.submitted_at_s,
            age_s=max(0.0, now_s - record.submitted_at_s),
            since_last_move_s=max(0.0, now_s - last_change_s),
            fragments=fragments,
            flows=self.flows.of(record, record.placement | elsewhere),
            choices=record.choices,
            moves=record.moves,
            moving=None if record.move is None else record.move.fragment_id,
            error=record.error,
            hosts=tuple(host for host in hosts if host is not None),
            reused=tuple(record.reused.values()),
            readers=record.readers,
            elsewhere=elsewhere,
            remaining_s=None if record.until_s is None else max(0.0, record.until_s - now_s),
            new_plan=record.new_plan,
        )
        if record.is_over:
            return view
        usage, at_consumer = self.flows.usages(record, view.links, elsewhere)
        return msgspec.structs.replace(view, network_usage=usage, network_usage_at_consumer=at_consumer)

    def _fragment_view(self, record: QueryRecord, fragment_id: str) -> FragmentView:
        fragment = record.fragment(fragment_id)
        report = self._reports.get(fragment_id)
        if report is not None and report.generation != fragment.generation:
            report = None
        status = None if report is None else report.status
        if fragment.released:
            state = str(record.status)
        elif record.move is not None and record.move.fragment_id == fragment_id:
            state = "moving"
        elif fragment.finished:
            state = str(FragmentState.FINISHED)
        else:
            state = str(FragmentState.STARTING if status is None else status.state)
        return FragmentView(fragment.spec, fragment.owner, fragment.generation, state, status, fragment.released)
