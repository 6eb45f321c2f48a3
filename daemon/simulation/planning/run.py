"""Queries planned and deployed one after the other, by every planner in a world of its own."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from daemon.simulation.planning.figures import PlannerFigures
from sbon.placement.optimum import Truth
from sbon.planning import planners
from sbon.planning.hierarchy import Hierarchy
from sbon.planning.problem import JoinQuery, Plan, Work, uses
from sbon.planning.replanning import replan
from sbon.planning.running import Running
from sbon.planning.situation import Situation

OPTIMAL = "optimal"


@dataclass(frozen=True)
class Ground:
    """``believed``: the network as planners see it; costs are those of ``truth``."""

    truth: Truth
    believed: Truth
    hierarchy: Hierarchy


@dataclass(slots=True)
class Results:
    """Of one planner. ``costs``: bytes in transit after each query."""

    costs: list[float] = field(default_factory=list)
    work: Work = field(default_factory=Work)
    reused: int = 0
    joins: int = 0
    filters: int = 0
    seconds: float = 0.0
    measured_paths: int | None = None
    replanned_cost: float | None = None
    replanned_moves: int | None = None

    def figures(self, optimal_cost: float | None) -> PlannerFigures:
        count = len(self.costs)
        above = None if optimal_cost is None else round(self.costs[-1] / optimal_cost - 1.0, 5)
        return PlannerFigures(
            cumulative_cost=round(self.costs[-1], 3),
            above_optimal=above,
            plans=round(self.work.plans / count, 1),
            steps=round(self.work.steps / count, 1),
            joins=self.joins,
            filters=self.filters,
            reused=self.reused,
            milliseconds_per_query=round(1000.0 * self.seconds / count, 3),
            measured_paths_per_query=None if self.measured_paths is None else round(self.measured_paths / count, 2),
            replanned_cost=None if self.replanned_cost is None else round(self.replanned_cost, 3),
            replanned_moves=self.replanned_moves,
        )


@dataclass(frozen=True, slots=True)
class Planned:
    """``measured``: paths that were measured for the plan, None where planning does not measure. ``seconds``: of the
    planner's own computing."""

    plan: Plan
    seconds: float
    measured: int | None = None


#: Plans a query.
Plans = Callable[[JoinQuery, Situation], Planned]


def plans_by(name: str) -> Plans:
    planner = planners.load(name)

    def plan(query: JoinQuery, situation: Situation) -> Planned:
        began = time.perf_counter()
        made = planner.plan(query, situation)
        return Planned(made, time.perf_counter() - began)

    return plan


def run(
    queries: Sequence[JoinQuery], ground: Ground, plans: Plans, show: Callable[[int], None], moves: int = 0
) -> Results:
    """Plan and deploy them all; then, if there are ``moves``, revisit what runs with that budget."""
    results = Results()
    situation = Situation(ground.believed, Running(), ground.hierarchy)
    for query in queries:
        planned = plans(query, situation)
        plan = planned.plan
        results.seconds += planned.seconds
        situation.running.deploy(query, plan.tree)
        results.work.add(plan.work)
        results.reused += sum(use.running is not None for use in uses(plan.tree))
        results.costs.append(situation.running.network_usage(ground.truth))
        if planned.measured is not None:
            results.measured_paths = (results.measured_paths or 0) + planned.measured
        show(1)
    results.joins = sum(len(stream.feeds) == 2 for stream in situation.running.streams)
    results.filters = sum(bool(stream.signature.filters) for stream in situation.running.streams)
    if moves:
        results.replanned_moves = replan(queries, situation, moves)
        results.replanned_cost = situation.running.network_usage(ground.truth)
    return results
