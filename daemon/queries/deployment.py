"""From the text of a query to running fragments, at the owner of its sink, which becomes its keeper."""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import trio

from daemon.events import Events
from daemon.fragments.engine_news import START_TIMEOUT_S
from daemon.fragments.reserving import Reserving
from daemon.peering import query_record
from daemon.peering.peers import Peers
from daemon.peering.query_messages import (
    Hosted,
    HostFragment,
    PrepareEngine,
    QueryStatus,
    Reader,
    Reused,
    SubmitQuery,
    Submitted,
)
from daemon.peering.query_record import KEEPERS
from daemon.peering.requests import Done
from daemon.peering.subscription_messages import Subscribed
from daemon.queries.catalog import CatalogService, Known
from daemon.queries.fellow_keepers import keeper_candidates
from daemon.queries.join_planning import Planned
from daemon.queries.keeper import Keeper
from daemon.queries.query_planning import QueryPlanning
from daemon.queries.subscribing import Subscriptions
from sbon.engine_messages import cursor_name
from sbon.errors import QueryError, SbonError
from sbon.fragment import Computes, FragmentSpec, Start
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import Placement
from sbon.placement.problem import PlacementProblem
from sbon.sql.catalog import Catalog
from sbon.sql.query_plan import QueryPlan

log = logging.getLogger("sbon.deployment")

DEPLOY_TIMEOUT_S = 540.0


@dataclass(frozen=True, slots=True)
class _Subscribed:
    """A plan, and what others have promised to keep for it."""

    plan: QueryPlan
    reused: tuple[Reused, ...] = ()


