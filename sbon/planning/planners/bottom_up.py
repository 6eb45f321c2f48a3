"""``bottom-up``: from the sink's cluster upwards, each coordinator joins what there is below it
(Seshadri et al., TPDS'09, section 3.3)."""

from __future__ import annotations

from collections.abc import Sequence

from sbon.errors import UnavailableError
from sbon.planning.cost import cost, inner_cost
from sbon.planning.hierarchy import Cluster
from sbon.planning.in_clusters import ClusterPlanning
from sbon.planning.join_table import Leaf
from sbon.planning.problem import JoinQuery, Plan, splits, submasks
from sbon.planning.situation import Situation, available


class Planner:
    def plan(self, query: JoinQuery, situation: Situation) -> Plan:
        hierarchy = situation.clusters()
        planning = ClusterPlanning(query, situation, hierarchy)
        streams = available(query, situation)
        view: Leaf | None = None
        for level in range(1, hierarchy.height + 1):
            cluster = hierarchy.cluster_of(query.sink, level)
            local = leaves_in(cluster, planning, streams, view)
            mask = most_covered(query, local, view)
            if mask == 0 or (view is not None and mask == view.tree.mask):
                continue
            whole = mask == query.everything
            rate = query.result_rate if whole else query.rates[mask]
            tree, expected = planning.plan(cluster, local, mask, query.sink, rate)
            if whole:
                return Plan(tree, cost(query, tree, situation.network), planning.work)
            if self.keeps(planning, level, mask, expected):
                view = Leaf(tree, inner_cost(query, tree, situation.network))
        raise UnavailableError(f"{query.name} cannot be planned: not all of its streams are joined with each other")

    def keeps(self, planning: ClusterPlanning, level: int, mask: int, local_cost: float) -> bool:
        """Whether what is local at a level is joined there, or left to the level above."""
        return True


def leaves_in(cluster: Cluster, planning: ClusterPlanning, streams: Sequence[Leaf], view: Leaf | None) -> list[Leaf]:
    """What there is in the cluster: the view from below in place of the base streams that it joins, and streams.

    Nothing of the view runs yet, so what runs in the cluster may still do instead of it.
    """
    covered = 0 if view is None else view.tree.mask
    local = [leaf for leaf in streams if planning.hierarchy.is_in(leaf.tree.host, cluster)]
    fresh = [leaf for leaf in local if leaf.tree.mask & covered != leaf.tree.mask or leaf.tree.mask == covered]
    return fresh if view is None else [view, *fresh]


def most_covered(query: JoinQuery, leaves: Sequence[Leaf], view: Leaf | None) -> int:
    """The largest set of streams that can be joined out of ``leaves``, those of the view among them; 0 if none."""
    masks = {leaf.tree.mask for leaf in leaves}
    for mask in submasks(query.everything):
        if mask not in masks and query.joinable(mask) and any(a in masks and b in masks for a, b in splits(mask)):
            masks.add(mask)
    covered = 0 if view is None else view.tree.mask
    return max((mask for mask in masks if mask & covered == covered), key=int.bit_count, default=0)
