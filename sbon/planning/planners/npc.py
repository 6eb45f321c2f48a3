"""``npc``: Bottom-Up that leaves a decision to the level above where that promises to be cheaper, by its *net present
cost* (Seshadri et al., TPDS'09, section 3.4)."""

from __future__ import annotations

import math

from sbon.planning.in_clusters import ClusterPlanning
from sbon.planning.planners import bottom_up


class Planner(bottom_up.Planner):
    def keeps(self, planning: ClusterPlanning, level: int, mask: int, local_cost: float) -> bool:
        """Whether the cost of joining now, and of what then comes from afar, is at most that of joining higher up."""
        query = planning.query
        remote = query.everything ^ mask
        present = local_cost + _expected(planning, level, _rate(planning, remote))
        return _expected(planning, level, query.result_rate) >= present


def _rate(planning: ClusterPlanning, mask: int) -> float:
    """Of the streams joined, or, if they cannot be, of all together."""
    rates = planning.query.rates
    if math.isfinite(rates[mask]):
        return rates[mask]
    return sum(rates[1 << i] for i in range(len(planning.query.hosts)) if mask >> i & 1)


def _expected(planning: ClusterPlanning, level: int, rate: float) -> float:
    """The expected cost of carrying ``rate`` across the cluster above in which it is found: the paper's sum of
    p_i x rate x d_i. The probability of a level is its share of the hosts that have not been seen below."""
    hierarchy, sink = planning.hierarchy, planning.query.sink
    seen = [hierarchy.size(hierarchy.cluster_of(sink, i)) for i in range(1, hierarchy.height + 1)]
    unseen = seen[-1] - seen[level - 1]
    if unseen == 0:
        return 0.0
    diameters = planning.situation.diameters
    return rate * sum((seen[i] - seen[i - 1]) / unseen * diameters[i] for i in range(level, hierarchy.height))
