"""``in-network``: the join order of the smallest intermediate results, then for each join a zone, and in it a host.

After Y. Ahmad, U. Cetintemel, "Network-Aware Query Processing for Stream-Based Applications", VLDB 2004, as Seshadri
et al. (TPDS'09, section 4.4) compare with it: five zones, and what runs already is reused if it is in the order.
"""

from __future__ import annotations

from sbon.planning.cost import cost
from sbon.planning.in_clusters import ClusterPlanning
from sbon.planning.orders import order_by_size
from sbon.planning.problem import JoinQuery, Plan
from sbon.planning.situation import Situation, available


class Planner:
    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        zones = situation.zones
        planning = ClusterPlanning(query, situation, zones, allowed=order_by_size(query), with_ends=False)
        leaves = available(query, situation)
        tree, _ = planning.plan(zones.top, leaves, query.everything, query.sink, query.result_rate)
        return Plan(tree, cost(query, tree, situation.network), planning.work)
