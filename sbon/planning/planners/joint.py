"""``joint``: the exact optimum of one query given what runs, over all hosts (DESIGN: Placement)."""

from __future__ import annotations

import math

import numpy as np

from sbon.errors import UnavailableError
from sbon.placement.optimum import Truth
from sbon.planning.join_table import JoinTable, Leaf
from sbon.planning.problem import JoinQuery, Plan
from sbon.planning.situation import Situation, available

#: With fewer hosts looking for a bound first takes as long as it saves.
BOUND_FROM_HOSTS = 200


class Planner:
    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        network, takers = situation.network, situation.takers
        leaves = available(query, situation)
        at_most = math.inf
        if len(takers) >= BOUND_FROM_HOSTS:
            at_most = _some_cost(query, leaves, network)
        table = JoinTable(query.rates, leaves, query.everything, network, takers, at_most=at_most)
        best = table.best(query.sink, query.result_rate)
        if best is None:
            raise UnavailableError(f"{query.name} cannot be planned: no host takes operators, or streams stay unjoined")
        return Plan(best[0], best[1], table.work)


def _some_cost(query: JoinQuery, leaves: list[Leaf], network: Truth) -> float:
    """What the best plan costs that has its operators where streams are or where the result goes."""
    near = np.unique([query.sink, *(leaf.tree.host for leaf in leaves)])
    best = JoinTable(query.rates, leaves, query.everything, network, near[network.takes[near]]).best(
        query.sink, query.result_rate
    )
    return math.inf if best is None else best[1]
