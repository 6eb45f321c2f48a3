"""The course of the demo, driven over the control sockets only, as a user with five terminals would."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import trio

from daemon.control.messages import (
    Done,
    Emulate,
    Event,
    Join,
    Nodes,
    NodesReply,
    OperatorInfo,
    Operators,
    OperatorsReply,
    Queries,
    QueriesReply,
    Submit,
    SubmitReply,
)
from daemon.demo.asking import ask, events_after
from daemon.demo.event_lines import event_line
from daemon.demo.scenario import MONTH_S, MONTH_START_MS, SLOW_RTT_MS, Scenario, Site
from daemon.demo.usage import MeanRates, TrueNetwork, usage_bytes
from daemon.demo.view import FragmentRow, Scene, View
from sbon.errors import SbonError
from sbon.network_usage import Link
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.sql.query_plan import QueryPlan

_POLL_S = 0.5
#: The operators know the distances after this many rounds of probes; they are placed by them.
_SETTLE_TIMEOUT_S = 20.0
#: The path gets slow once rows reach the operators and these have been watched for a while.
_CHANGE_AFTER_S = 8.0
#: Operators that have not moved by then will not.
_MOVE_WITHIN_S = 120.0
#: Beyond the replay itself: starts of Spark, moves, the end of the stream on its way through the fragments.
_SLACK_S = _MOVE_WITHIN_S + 150.0


@dataclass(slots=True)
class Course:
    """What is known about the run so far; the figures at its end come from here."""

    plan: QueryPlan
    rates: MeanRates = field(default_factory=MeanRates)
    placement: dict[str, str] = field(default_factory=dict)
    placement_before: dict[str, str] | None = None
    migrations: int = 0
    downtimes_ms: list[float] = field(default_factory=list)

    @property
    def unpinned(self) -> list[str]:
        return [spec.fragment_id for spec in self.plan.fragments if not spec.pinned]


class Conductor:
    """Joins the sites, submits the query, makes a path slow, and waits for the end."""

    def __init__(self, scenario: Scenario, sql: str, network: TrueNetwork, scene: Scene, view: View) -> None:
        self._scenario = scenario
        self._sql = sql
        self._network = network
        self._scene = scene
        self._view = view

    async def conduct(self, speedup: float) -> Course:
        """The whole course; daemons must be ready. Raises SbonError if anything fails or takes too long."""
        await self._form_overlay()
        async with trio.open_nursery() as nursery:
            for site in self._scenario.sites:
                nursery.start_soon(self._follow_events, site)
            self._enter("placing the operators and starting Spark where they are")
            query_id = await self._submit()
            self._course = Course(self._plan(query_id))
            self._enter(f"query {query_id} runs")
            with trio.move_on_after(MONTH_S / speedup + _SLACK_S) as limit:
                await self._watch(query_id)
            if limit.cancelled_caught:
                raise SbonError(
                    f"the query did not end within {_SLACK_S:.0f} s after its replay; see the logs with --keep"
                )
            await trio.sleep(2 * _POLL_S)  # for the last events
            nursery.cancel_scope.cancel()
        return self._course

    def _enter(self, phase: str) -> None:
        self._scene.phase = phase
        self._view.say(phase)

    async def _form_overlay(self) -> None:
        first, *others = self._scenario.sites
        self._enter("five daemons form an overlay")
        for site in others:
            await ask(site.socket, Join(first.address), Done)
        with trio.move_on_after(_SETTLE_TIMEOUT_S):
            while not await self._distances_known():
                await trio.sleep(_POLL_S)

    async def _distances_known(self) -> bool:
        for site in self._scenario.sites:
            known = await ask(site.socket, Nodes(), NodesReply)
            measured = [node for node in known.nodes if node.name != site.name and node.measured_rtt_ms is not None]
            if len(measured) < len(self._scenario.sites) - 1:
                return False
        return True

    async def _submit(self) -> str:
        # From the site that wants the result, as its user would; any other would do.
        return (await ask(self._scenario.consumer.socket, Submit(self._sql), SubmitReply)).query_id

    def _plan(self, query_id: str) -> QueryPlan:
        """The same plan as the daemons': planning depends on its arguments alone. Tells which fragment feeds which."""
        sites = self._scenario.sites
        catalog = Catalog(
            streams={stream.name: (stream, site.name) for site in sites for stream in site.streams},
            sinks={sink.name: (sink, site.name) for site in sites for sink in site.sinks},
        )
        return plan_query(self._sql, query_id, catalog)

    async def _watch(self, query_id: str) -> None:
        """Look every half second until the query has finished; make the path slow, and let the month end after that."""
        flows_since_s = changed_at_s = math.inf
        consumer = self._scenario.consumer.socket
        while True:
            for query in (await ask(consumer, Queries(), QueriesReply)).queries:
                if query.query_id == query_id and query.state in ("failed", "cancelled"):
                    raise SbonError(f"the query {query.state}: {query.error or 'see the logs with --keep'}")
                if query.query_id == query_id and query.state == "finished":
                    self._scene.progress = 1.0
                    return
            operators = (await ask(consumer, Operators(), OperatorsReply)).operators
            self._look([operator for operator in operators if operator.query_id == query_id])
            now_s = trio.current_time()
            if self._flows():
                flows_since_s = min(flows_since_s, now_s)
            if self._course.placement_before is None and now_s - flows_since_s > _CHANGE_AFTER_S:
                await self._make_path_slow()
                changed_at_s = now_s
            # The end of the month is held back until the operators have moved, though not for ever.
            if now_s - changed_at_s > (_MOVE_WITHIN_S if self._course.migrations == 0 else 0):
                self._scenario.gate.touch()
            await trio.sleep(_POLL_S)

    def _look(self, operators: Sequence[OperatorInfo]) -> None:
        """Take in what the operators report: rates, places, progress."""
        course, scene = self._course, self._scene
        by_id = {operator.fragment_id: operator for operator in operators}
        links = [
            Link(producer, consumer, by_id[producer].output_rate_bytes_per_s)
            for producer, consumer, _ in course.plan.links
            if producer in by_id
        ]
        if all(by_id[fragment].state == "running" for fragment in course.unpinned if fragment in by_id):
            course.rates.add(links)
        course.placement.update({operator.fragment_id: operator.node for operator in operators})
        self._update_usage()
        order = {spec.fragment_id: at for at, spec in enumerate(course.plan.fragments)}
        scene.fragments = tuple(
            FragmentRow(
                operator.fragment_id,
                operator.kind,
                operator.node,
                operator.state,
                operator.input_rate_bytes_per_s,
                operator.input_rate_rows_per_s,
                operator.output_rows,
            )
            for operator in sorted(operators, key=lambda operator: order.get(operator.fragment_id, 0))
        )
        watermarks = [operator.watermark_ms for operator in operators if operator.kind == "source"]
        if watermarks and all(watermark is not None for watermark in watermarks):
            slowest = min(watermark for watermark in watermarks if watermark is not None)
            scene.progress = max(scene.progress, min(1.0, (slowest - MONTH_START_MS) / 1000 / MONTH_S))
        self._view.refresh()

    def _flows(self) -> bool:
        """Whether rows reach every unpinned operator."""
        shown = [row for row in self._scene.fragments if row.fragment_id in self._course.unpinned]
        return bool(shown) and all(row.input_bytes_per_s > 0 for row in shown)

    def _update_usage(self) -> None:
        course, scene = self._course, self._scene
        links = course.rates.links()
        scene.usage_now = usage_bytes(links, course.placement, self._network)
        at_consumer = dict.fromkeys(course.unpinned, self._scenario.consumer.name)
        scene.usage_at_consumer = usage_bytes(links, course.placement, self._network, at_consumer)
        if course.placement_before is not None:
            scene.usage_if_stayed = usage_bytes(links, course.placement_before, self._network)

    async def _make_path_slow(self) -> None:
        course = self._course
        course.placement_before = dict(course.placement)
        join = next(spec.fragment_id for spec in course.plan.fragments if spec.kind == "join")
        source, host = self._scenario.flights.name, course.placement[join]
        self._enter(f"the path from {source} to {host} becomes slow: {SLOW_RTT_MS:.0f} ms")
        self._network.slow_down(source, host, SLOW_RTT_MS)
        await ask(self._scenario.flights.socket, Emulate(source, host, SLOW_RTT_MS), Done)

    async def _follow_events(self, site: Site) -> None:
        seen = -1
        while True:
            for event in await events_after(site.socket, seen):
                seen = event.sequence
                self._take_in(event)
            await trio.sleep(_POLL_S)

    def _take_in(self, event: Event) -> None:
        if event.kind == "migrated":
            self._course.migrations += 1
            self._course.downtimes_ms.append(float(event.fields["downtime_ms"]))
        line = event_line(event)
        if line is not None:
            self._view.say(line)
