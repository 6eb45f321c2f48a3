"""The local optimizer as a task: this host looks, again and again, whether its operators should be elsewhere.

What is worth a search and what is worth a move is decided by :mod:`sbon.placement.evaluator`; here the facts are
gathered for it, by query from the query's keeper (SBON ICDE'06 section 3.2), and moves are carried out, one after
another.
"""

from __future__ import annotations

import logging
import random
from collections import defaultdict

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.fragments import own_costs
from daemon.fragments.hosted_fragment import HostedFragment
from daemon.fragments.hosting import Hosting
from daemon.fragments.local_policy import policy_of
from daemon.fragments.migration import Conductor
from daemon.peering.peers import Peers
from daemon.peering.query_messages import DescribeQuery, QueryStatus, QueryView
from daemon.placing import Placing
from sbon.errors import SbonError
from sbon.placement.evaluator import CONFIRM_EVERY_S, Evaluator, Situation
from sbon.placement.local_optimizer import Action, Decision, groups

log = logging.getLogger("sbon.local_optimizer")


_Group = tuple[str, ...]


class LocalOptimizer:
    """Evaluates the unpinned fragments hosted here, every ``period_s`` and soon after a path has changed."""

    def __init__(
        self,
        peers: Peers,
        hosting: Hosting,
        conductor: Conductor,
        placing: Placing,
        events: Events,
        settings: PlacementConfig,
    ) -> None:
        self._peers = peers
        self._placing = placing
        self._hosting = hosting
        self._conductor = conductor
        self._events = events
        self._settings = settings
        self._policy = policy_of(settings)
        self._news = trio.Event()
        self._evaluator = Evaluator(self._policy, settings.strategy, settings.candidates, random.Random())
        self._said: dict[_Group, str] = {}

    def path_changed(self) -> None:
        """Look soon."""
        self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            if not self._evaluator.is_confirming:
                with trio.move_on_after(self._settings.period_s):
                    await self._news.wait()
            self._news = trio.Event()
            if self._settings.strategy == "sbon":
                await self._evaluate_all()
            # News about paths come in crowds: they are looked at together, and not more often than this.
            await trio.sleep(min(CONFIRM_EVERY_S, self._settings.period_s))

    async def _evaluate_all(self) -> None:
        by_query: defaultdict[tuple[tuple[str, ...], str], list[HostedFragment]] = defaultdict(list)
        for fragment in self._hosting.fragments:
            assignment = fragment.record.assignment
            if fragment.up and fragment.confirmed and not assignment.spec.pinned:
                by_query[assignment.keepers, assignment.query_id].append(fragment)
        here = {fragment.fragment_id for fragments in by_query.values() for fragment in fragments}
        self._evaluator.forget_all_but(here)
        for group in [group for group in self._said if not here.issuperset(group)]:
            del self._said[group]
        for (keepers, query_id), fragments in by_query.items():
            try:
                view = await self._peers.ask_any(keepers, DescribeQuery(query_id), QueryView)
                await self._evaluate_query(view, [fragment.fragment_id for fragment in fragments])
            except SbonError as error:
                log.info("%s is not evaluated now: %s", query_id, error)

    async def _evaluate_query(self, view: QueryView, here: list[str]) -> None:
        for record in view.hosts:
            self._peers.meet(record)  # ends of our streams need not be neighbours
        # A query that rests is not even searched for: what is found now would have to be found again.
        rests = view.since_last_move_s < self._policy.rest_s
        is_changing = view.moving is not None or view.new_plan is not None
        if view.status is QueryStatus.DEPLOYING or is_changing or rests:
            return
        placement = {fragment.spec.fragment_id: fragment.node_id for fragment in view.fragments} | view.elsewhere
        needed = [fragment_id for fragment_id in here if fragment_id in placement]  # what is not is about to end
        for group in groups(view.links, placement, needed, self._peers.node_id):
            decision = await self._evaluate_group(view, placement, group)
            if decision is not None and decision.action is Action.MOVE:
                await self._carry_out(decision)
                return  # everything is different now

    async def _evaluate_group(self, view: QueryView, placement: dict[str, str], group: _Group) -> Decision | None:
        settings = self._settings
        costs = self._peers.cost_view({}, settings.load_scale_ms, settings.load_scaling)
        own, here = self._peers.overlay.record, own_costs.statuses(self._hosting)
        states = {fragment.spec.fragment_id: fragment.status for fragment in view.fragments}
        situation = Situation(
            view.links,
            placement,
            group,
            state_bytes={operator: status.state_bytes for operator, status in states.items() if status is not None},
            remaining_lifetime_s=view.age_s if view.remaining_s is None else view.remaining_s,
            since_last_move_s=view.since_last_move_s,
            own_load=own.load * own_costs.share(group, here),
            demand={
                fragment.fragment_id: own_costs.demand(self._hosting, fragment)
                for fragment in self._hosting.fragments
                if fragment.fragment_id in group
            },
        )
        evaluation = await self._placing.answered(
            self._evaluator.evaluate(situation, [own], costs, trio.current_time())
        )
        if evaluation is None:
            return None
        self._tell(group, evaluation.because, evaluation.decision)
        return evaluation.decision

    def _tell(self, group: _Group, reason: str, decision: Decision) -> None:
        """An event for each decision that says anything new."""
        said = f"{decision.action}: {decision.reason}"
        if self._said.get(group) != said:
            self._said[group] = said
            self._events.publish(
                "placement-evaluated",
                fragments=list(group),
                because=self._with_names(reason),
                decision=str(decision.action),
                reason=self._with_names(decision.reason),
                cost_now=decision.cost_now,
                cost_then=decision.cost_then,
            )

    def _with_names(self, reason: str) -> str:
        """``reason`` speaks of node ids; people know names."""
        for record in self._peers.overlay.members():
            reason = reason.replace(record.node_id, record.name)
        return reason

    async def _carry_out(self, decision: Decision) -> None:
        for move in decision.moves:
            try:
                await self._conductor.move(move.operator, move.target, decision.reason)
            except SbonError as error:
                log.warning("a move of %s failed: %s", move.operator, error)
                return
