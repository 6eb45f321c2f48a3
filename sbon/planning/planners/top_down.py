"""``top-down``: from the top of the hierarchy the query is cut into ever smaller parts for ever smaller clusters
(Seshadri et al., TPDS'09, section 3.2)."""

from __future__ import annotations

from sbon.planning.cost import cost
from sbon.planning.in_clusters import ClusterPlanning
from sbon.planning.problem import JoinQuery, Plan
from sbon.planning.situation import Situation, available


class Planner:
    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        hierarchy = situation.clusters()
        planning = ClusterPlanning(query, situation, hierarchy)
        tree, _ = planning.plan(
            hierarchy.top, available(query, situation), query.everything, query.sink, query.result_rate
        )
        return Plan(tree, cost(query, tree, situation.network), planning.work)
