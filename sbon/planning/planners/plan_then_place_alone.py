"""``plan-then-place-alone``: as ``plan-then-place``, and every query by itself: nothing is reused."""

from __future__ import annotations

from sbon.planning.planners import plan_then_place


class Planner(plan_then_place.Planner):
    reuses = False
