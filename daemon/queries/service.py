"""Queries, as the control socket offers them, and everything behind them put together.

Any node may be asked about any query: its keeper is found by asking all nodes what they keep.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import trio

from daemon.config import Config
from daemon.control.messages import (
    Cancel,
    Done,
    Explain,
    Explanation,
    Links,
    LinksReply,
    Migrate,
    OperatorInfo,
    Operators,
    OperatorsReply,
    Queries,
    QueriesReply,
    QueryInfo,
    Regions,
    RegionsReply,
    Streams,
    StreamsReply,
    Submit,
    SubmitReply,
)
from daemon.control.server import Control
from daemon.events import Events
from daemon.fragments import own_costs
from daemon.fragments.engine_supervisor import ENGINE_COMMAND, EngineSupervisor
from daemon.fragments.hosted_fragment import FragmentStore
from daemon.fragments.hosting import Hosting
from daemon.fragments.leasing import Leasing
from daemon.fragments.local_optimizer import LocalOptimizer
from daemon.fragments.migration import Conductor
from daemon.fragments.preparing import Preparing
from daemon.fragments.replica_store import ReplicaStore
from daemon.fragments.replicating import Replicating
from daemon.fragments.reserving import HostBook, Reserving
from daemon.peering.move_messages import RequestMove
from daemon.peering.parcels import Parcels
from daemon.peering.peers import Gathered, Overlay, Peers, Requests, Shell
from daemon.peering.query_messages import (
    CancelQuery,
    FragmentView,
    ListQueries,
    MoveReport,
    QueryStatus,
    QueryView,
    QueryViews,
    SubmitQuery,
)
from daemon.peering.requests import Done as RequestDone
from daemon.placing import Placing
from daemon.queries import lifetimes
from daemon.queries.catalog import CatalogService
from daemon.queries.deployment import Deployment
from daemon.queries.explaining import explanation, links
from daemon.queries.failover import Failover
from daemon.queries.fellow_keepers import FellowKeepers
from daemon.queries.join_planning import JoinPlanning
from daemon.queries.keeper import MOVE_TIMEOUT_S, Keeper
from daemon.queries.launching import Launching
from daemon.queries.offers import Offers
from daemon.queries.plan_changing import PlanChanging
from daemon.queries.query_planning import QueryPlanning
from daemon.queries.reading_others import ReadingOthers
from daemon.queries.record_keeping import RecordKeeping
from daemon.queries.region_service import RegionService
from daemon.queries.regional_planning import RegionalPlanning
from daemon.queries.replanning import Replanning
from daemon.queries.subscribing import ConsumerSetting, Subscriptions
from sbon.errors import SbonError


class QueryService:
    """Keeper, host, conductor and optimizer of one node, and the verbs about queries."""

    def __init__(
        self,
        config: Config,
        overlay: Overlay,
        requests: Requests,
        events: Events,
        shell: Shell,
        engine_command: Sequence[str] = ENGINE_COMMAND,
    ) -> None:
        """Reads the records of the queries kept here. ``engine_command`` is what starts an engine.

        Raises SbonError if what is in the state directory cannot be read.
        """
        node = config.node
        state_dir: Path = node.state_dir
        self._peers = Peers(overlay, requests, shell)
        node_id = self._peers.node_id
        self.supervisor = EngineSupervisor(
            node.name,
            overlay.record.host if node.advertise is None else node.listen_address[0],
            node.socket.with_name(f"{node.socket.name}.engine"),
            state_dir,
            config.engine,
            events,
            engine_command,
        )
        leasing = Leasing(self._peers, config.failover.lease_s)
        replicas = ReplicaStore(state_dir / "replicas")
        book = HostBook(self._peers, config.capacity)
        self._preparing = Preparing(
            self._peers, self.supervisor, book, replicas, events, state_dir / "rehearsals", warm=config.failover.warm
        )
        self.hosting = Hosting(
            self._peers, self.supervisor, events, state_dir / "fragments", leasing, replicas, book, self._preparing
        )
        book.running = lambda: own_costs.demands(self.hosting)
        parcels = Parcels(self._peers, state_dir / "parcels")
        self._replicating = Replicating(
            self._peers, self.hosting, self.supervisor, replicas, events, parcels, config.failover.replicas
        )
        self._keeping = RecordKeeping(self._peers, state_dir / "queries", config.failover.lease_s)
        self.keeper = Keeper(self._peers, self._keeping, events)
        self._failover = Failover(self._peers, self._keeping, events)
        self._fellows = FellowKeepers(self._peers, self._keeping, events, config.failover.lease_s)
        placing = Placing(self._peers, config.placement)
        reserving = Reserving(self._peers, placing)
        conductor = Conductor(self._peers, self.hosting, events, parcels, reserving)
        self._optimizer = LocalOptimizer(self._peers, self.hosting, conductor, placing, events, config.placement)
        self._catalog = CatalogService(self._peers, self.hosting, config)
        self.region_service = RegionService(self._peers, events, config.regions, self._catalog.topics)
        regional = RegionalPlanning(self._peers, self.region_service.regions, config.regions.max_cs, config.placement)
        joins = JoinPlanning(self._peers, placing, regional, config.placement, events)
        planning = QueryPlanning(self._peers, joins, config.placement, events)
        ConsumerSetting(self._peers, self.hosting, self.supervisor, FragmentStore(state_dir / "fragments", node_id))
        self._subscriptions = Subscriptions(self._peers, self._keeping, self.keeper, events, config.failover.lease_s)
        reading = ReadingOthers(planning, Offers(self._peers, self._keeping, events), self._subscriptions, events)
        launching = Launching(self._peers, self.keeper, reserving)
        changing = PlanChanging(
            self._peers, self.keeper, self._catalog, reading, launching, placing, events, config.placement
        )
        self.replanning = Replanning(
            self._peers, self._keeping, self.keeper, placing, changing, events, config.placement
        )
        self._deployment = Deployment(self._peers, self.keeper, self._catalog, reading, launching, events)

    def register(self, control: Control) -> None:
        control.handle(Submit, self._submit)
        control.handle(Streams, self._streams)
        control.handle(Regions, self._regions)
        control.handle(Queries, self._queries)
        control.handle(Operators, self._operators)
        control.handle(Links, self._links)
        control.handle(Explain, self._explain)
        control.handle(Migrate, self._migrate)
        control.handle(Cancel, self._cancel)

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Resume what was here, and serve until cancelled. Peers must not be answered before this has started."""
        async with trio.open_nursery() as nursery:
            await nursery.start(self.supervisor.run, self.hosting)
            await nursery.start(self._keeping.run)
            await nursery.start(self.keeper.run)
            await nursery.start(self.hosting.run)
            nursery.start_soon(self._preparing.stand_by)
            nursery.start_soon(self._replicating.run)
            nursery.start_soon(self._failover.run)
            nursery.start_soon(self._subscriptions.run)
            nursery.start_soon(lifetimes.end_in_time, self._keeping, self.keeper)
            nursery.start_soon(self._catalog.run)
            nursery.start_soon(self._fellows.run)
            nursery.start_soon(self._optimizer.run)
            nursery.start_soon(self.replanning.run)
            nursery.start_soon(self.region_service.run)
            task_status.started()

    def path_changed(self) -> None:
        """A round trip from here has really changed."""
        self._optimizer.path_changed()

    def hosted(self) -> tuple[str, ...]:
        """Ids of the fragments on this node."""
        return tuple(fragment.fragment_id for fragment in self.hosting.fragments)

    def cpu_cores(self) -> float:
        """What they use of the processors, as far as that is measured."""
        return sum(status.cpu_cores or 0.0 for status in own_costs.statuses(self.hosting).values() if status)

    # --- verbs

    async def submit(self, query: SubmitQuery) -> str:
        """The id of a new query, once its operators run. SbonError, and nothing is left of it, otherwise."""
        return await self._deployment.submit(query)

    async def views(self) -> list[QueryView]:
        """All queries of all nodes that answer, oldest first."""
        gathered = await self._peers.gather(ListQueries(), QueryViews)
        return sorted(_views(gathered).values(), key=lambda view: (view.submitted_at_s, view.query_id))

    async def view(self, query_id: str) -> QueryView:
        """Raises SbonError if nobody who answers keeps such a query."""
        gathered = await self._peers.gather(ListQueries(), QueryViews)
        view = _views(gathered).get(query_id)
        if view is not None:
            return view
        raise self._unknown(f"query {query_id}", gathered.silent)

    async def migrate(self, fragment_id: str, node: str) -> MoveReport:
        """Move a fragment to a node, by name or id; what was measured of it, once it runs there.

        Raises SbonError if it is refused, or if it failed and the fragment stays where it is.
        """
        target = self._peers.overlay.find(node)
        if target is None:
            raise SbonError(f'no node "{node}" is known here: see `sbon nodes`')
        gathered = await self._peers.gather(ListQueries(), QueryViews)
        for view in _views(gathered).values():
            if any(fragment.spec.fragment_id == fragment_id for fragment in view.fragments):
                request = RequestMove(fragment_id, target.node_id, "asked for by hand")
                return await self._peers.ask_any(view.keepers, request, MoveReport, MOVE_TIMEOUT_S + 10.0)
        raise self._unknown(f"fragment {fragment_id}", gathered.silent)

    async def cancel(self, query_id: str) -> None:
        """End a query. Hosts that cannot be reached now delete their part when they are back."""
        view = await self.view(query_id)
        await self._peers.ask_any(view.keepers, CancelQuery(query_id), RequestDone)

    def _unknown(self, what: str, silent: Sequence[str]) -> SbonError:
        missing = f" (no answer from {', '.join(silent)})" if silent else ""
        see = "queries" if what.startswith("query") else "operators"
        return SbonError(f"there is no {what}: see `sbon {see}`{missing}")

    # --- the control socket

    async def _submit(self, request: Submit) -> SubmitReply:
        return SubmitReply(await self.submit(SubmitQuery(request.sql, request.until_s, request.from_s)))

    async def _queries(self, _request: Queries) -> QueriesReply:
        return QueriesReply(tuple(self._query_info(view) for view in await self.views()))

    async def _operators(self, _request: Operators) -> OperatorsReply:
        return OperatorsReply(
            tuple(
                self._operator_info(fragment)
                for view in await self.views()
                for fragment in view.fragments
                if not fragment.released
            )
        )

    async def _links(self, _request: Links) -> LinksReply:
        views = await self.views()
        return LinksReply(tuple(link for view in views for link in links(view, self._peers)))

    async def _explain(self, request: Explain) -> Explanation:
        return explanation(await self.view(request.query), self._peers)

    async def _streams(self, _request: Streams) -> StreamsReply:
        known = await self._catalog.gather()
        return StreamsReply(known.described(self._peers.name), known.silent)

    async def _regions(self, _request: Regions) -> RegionsReply:
        return await self.region_service.branch()

    async def _migrate(self, request: Migrate) -> Done:
        report = await self.migrate(request.fragment, request.node)
        sent = ", ".join(f"{size_bytes} in {step}" for step, size_bytes in report.sent_bytes.items())
        steps = ", ".join(f"{step} {seconds:.2f} s" for step, seconds in report.steps_s.items())
        return Done(
            f"{report.fragment_id} moved from {report.source} to {report.target}: {report.state_bytes} bytes of state "
            f"(sent: {sent}), {report.downtime_ms:.0f} ms without it; {steps}"
        )

    async def _cancel(self, request: Cancel) -> Done:
        await self.cancel(request.query)
        return Done(f"query {request.query} is cancelled")

    def _query_info(self, view: QueryView) -> QueryInfo:
        moving = view.moving is not None and view.status is QueryStatus.RUNNING
        return QueryInfo(
            query_id=view.query_id,
            state="moving" if moving else str(view.status),
            keeper=self._peers.name(view.keepers[0]),
            fragments=len(view.fragments),
            submitted_s=view.submitted_at_s,
            sql=view.sql,
            error=view.error,
            network_usage=view.network_usage,
            network_usage_at_consumer=view.network_usage_at_consumer,
        )

    def _operator_info(self, fragment: FragmentView) -> OperatorInfo:
        spec, status = fragment.spec, fragment.status
        info = OperatorInfo(
            fragment_id=spec.fragment_id,
            query_id=spec.query_id,
            kind=str(spec.kind),
            node=self._peers.name(fragment.node_id),
            generation=fragment.generation,
            state=fragment.state,
            estimated_selectivity=spec.selectivity,
        )
        if status is None:
            return info
        return OperatorInfo(
            fragment_id=info.fragment_id,
            query_id=info.query_id,
            kind=info.kind,
            node=info.node,
            generation=info.generation,
            state=info.state,
            input_rate_bytes_per_s=sum(port.rate_bytes_per_s for port in status.ports),
            input_rate_rows_per_s=sum(port.rate_rows_per_s for port in status.ports),
            output_rate_bytes_per_s=status.output_rate_bytes_per_s,
            output_rows=status.output_rows,
            output_rate_rows_per_s=status.output_rate_rows_per_s,
            late_rows=status.late_rows,
            state_bytes=status.state_bytes,
            selectivity=status.selectivity,
            estimated_selectivity=info.estimated_selectivity,
            cpu_cores=status.cpu_cores,
            watermark_ms=status.watermark_ms,
            error=status.error,
        )


def _views(gathered: Gathered) -> dict[str, QueryView]:
    """One view of each query: of the keeper that knows most, because hosts report to it; in doubt the first one."""
    best: dict[str, tuple[tuple[int, bool], QueryView]] = {}
    for node_id, answer in gathered.answers.items():
        for view in answer.queries:
            known = sum(fragment.status is not None for fragment in view.fragments)
            rank = (known, node_id == view.keepers[0])
            if view.query_id not in best or rank > best[view.query_id][0]:
                best[view.query_id] = rank, view
    return {query_id: view for query_id, (_, view) in best.items()}
