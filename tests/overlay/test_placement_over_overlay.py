"""A plan placed by what an overlay of nodes knows: searches by predicted usage, then the nodes' own measurements."""

from __future__ import annotations

import pytest

from overlay.records import NodeRecord
from sbon.coordinate import Coordinate
from sbon.network_usage import Link
from sbon.placement.candidates import candidate_objective, virtual_places
from sbon.placement.full_optimizer import choose
from sbon.placement.problem import CostView, PlacementProblem
from tests import truth
from tests.overlay.fake_network import FakeNetwork, full_mesh


def view_from(network: FakeNetwork, index: int) -> CostView:
    """What node ``index`` knows, with the measurements of the others as they would report them."""
    here = network.nodes[index]
    by_id = {node.record.node_id: node for node in network.nodes.values()}

    def coordinate_of(node_id: str) -> Coordinate:
        record = here.find(node_id)
        assert record is not None
        return record.coordinate

    return CostView(coordinate_of, lambda a, b: by_id[a].measured_rtt_ms(b), lambda node_id: 0.0)


def test_operators_go_where_the_real_matrix_says() -> None:
    matrix = truth.cloud_regions(6)
    network = full_mesh(matrix)
    network.run(10.0)
    ids = [network.nodes[index].record.node_id for index in range(6)]
    links = (
        Link("flights", "join", 10_000.0),
        Link("weather", "join", 1_000.0),
        Link("join", "aggregate", 4_000.0),
        Link("aggregate", "sink", 50.0),
    )
    problem = PlacementProblem(links, {"flights": ids[2], "weather": ids[0], "sink": ids[5]})
    view = view_from(network, 5)
    virtual = virtual_places(problem, view)
    candidates: dict[str, list[NodeRecord]] = {
        operator: list(network.search(5, candidate_objective(problem, operator, virtual, view), 3).found)
        for operator in problem.unpinned
    }
    placement = choose(problem, candidates, view, virtual)
    assert placement.hosts["join"] == placement.hosts["aggregate"] == ids[2]
    expected = (1_000 * matrix[0][2] + 50 * matrix[2][5]) / 2 / 1000
    assert placement.network_usage == pytest.approx(expected, rel=0.001)
    assert all(candidate.measured for choice in placement.choices for candidate in choice.candidates)
