"""Running queries, planned anew from time to time, one after another, by the first of their keepers.

Before anything else is seen whether another plan would be better than the one that runs
(:mod:`daemon.queries.plan_changing`). Each host looks after the operators that it runs itself
(:mod:`daemon.fragments.local_optimizer`), and they may hold each other in place: a join here and an aggregate there, of
which neither alone would gain by a move. Here all operators of a query are placed anew together, with what others read
of it and the rates that were measured.
"""

from __future__ import annotations

import logging
import random
from dataclasses import replace

import trio

from daemon.config import PlacementConfig
from daemon.events import Events
from daemon.fragments.local_policy import policy_of
from daemon.peering.move_messages import RequestMove
from daemon.peering.peers import Peers
from daemon.peering.query_messages import MoveReport, QueryStatus, QueryView
from daemon.placing import Placing
from daemon.queries.keeper import MOVE_TIMEOUT_S, Keeper
from daemon.queries.plan_changing import PlanChanging
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError
from sbon.network_usage import placement_cost
from sbon.placement.evaluator import CONFIRM_EVERY_S, MAX_LOOKS, Evaluator, Situation
from sbon.placement.local_optimizer import Action, Decision
from sbon.placement.problem import CostView
from sbon.planning.turns import turns

log = logging.getLogger("sbon.replanning")


class Replanning:
    """Of the queries that this node keeps as the first of their keepers."""

    def __init__(
        self,
        peers: Peers,
        keeping: RecordKeeping,
        keeper: Keeper,
        placing: Placing,
        changing: PlanChanging,
        events: Events,
        settings: PlacementConfig,
    ) -> None:
        self._peers = peers
        self._keeping = keeping
        self._keeper = keeper
        self._placing = placing
        self._changing = changing
        self._events = events
        self._settings = settings
        self._policy = policy_of(settings)
        self._turn = trio.Lock()
        self._evaluator = Evaluator(self._policy, settings.strategy, settings.candidates, random.Random())

    async def run(self) -> None:
        """Until cancelled."""
        while self._settings.strategy == "sbon":
            await trio.sleep(self._settings.replan_period_s * random.uniform(0.8, 1.2))
            await self.look_at_all()
        await trio.sleep_forever()

    async def look_at_all(self) -> None:
        """Once at each query, as long as the budget of moves lasts."""
        async with self._turn:
            await self._look_at_all()

    async def _look_at_all(self) -> None:
        kept = [record for record in self._keeping.records if record.keeper == self._peers.node_id]
        self._changing.forget_all_but({record.query_id for record in kept})
        course, moved = turns([record.query_id for record in kept], self._settings.replan_moves, rounds=1), None
        while True:
            try:
                query_id = next(course) if moved is None else course.send(moved)
            except StopIteration:
                return
            try:
                moved = await self._replan(query_id)
            except SbonError as error:
                log.info("%s is not planned anew now: %s", query_id, error)
                moved = 0

    async def _replan(self, query_id: str) -> int:
        """How many of the query's operators were moved, or are made anew."""
        changed = await self._changing.look(query_id)
        if changed:
            return changed
        for _ in range(1 + MAX_LOOKS):
            view = self._keeper.view(self._keeper.record(query_id))
            decision, confirms = await self._look(view)
            if decision is not None and decision.action is Action.MOVE:
                return await self._carry_out(view, decision)
            if not confirms:
                break
            await trio.sleep(CONFIRM_EVERY_S)
        return 0

    async def _look(self, view: QueryView) -> tuple[Decision | None, bool]:
        """What is to be done, None if nothing was looked at; and whether a saving is to be confirmed."""
        now = {each.spec.fragment_id: each.node_id for each in view.fragments if not each.released}
        placement, group = (
            now | view.elsewhere,
            tuple(each.spec.fragment_id for each in view.fragments if not (each.released or each.spec.pinned)),
        )
        rests = view.since_last_move_s < self._policy.rest_s
        spread = len({placement[operator] for operator in group}) > 1  # or else their host looks after them
        hosts = {host.node_id: host for host in view.hosts}
        known = all(placement[operator] in hosts for operator in group)
        busy = view.status is QueryStatus.DEPLOYING or view.moving is not None or view.new_plan is not None
        if busy or rests or not spread or not known:
            return None, False
        costs = replace(
            self._keeper.flows.cost_view(),
            load_scale_ms=self._settings.load_scale_ms,
            load_scaling=self._settings.load_scaling,
        )
        situation = Situation(
            view.links,
            placement,
            group,
            state_bytes={each.spec.fragment_id: each.status.state_bytes for each in view.fragments if each.status},
            remaining_lifetime_s=view.age_s if view.remaining_s is None else view.remaining_s,
            since_last_move_s=view.since_last_move_s,
            # How much of the load of its hosts is the query's own is not known here: none of it is a reason to leave.
            own_load=float("inf"),
        )
        course = self._evaluator.evaluate(situation, view.hosts, costs, trio.current_time())
        evaluation = await self._placing.answered(course)
        if evaluation is None:
            return None, False
        decision = evaluation.decision
        if decision.action is Action.MOVE and not _saves(situation, decision, costs):
            return None, False
        return decision, self._evaluator.confirms(group)

    async def _carry_out(self, view: QueryView, decision: Decision) -> int:
        moved = 0
        self._events.publish(
            "query-replanned",
            query=view.query_id,
            reason=decision.reason,
            cost_now=decision.cost_now,
            cost_then=decision.cost_then,
            moves={move.operator: self._peers.name(move.target) for move in decision.moves},
        )
        for move in decision.moves:
            message = RequestMove(move.operator, move.target, f"planned anew: {decision.reason}")
            try:
                await self._peers.ask(self._peers.node_id, message, MoveReport, MOVE_TIMEOUT_S)
            except SbonError as error:
                log.warning("a move of %s failed: %s", move.operator, error)
                break
            moved += 1
        return moved


def _saves(situation: Situation, decision: Decision, costs: CostView) -> bool:
    """Whether it does so with the load of all hosts as it is, too: some of these may be among the present ones."""
    now = dict(situation.placement)
    then = now | {move.operator: move.target for move in decision.moves}

    def cost(placement: dict[str, str]) -> float:
        return placement_cost(situation.links, placement, situation.group, costs.rtt_ms, costs.load_ms)

    return cost(then) < cost(now)
