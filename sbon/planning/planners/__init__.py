"""The planners, one in each module; each has a class ``Planner``, loaded when it is asked for (they need numpy)."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from sbon.planning.problem import JoinQuery, Plan
    from sbon.planning.situation import Situation

#: As they are named on the command line.
NAMES = (
    "joint",
    "top-down",
    "npc",
    "bottom-up",
    "in-network",
    "plan-then-place",
    "plan-then-place-alone",
    "optimal",
)


class QueryPlanner(Protocol):
    """One way to plan queries."""

    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        """Order, reuse and hosts of the joins. Raises UnavailableError if the query cannot be planned here."""


def load(name: str) -> QueryPlanner:
    """The planner of that name. Raises ValueError for one that there is not."""
    if name not in NAMES:
        raise ValueError(f"{name!r} is no planner: there are {', '.join(NAMES)}")
    planner: QueryPlanner = import_module(f"sbon.planning.planners.{name.replace('-', '_')}").Planner()
    return planner