class Deployment:
    """Submits queries from here, and deploys those whose sinks are here."""

    def __init__(
        self,
        peers: Peers,
        keeper: Keeper,
        catalog: CatalogService,
        planning: QueryPlanning,
        reserving: Reserving,
        subscriptions: Subscriptions,
        events: Events,
    ) -> None:
        self._peers = peers
        self._keeper = keeper
        self._catalog = catalog
        self._planning = planning
        self._reserving = reserving
        self._subscriptions = subscriptions
        self._events = events
        peers.handle(SubmitQuery, self._deploy_for)

    async def submit(self, sql: str, until_s: float | None = None) -> str:
        """Have a query deployed by the owner of its sink; its id, once it runs. ``until_s``: see SubmitQuery.

        Raises QueryError for a query that cannot be planned, SbonError for one that cannot be deployed; then nothing of
        it is left.
        """
        known = await self._catalog.gather(await trio.to_thread.run_sync(_names, sql))
        try:
            plan = await _plan(sql, "q", known.catalog)
        except QueryError as error:
            raise known.mention_silent(error) from None
        owner = plan.owners[plan.fragments[-1].fragment_id]
        return (await self._peers.ask(owner, SubmitQuery(sql, until_s), Submitted, DEPLOY_TIMEOUT_S)).query_id

    # --- deploying here

    async def _deploy_for(self, message: SubmitQuery, _sender: str) -> Submitted:
        if message.until_s is not None and message.until_s <= time.time():
            raise SbonError("the query would be over before it begins: give a later --until")
        known = await self._catalog.gather(await trio.to_thread.run_sync(_names, message.sql))
        query_id = f"q{secrets.token_hex(4)}"
        try:
            planned = await self._planning.plan(message.sql, query_id, known)
            known.refuse_ambiguous(planned.plan)
            keepers = self._choose_keepers(planned.plan)
            subscribed = await self._subscribe(planned, query_id, keepers, known)
        except QueryError as error:
            raise known.mention_silent(error) from None
        if subscribed is None:  # what it wanted to read is not to be had
            without = replace(known, derived={})
            subscribed = _Subscribed((await self._planning.plan(message.sql, query_id, without)).plan)
        try:
            await self._activate(subscribed, keepers, message.until_s)
        except BaseException:
            with trio.CancelScope(shield=True), trio.move_on_after(30.0):
                for each in subscribed.reused:
                    cursors = _cursors(subscribed.plan, each.fragment_id)
                    await self._subscriptions.unsubscribe(each.query_id, each.keepers, cursors)
            raise
        return Submitted(query_id)

    async def _subscribe(
        self, planned: Planned, query_id: str, keepers: tuple[str, ...], known: Known
    ) -> _Subscribed | None:
        """Subscribe to all that the plan reads of others, and cut it for where that begins; None if it cannot be.

        A subscription that is not used in the end runs out.
        """
        if not planned.reused:
            return _Subscribed(planned.plan)
        reused: dict[str, Reused] = {}
        try:
            for fragment_id in planned.reused:
                offered, _ = known.derived[fragment_id]
                for met in offered.records:
                    self._peers.meet(met)
                reader = Reader(fragment_id, offered.query_id, offered.keepers)
                cursors = _cursors(planned.plan, fragment_id)
                granted = await self._subscriptions.subscribe(reader, cursors, query_id, keepers)
                start = _begin(granted, offered.computes)
                reused[fragment_id] = Reused(
                    offered.query_id,
                    offered.keepers,
                    offered.computes.text,
                    granted.output_schema,
                    granted.location,
                    start,
                )
            starts = {fragment_id: each.start for fragment_id, each in reused.items()}
            plan = await trio.to_thread.run_sync(planned.cut, starts)
        except SbonError as error:
            self._events.publish("reuse-refused", query=query_id, error=str(error))
            return None
        return _Subscribed(plan, tuple(reused.values()))

    async def _activate(self, subscribed: _Subscribed, keepers: tuple[str, ...], until_s: float | None) -> None:
        """Place and start all fragments, or none."""
        plan, query_id = subscribed.plan, subscribed.plan.query_id
        chosen, taken = await self._place(subscribed)
        hosts = {spec.fragment_id: chosen.hosts[spec.fragment_id] for spec in plan.fragments}
        record = query_record.new_record(
            plan,
            hosts,
            chosen.choices,
            keepers=keepers,
            submitted_at_s=time.time(),
            taken=taken,
            reused=subscribed.reused,
            until_s=until_s,
        )
        placement = {fragment_id: self._peers.name(node_id) for fragment_id, node_id in hosts.items()}
        self._events.publish("query-placed", query=query_id, placement=placement)
        try:
            await self._keeper.add(record)
            await self._start(plan.fragments, hosts, query_id)
            await self._keeper.set_running(query_id)
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(30.0):
                await self._keeper.withdraw(query_id)
                await self._reserving.release(query_id, hosts.values())
            if isinstance(error, SbonError):
                self._events.publish("query-failed", query=query_id, error=str(error))
            raise

    def _choose_keepers(self, plan: QueryPlan) -> tuple[str, ...]:
        """This node and two more, the owners of the query's streams first: without them there is nothing to keep.

        This node alone where there are fewer than three, and then nothing is taken over from a host that is lost.
        """
        others = keeper_candidates(self._peers, plan.owners.values())[: KEEPERS - 1]
        return (self._peers.node_id, *others) if len(others) == KEEPERS - 1 else (self._peers.node_id,)

    async def _place(self, subscribed: _Subscribed) -> tuple[Placement, dict[str, Demand]]:
        """Hosts of all fragments, and why; and what each fragment takes there, which is reserved.

        What is read of other queries is where it is, and takes some more of the bandwidth there.
        """
        plan = subscribed.plan
        links = tuple(Link(source, target, rate) for source, target, rate in plan.links)
        running = {each.fragment_id: each.location.node_id for each in subscribed.reused}
        found = await self._reserving.place(plan.query_id, PlacementProblem(links, {**plan.owners, **running}))
        return found.placement, found.taken

    async def _start(self, fragments: Sequence[FragmentSpec], hosts: dict[str, str], query_id: str) -> None:
        """Engines side by side, then each fragment as soon as those that feed it run."""
        has_started = {spec.fragment_id: trio.Event() for spec in fragments}

        async def prepare(node_id: str) -> None:
            try:
                await self._peers.ask(node_id, PrepareEngine(query_id), Done, START_TIMEOUT_S)
            except SbonError as error:
                raise type(error)(f"{self._peers.name(node_id)}: {error}") from error

        async def start(spec: FragmentSpec) -> None:
            for port in spec.ports:
                for producer in port.producers:
                    if producer in has_started:  # or else it is another query's, and runs
                        await has_started[producer].wait()
            node_id = hosts[spec.fragment_id]
            message = HostFragment(self._keeper.record(query_id).assignment(spec.fragment_id))
            try:
                hosted = await self._peers.ask(node_id, message, Hosted, START_TIMEOUT_S)
            except SbonError as error:
                raise type(error)(f"{spec.fragment_id} on {self._peers.name(node_id)}: {error}") from error
            record = self._keeper.record(query_id)
            if record.status is not QueryStatus.DEPLOYING:
                raise SbonError(record.error or f"query {query_id} was cancelled while it was being started")
            await self._keeper.started(query_id, spec.fragment_id, hosted.flight_address, hosted.output_schema)
            has_started[spec.fragment_id].set()

        try:
            async with trio.open_nursery() as nursery:
                for node_id in set(hosts.values()):
                    nursery.start_soon(prepare, node_id)
            async with trio.open_nursery() as nursery:
                for spec in fragments:
                    nursery.start_soon(start, spec)
        except* SbonError as errors:
            raise _first(errors) from None


def _begin(granted: Subscribed, computes: Computes) -> Start:
    """Where all cursors can begin; what is read may itself have begun with some event time."""
    start = max(granted.starts.values(), key=lambda start: start.first_batch)
    known = [from_ms for from_ms in (start.from_ms, computes.from_ms) if from_ms is not None]
    return Start(start.first_batch, max(known, default=None))


def _cursors(plan: QueryPlan, fragment_id: str) -> tuple[str, ...]:
    """Those with which the plan's fragments read a fragment of another query."""
    return tuple(
        cursor_name(spec.fragment_id, port.name)
        for spec in plan.fragments
        for port in spec.ports
        if fragment_id in port.producers
    )


def _names(sql: str) -> list[str]:
    """In a thread, as below."""
    from sbon.sql.dialect import names_in

    return names_in(sql)


async def _plan(sql: str, query_id: str, catalog: Catalog) -> QueryPlan:
    """See :func:`sbon.sql.plan.plan_query`. In a thread: importing sqlglot and parsing take a while."""

    def plan() -> QueryPlan:
        from sbon.sql.plan import plan_query  # needs sqlglot, which is large

        return plan_query(sql, query_id, catalog)

    return await trio.to_thread.run_sync(plan)


def _first(errors: BaseExceptionGroup[SbonError]) -> SbonError:
    error: BaseException = errors
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, SbonError)
    return error
