"""The full optimizer's first step: where to look for hosts, and what to measure between those found.

:func:`virtual_places` relaxes the plan, and :func:`candidate_objective` is what a search for hosts minimises: for each
operator the predicted usage of its links plus load. (Least *predicted usage* beats being nearest to the virtual point:
DESIGN, Cost space.) :func:`paths_to_measure` says which round trips then matter between the candidates.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sbon.coordinate import Coordinate
from sbon.objectives import Endpoint, Host, LeastUsage, heaviest
from sbon.placement.problem import CostView, PlacementProblem
from sbon.placement.relaxation import Point, virtual_place


def virtual_places(
    problem: PlacementProblem, view: CostView, start: Mapping[str, Point] | None = None
) -> dict[str, Point]:
    """The virtual point of every unpinned operator, in ms; ``start`` says where they were before."""
    fixed = {operator: view.coordinate_of(node_id).vector_ms for operator, node_id in problem.pinned.items()}
    return virtual_place(problem.links, fixed, start=start)


def candidate_objective(
    problem: PlacementProblem, operator: str, virtual: Mapping[str, Point], view: CostView, optimism: float = 0.0
) -> LeastUsage:
    """Cost of a host for one operator by prediction alone; unpinned neighbours are at their virtual points.

    ``optimism`` as in :class:`sbon.objectives.LeastUsage`.
    """
    endpoints = []
    for neighbour, rate in problem.neighbours(operator):
        node_id = problem.pinned.get(neighbour)
        if node_id is None:
            endpoints.append(Endpoint(Coordinate(tuple(virtual[neighbour]), 0.0, 0.0), rate))
        else:
            endpoints.append(Endpoint(view.coordinate_of(node_id), rate, node_id))
    input_rate = problem.input_rate_bytes_per_s(operator)
    return LeastUsage(heaviest(endpoints), input_rate, view.load_scale_ms, view.load_scaling, optimism)


def paths_to_measure(problem: PlacementProblem, candidates: Mapping[str, Sequence[Host]]) -> list[tuple[str, str]]:
    """The pairs of node ids, each once and sorted, whose round trip the exact choice will ask for."""
    pool = {host.node_id for hosts in candidates.values() for host in hosts}
    pairs: set[tuple[str, str]] = set()
    for link in problem.links:
        sources = {problem.pinned[link.source]} if link.source in problem.pinned else pool
        targets = {problem.pinned[link.target]} if link.target in problem.pinned else pool
        if len(sources) == len(targets) == 1:
            continue  # its cost is the same whatever is chosen
        pairs |= {(min(a, b), max(a, b)) for a in sources for b in targets if a != b}
    return sorted(pairs)
