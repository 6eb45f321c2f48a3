"""From the text of a query to running fragments, at the owner of its sink, which becomes its keeper."""

from __future__ import annotations

import logging
import math
import secrets
import time
from collections.abc import Sequence
from dataclasses import dataclass

import trio

from daemon import query_record
from daemon.config import Config
from daemon.engine_news import START_TIMEOUT_S
from daemon.events import Events
from daemon.join_planning import JoinPlanning
from daemon.keeper import Keeper
from daemon.peers import Peers
from daemon.query_messages import (
    Describe,
    Description,
    Hosted,
    HostFragment,
    PrepareEngine,
    QueryStatus,
    SubmitQuery,
    Submitted,
)
from daemon.requests import Done
from daemon.reserving import Reserving
from sbon.errors import QueryError, SbonError
from sbon.fragment import FragmentSpec
from sbon.network_usage import Link
from sbon.placement.capacity import Demand
from sbon.placement.choice import Placement
from sbon.placement.problem import PlacementProblem
from sbon.sql.catalog import Catalog
from sbon.sql.query_plan import QueryPlan

log = logging.getLogger("sbon.deployment")

DEPLOY_TIMEOUT_S = 540.0
#: Of each query, where there are as many nodes. An odd number: one may be lost.
KEEPERS = 3


@dataclass(frozen=True, slots=True)
class _Known:
    """What can be named in a query now. ``twice`` are names that several nodes claim, ``silent`` who did not answer."""

    catalog: Catalog
    twice: dict[str, str]
    silent: tuple[str, ...]


class Deployment:
    """Submits queries from here, and deploys those whose sinks are here."""

    def __init__(
        self, peers: Peers, keeper: Keeper, planning: JoinPlanning, reserving: Reserving, config: Config, events: Events
    ) -> None:
        self._peers = peers
        self._keeper = keeper
        self._planning = planning
        self._reserving = reserving
        self._config = config
        self._events = events
        peers.handle(Describe, self._describe)
        peers.handle(SubmitQuery, self._deploy_for)

    async def submit(self, sql: str) -> str:
        """Have a query deployed by the owner of its sink; its id, once it runs.

        Raises QueryError for a query that cannot be planned, SbonError for one that cannot be deployed; then nothing of
        it is left.
        """
        known = await self._gather_catalog()
        try:
            plan = await _plan(sql, "q", known.catalog)
        except QueryError as error:
            raise _mention_silent(error, known) from None
        owner = plan.owners[plan.fragments[-1].fragment_id]
        return (await self._peers.ask(owner, SubmitQuery(sql), Submitted, DEPLOY_TIMEOUT_S)).query_id

    # --- catalog

    async def _describe(self, _message: Describe, _sender: str) -> Description:
        return Description(self._config.stream, self._config.sink)

    async def _gather_catalog(self) -> _Known:
        gathered = await self._peers.gather(Describe(), Description)
        owners: dict[str, str] = {}
        twice: dict[str, str] = {}
        streams, sinks = {}, {}
        for node_id, description in gathered.answers.items():
            streams.update({stream.name: (stream, node_id) for stream in description.streams})
            sinks.update({sink.name: (sink, node_id) for sink in description.sinks})
            for name in [spec.name.lower() for spec in (*description.streams, *description.sinks)]:
                first = owners.setdefault(name, node_id)
                if first != node_id:
                    twice[name] = f"{self._peers.name(first)} and {self._peers.name(node_id)}"
        return _Known(Catalog(streams, sinks), twice, gathered.silent)

    # --- deploying here

    async def _deploy_for(self, message: SubmitQuery, _sender: str) -> Submitted:
        known = await self._gather_catalog()
        query_id = f"q{secrets.token_hex(4)}"
        try:
            plan = await self._planning.plan(message.sql, query_id, known.catalog)
        except QueryError as error:
            raise _mention_silent(error, known) from None
        _refuse_ambiguous(plan, known)
        chosen, taken = await self._place(plan)
        hosts = chosen.hosts
        keepers = self._choose_keepers(plan)
        record = query_record.new_record(
            plan, hosts, chosen.choices, keepers=keepers, submitted_at_s=time.time(), taken=taken
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
            if isinstance(error, SbonError):
                self._events.publish("query-failed", query=query_id, error=str(error))
            raise
        return Submitted(query_id)

    def _choose_keepers(self, plan: QueryPlan) -> tuple[str, ...]:
        """This node and two more, the owners of the query's streams first: without them there is nothing to keep.

        This node alone where there are fewer than three, and then nothing is taken over from a host that is lost.
        """
        members = {record.node_id for record in self._peers.overlay.members()}
        owners = [owner for owner in dict.fromkeys(plan.owners.values()) if owner in members]
        near = sorted(
            members - set(owners), key=lambda node_id: self._peers.overlay.measured_rtt_ms(node_id) or math.inf
        )
        others = [*owners, *near][: KEEPERS - 1]
        return (self._peers.node_id, *others) if len(others) == KEEPERS - 1 else (self._peers.node_id,)

    async def _place(self, plan: QueryPlan) -> tuple[Placement, dict[str, Demand]]:
        """Hosts of all fragments, and why; and what each fragment takes there, which is reserved."""
        links = tuple(Link(source, target, rate) for source, target, rate in plan.links)
        problem = PlacementProblem(links, plan.owners)
        reserved = await self._reserving.place(plan.query_id, problem)
        return reserved.placement, reserved.taken

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


def _mention_silent(error: QueryError, known: _Known) -> QueryError:
    """What is missing may be declared by a node that does not answer."""
    return QueryError(f"{error} (no answer from {', '.join(known.silent)})") if known.silent else error


def _refuse_ambiguous(plan: QueryPlan, known: _Known) -> None:
    for spec in plan.fragments:
        for declared in (spec.stream, spec.sink):
            owners = known.twice.get(declared.name.lower()) if declared is not None else None
            if declared is not None and owners is not None:
                raise QueryError(f"{declared.name} is declared by {owners}: rename one of them")
