"""Another plan for a query that runs: other join orders, other streams that run (docs/decisions/planning.md).

The query is planned once more as if it came now, over its own sources, which run. If that saves enough, the new plan is
put beside the old one like any other: room is reserved, its fragments are started, all or none. Then the sinks' ports
change their producers, and the old plan ends. The steps are those of :mod:`daemon.queries.switching`.
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.fragments.local_policy import policy_of
from daemon.peering.host_messages import DerivedStream
from daemon.peering.peers import Peers
from daemon.peering.query_messages import QueryView
from daemon.peering.query_record import QueryRecord
from daemon.peering.query_rules import needed
from daemon.placing import Placing
from daemon.queries import switching
from daemon.queries.catalog import CatalogService, Known
from daemon.queries.deployment import names_in
from daemon.queries.join_planning import Planned
from daemon.queries.keeper import Keeper
from daemon.queries.launching import Launching
from daemon.queries.query_planning import Beside
from daemon.queries.reading_others import Agreed, ReadingOthers
from sbon.errors import SbonError
from sbon.fragment import Computes, FragmentSpec
from sbon.network_usage import Link, placement_cost
from sbon.placement.problem import PlacementProblem
from sbon.planning.signature import Signature
from sbon.planning.worth import LEAST_SAVING, pays

log = logging.getLogger("sbon.replanning")

#: Engines start, and fragments, before the new plan says anything.
START_S = 10.0


@dataclass(frozen=True, slots=True)
class _Better:
    """A plan that is cheaper, with its cost and that of what it makes superfluous (bytes in transit, and load)."""

    planned: Planned
    known: Known
    cost_now: float
    cost_then: float


class PlanChanging:
    """For the queries that this node keeps as the first of their keepers; one at a time."""

    def __init__(
        self,
        peers: Peers,
        keeper: Keeper,
        catalog: CatalogService,
        reading: ReadingOthers,
        launching: Launching,
        placing: Placing,
        events: Events,
        settings: PlacementConfig,
    ) -> None:
        self._peers = peers
        self._keeper = keeper
        self._catalog = catalog
        self._reading = reading
        self._launching = launching
        self._placing = placing
        self._events = events
        self._settings = settings
        self._policy = policy_of(settings)
        #: By query: what its parts have put out, as long as they ran, in bytes/s.
        self._rates: dict[str, dict[Signature, float]] = {}

    def forget_all_but(self, query_ids: Collection[str]) -> None:
        """Of all others nothing needs to be known any more."""
        self._rates = {query_id: rates for query_id, rates in self._rates.items() if query_id in query_ids}

    async def look(self, query_id: str) -> int:
        """How many fragments a new plan of the query has that was put into the place of the old one; 0: it stays.

        Raises SbonError if one was begun, and called off.
        """
        record = self._keeper.record(query_id)
        if record.new_plan is not None and not record.new_plan.decided:
            # Whoever has begun it is gone: it was this daemon before a restart, or a keeper that was lost.
            await self._keeper.call_off_plan(query_id, record.new_plan.name)
            return 0
        try:
            switching.sinks_of(record)
        except SbonError as error:
            log.debug("%s", error)
            return 0
        view = self._keeper.view(record)
        if view.since_last_move_s < self._policy.rest_s or not view.is_measured:
            return 0
        better = await self._find(record, view)
        return 0 if better is None else await self._change(record, better)

    # --- whether

    async def _find(self, record: QueryRecord, view: QueryView) -> _Better | None:
        """A plan that is surely better, None if there is none."""
        stays = needed(record, (reader.fragment_id for reader in record.readers.values()))
        rates = self._learn(record, view)
        known = replace(await self._known(record, stays), rates=rates)
        sources = {spec.fragment_id: spec.computes for spec, _ in _sources(record) if spec.computes is not None}
        beside = Beside(sources, f"{record.query_id}-{secrets.token_hex(3)}")
        try:
            planned = await self._reading.plan_again(record.sql, record.query_id, known, beside)
            new = switching.new_plan(record, planned.plan)
        except SbonError as error:
            log.debug("%s stays as it is: %s", record.query_id, error)
            return None
        specs = {spec.fragment_id: spec for spec in planned.plan.fragments if spec.fragment_id in new.fragments}
        if {_computes(spec) for spec in specs.values()} == {_computes(each) for each in _inner(record, stays)}:
            return None  # the same once more: where it runs is another question
        if len(specs) > self._settings.replan_moves:
            return None
        cost_now = self._cost_now(record, view, stays)
        cost_then = await self._cost_then(planned, known, rates, sources, specs)
        behind_ms = max(self._behind_ms(view, each.switch.old, each.switch.from_ms) for each in new.changes)
        lasts_s = view.age_s if view.remaining_s is None else view.remaining_s
        least = max(LEAST_SAVING, self._policy.minimum_saving_ratio)
        both_s = START_S + behind_ms / 1000.0  # until the new one is whole
        if not pays(cost_now, cost_then, least_saving=least, lasts_s=lasts_s, both_s=both_s):
            return None
        return _Better(planned, known, cost_now, cost_then)

    def _learn(self, record: QueryRecord, view: QueryView) -> Mapping[Signature, float]:
        """Rates of all parts of the query that were ever measured here."""
        rates = self._rates.setdefault(record.query_id, {})
        measured = {flow.source: flow.measured.bytes_per_s for flow in view.flows if flow.measured is not None}
        for fragment_id, fragment in record.fragments.items():
            if fragment.spec.computes is not None and fragment_id in measured:
                rates[_signature(fragment.spec.computes)] = measured[fragment_id]
        return rates

    async def _known(self, record: QueryRecord, stays: Collection[str]) -> Known:
        """What there is to be read: streams, what other queries have, and what stays of this one in any case."""
        known = await self._catalog.gather(await trio.to_thread.run_sync(names_in, record.sql))
        others = {
            fragment_id: found
            for fragment_id, found in known.derived.items()
            if found[0].query_id != record.query_id or fragment_id in stays
        }
        sources = {
            spec.fragment_id: (
                DerivedStream(spec.fragment_id, record.query_id, spec.computes, record.keepers, 0.0),
                host,
            )
            for spec, host in _sources(record)
            if spec.computes is not None
        }
        return replace(known, derived={**others, **sources})

    def _cost_now(self, record: QueryRecord, view: QueryView, stays: Collection[str]) -> float:
        """Of what would end."""
        links = [link for link in view.links if link.target in record.fragments and link.target not in stays]
        group = [spec.fragment_id for spec in _inner(record, stays)]
        costs = self._keeper.flows.cost_view()
        costs = replace(costs, load_scale_ms=self._settings.load_scale_ms, load_scaling=self._settings.load_scaling)
        return placement_cost(links, record.placement, group, costs.rtt_ms, costs.load_ms)

    async def _cost_then(
        self,
        planned: Planned,
        known: Known,
        rates: Mapping[Signature, float],
        sources: Mapping[str, Computes],
        specs: Mapping[str, FragmentSpec],
    ) -> float:
        """Of what would be new, on the best hosts for it."""

        def rate(source: str, estimated: float) -> float:
            computes = sources.get(source) or (specs[source].computes if source in specs else None)
            if computes is None:  # another query's
                return known.derived[source][0].rate_bytes_per_s or estimated
            return rates.get(_signature(computes), estimated)

        plan = planned.plan
        links = tuple(Link(source, target, rate(source, estimated)) for source, target, estimated in plan.links)
        running = {each: known.derived[each][1] for each in planned.reused}
        placed = await self._placing.place(PlacementProblem(links, {**plan.owners, **running}))
        hosts, costs = {**running, **placed.placement.hosts}, placed.view
        return placement_cost(links, hosts, specs, costs.rtt_ms, costs.load_ms)

    def _behind_ms(self, view: QueryView, old: str, from_ms: int | None) -> int:
        """How much event time passes until the new plan can take over."""
        status = next((each.status for each in view.fragments if each.spec.fragment_id == old), None)
        if from_ms is None or status is None or status.watermark_ms is None:
            return 0
        return max(0, from_ms - status.watermark_ms)

    # --- how

    async def _change(self, known: QueryRecord, better: _Better) -> int:
        query_id = known.query_id
        agreed = await self._reading.agree(better.planned, query_id, known.keepers, better.known)
        new = ""
        try:
            plan = switching.new_plan(self._keeper.record(query_id), agreed.plan)
            new = plan.name
            await self._start(query_id, agreed, new)
            await self._keeper.decide_plan(query_id, new)
        except BaseException as error:
            with trio.CancelScope(shield=True), trio.move_on_after(30.0):
                if new:
                    await self._keeper.call_off_plan(query_id, new)
                await self._reading.withdraw(agreed)
            if isinstance(error, SbonError):
                self._events.publish("plan-failed", query=query_id, error=str(error))
            raise
        self._events.publish(
            "query-replanned",
            query=query_id,
            reason="another plan",
            cost_now=round(better.cost_now, 1),
            cost_then=round(better.cost_then, 1),
            fragments=list(plan.fragments),
        )
        return len(plan.fragments)

    async def _start(self, query_id: str, agreed: Agreed, new: str) -> None:
        """All fragments of the new plan, beside the old one. Nobody reads them yet."""
        chosen, taken = await self._launching.place(agreed.plan, agreed.reused)
        try:
            of_others = [each for each in agreed.reused if each.query_id != query_id]
            await self._keeper.change_plan(
                query_id,
                lambda record: switching.begin(record, agreed.plan, chosen.hosts, taken, chosen.choices, of_others),
            )
            inner = [spec for spec in agreed.plan.fragments if spec.sink is None]
            await self._launching.start(inner, chosen.hosts, query_id, partial(_check_wanted, new=new))
        finally:
            await self._launching.give_up(query_id, chosen.hosts.values())


def _check_wanted(record: QueryRecord, new: str) -> None:
    if record.new_plan is None or record.new_plan.name != new:
        raise SbonError(f"the new plan of query {record.query_id} was called off while it was being started")


def _sources(record: QueryRecord) -> list[tuple[FragmentSpec, str]]:
    """Those that run, and where."""
    running = (each for each in record.fragments.values() if not each.released)
    return [(each.spec, each.owner) for each in running if each.spec.stream is not None]


def _inner(record: QueryRecord, stays: Collection[str]) -> list[FragmentSpec]:
    """What would end if another plan came in the place of the present one."""
    return [
        each.spec
        for fragment_id, each in record.fragments.items()
        if not (each.released or each.spec.pinned or fragment_id in stays)
    ]


def _signature(computes: Computes) -> Signature:
    return Signature(computes.body, frozenset(computes.filters))


def _computes(spec: FragmentSpec) -> Signature | None:
    return None if spec.computes is None else _signature(spec.computes)
