"""The full optimizer's first step: where to look for hosts.

:func:`virtual_places` relaxes the plan, and :func:`candidate_objective` is what a search for hosts minimises: for each
operator the predicted usage of its links plus load. (Least *predicted usage* beats being nearest to the virtual point:
DESIGN, Cost space.)
"""

from __future__ import annotations

from collections.abc import Mapping

from sbon.coordinate import Coordinate
from sbon.objectives import Endpoint, LeastUsage, heaviest
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
