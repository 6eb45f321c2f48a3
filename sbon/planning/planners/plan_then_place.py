"""``plan-then-place``: the join order of the smallest intermediate results, then its optimal placement.

The baseline of Seshadri et al. (TPDS'09, figure 2: *plan, then deploy*) at its best: of the chosen order, the placement
is exact, and what runs already is reused where it is a part of that order.
"""

from __future__ import annotations

from sbon.errors import UnavailableError
from sbon.planning.join_table import JoinTable
from sbon.planning.orders import order_by_size
from sbon.planning.problem import JoinQuery, Plan
from sbon.planning.situation import Situation, available, base_streams


class Planner:
    reuses = True

    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        order = order_by_size(query)
        leaves = available(query, situation) if self.reuses else base_streams(query)
        table = JoinTable(query.rates, leaves, query.everything, situation.network, situation.takers, allowed=order)
        best = table.best(query.sink, query.result_rate)
        if best is None:
            raise UnavailableError(f"{query.name} cannot be placed: no host takes operators")
        return Plan(best[0], best[1], table.work)
