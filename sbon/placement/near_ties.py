"""Of placements that cost about the same, one whose data arrive sooner.

Hosts of nearly least cost are often far apart: usage hardly tells them from each other, delay does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbon.delay import longest_delay_ms
from sbon.network_usage import RttMs, placement_cost
from sbon.placement.problem import CostView, PlacementProblem

#: A share of the cost: less than that is no reason to move an operator, either (``minimum_migration_saving``).
NEAR_TIE = 0.005


def quickest(
    problem: PlacementProblem,
    candidates: Mapping[str, Sequence[str]],
    cheapest: Mapping[str, str],
    view: CostView,
    rtt_ms: RttMs,
    slack: float = NEAR_TIE,
) -> dict[str, str]:
    """From the ``cheapest`` placement (operator -> node id) on, one operator after the other to whichever of its
    candidates shortens the delay most, as long as the cost stays within ``slack`` of the least.

    For one operator this is the least delay there is; for several, one that no single operator can shorten.
    """

    def cost(hosts: Mapping[str, str]) -> float:
        return placement_cost(problem.links, hosts, problem.unpinned, rtt_ms, view.load_ms)

    def delay_ms(hosts: Mapping[str, str]) -> float:
        return longest_delay_ms(problem.links, hosts, rtt_ms)

    hosts, most = dict(cheapest), (1.0 + slack) * cost(cheapest)
    while True:
        moved = (hosts | {operator: node_id} for operator, ids in candidates.items() for node_id in ids)
        best = min((one for one in moved if cost(one) <= most), key=delay_ms, default=hosts)
        if delay_ms(best) >= delay_ms(hosts):
            return hosts
        hosts = best
