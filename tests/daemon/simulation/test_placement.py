"""``sbon simulate placement``: small networks and few queries; docs/placement.md has the figures of large ones."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from daemon.cli.main import main
from daemon.simulation.placement import networks, plot
from daemon.simulation.placement.command import print_report
from daemon.simulation.placement.embedding import embed
from daemon.simulation.placement.figures import PAPER, PlacementReport
from daemon.simulation.placement.ground import OVERLOADED, Ground, GroundHost
from daemon.simulation.placement.queries import CONSUMER, SHAPES, draw
from daemon.simulation.placement.run import Experiment, Results, run
from overlay.config import OverlayConfig
from sbon.coordinate import Coordinate
from sbon.errors import SbonError
from sbon.network_usage import Link
from sbon.objectives import Endpoint, HasProperty, LeastUsage, NearestTo, Objective
from sbon.placement import strategies
from sbon.placement.problem import PlacementProblem
from sbon.placement.questions import Course, FindHosts


@pytest.fixture(scope="module")
def cloud() -> Ground:
    network = networks.from_files((), None, 1)
    embedding = embed(network.rtt_ms, OverlayConfig(), 1)
    hosts = [GroundHost(f"n{i}", coordinate) for i, coordinate in enumerate(embedding.coordinates)]
    return Ground(hosts, network.rtt_ms, embedding.peers)


@pytest.fixture(scope="module")
def plane() -> Ground:
    """150 hosts in the plane, with errors on their coordinates; what paths cost is their true distance."""
    rng = random.Random(3)
    points = [(rng.uniform(0.0, 150.0), rng.uniform(0.0, 150.0), 0.0, 0.0) for _ in range(150)]
    access = [rng.expovariate(0.2) for _ in points]
    rtt_ms = np.array(
        [
            [float(np.hypot(a[0] - b[0], a[1] - b[1])) + h + g for b, g in zip(points, access, strict=True)]
            for a, h in zip(points, access, strict=True)
        ]
    )
    np.fill_diagonal(rtt_ms, 0.0)
    hosts = [
        GroundHost(f"n{i}", Coordinate(tuple(x + rng.gauss(0.0, 4.0) for x in point), h, 0.1))
        for i, (point, h) in enumerate(zip(points, access, strict=True))
    ]
    return Ground(hosts, rtt_ms, [rng.sample(range(150), 16) for _ in points])


def sites(seed: int) -> Ground:
    """Forty sites of four hosts, with long ways of their own to the rest of the world. From a quarter of the sites to
    another data take a shorter way than coordinates tell of."""
    rng = random.Random(seed)
    count, there = 160, [k // 4 for k in range(160)]
    points = [(rng.uniform(0.0, 150.0), rng.uniform(0.0, 150.0), 0.0, 0.0) for _ in range(40)]
    access = [rng.uniform(5.0, 30.0) for _ in points]
    rtt_ms = np.zeros((count, count))
    shorter = {(a, b): rng.choice((1.0, 1.0, 1.0, 0.6)) for a in range(40) for b in range(a + 1, 40)}
    for i in range(count):
        for j in range(i + 1, count):
            a, b = there[i], there[j]
            way_ms = float(np.hypot(points[a][0] - points[b][0], points[a][1] - points[b][1])) + access[a] + access[b]
            rtt_ms[i, j] = rtt_ms[j, i] = 1.0 if a == b else way_ms * shorter[a, b] * rng.uniform(0.97, 1.03)
    hosts = [
        GroundHost(
            f"n{i}",
            Coordinate(tuple(x + rng.gauss(0.0, 1.0) for x in points[site]), access[site] + rng.uniform(0.0, 1.0), 0.1),
        )
        for i, site in enumerate(there)
    ]
    return Ground(hosts, rtt_ms, [rng.sample(range(count), 30) for _ in range(count)])


def placed(ground: Ground, names: Sequence[str], *, shape: str = "aggregate-4", probes: int = 10) -> dict[str, Results]:
    return run(Experiment(1, 40, shape, 4, probes, names), ground, lambda done, total: None)


def usage(results: Results) -> float:
    return results.figures().network_usage_penalty.mean


def test_ours_is_near_the_optimum(cloud: Ground, plane: Ground) -> None:
    for ground in (cloud, plane):
        results = placed(ground, ("sbon", "relaxation", "optimal"))
        assert usage(results["sbon"]) <= 0.01
        assert usage(results["sbon"]) < usage(results["relaxation"]) / 3
        assert results["sbon"].figures().network_usage_penalty.p90 <= 0.05
        assert usage(results["optimal"]) == pytest.approx(0.0, abs=1e-9)
        delay = {name: result.figures().delay_penalty.mean for name, result in results.items()}
        assert delay["sbon"] <= delay["optimal"] + 0.02


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_what_was_measured_tells_of_hosts_of_the_same_site(seed: int) -> None:
    penalty = placed(sites(seed), ("sbon",))["sbon"].figures().network_usage_penalty
    assert penalty.mean <= 0.0125
    assert penalty.p90 <= 0.025


@pytest.mark.parametrize("shape", ["chain", "tree", "multi-join"])
def test_plans_of_several_operators_are_near_the_optimum(cloud: Ground, shape: str) -> None:
    assert usage(placed(cloud, ("sbon",), shape=shape)["sbon"]) <= 0.03


def test_as_many_candidates_are_measured_as_allowed(plane: Ground) -> None:
    losses = []
    for probes in (2, 5, 10):
        results = placed(plane, ("sbon",), probes=probes)["sbon"]
        assert set(results.measured_per_operator) == {probes}
        losses.append(usage(results))
    assert losses[2] <= losses[0]
    assert losses[0] <= 0.10


def test_every_strategy_places_every_shape(cloud: Ground) -> None:
    for shape in SHAPES:
        for name, results in placed(cloud, strategies.NAMES, shape=shape).items():
            assert min(results.usage_penalty) >= -1e-9, name
            assert len(results.usage_penalty) == 40
            if name in ("consumer", "producer", "random", "multicast", "relaxation", "optimal"):
                assert max(results.measured_per_operator) == 0.0


def test_beside_the_consumer_nothing_is_late(cloud: Ground) -> None:
    assert max(placed(cloud, ("consumer",))["consumer"].delay_penalty) == 0.0


def test_hosts_that_take_no_operators_get_none(plane: Ground) -> None:
    hosts = [GroundHost(h.node_id, h.coordinate, 0.0, i % 3 == 0) for i, h in enumerate(plane.hosts)]
    ground = Ground(hosts, plane.rtt_ms, [() for _ in hosts])
    takers = {host.node_id for host in hosts if host.accepts_operators}
    problem = draw("tree", ground.node_ids, 4, random.Random(1))
    for name in ("sbon", "relaxation", "optimal", "random"):
        results = ground.place_all([strategies.load(name).place(_task(problem, ground))])
        assert results[0].placement is not None
        assert {results[0].placement.hosts[operator] for operator in problem.unpinned} <= takers


def _task(problem: Any, ground: Ground) -> Any:
    from sbon.placement.questions import Task

    return Task(problem, ground.view, random.Random(1))


def test_overloaded_hosts_get_no_operators_as_long_as_others_take_them(plane: Ground) -> None:
    rng = random.Random(4)
    for share in (0.2, 1.0):
        full = set(rng.sample(range(len(plane.hosts)), round(share * len(plane.hosts))))
        hosts = [GroundHost(h.node_id, h.coordinate, OVERLOADED * (i in full)) for i, h in enumerate(plane.hosts)]
        ground = Ground(hosts, plane.rtt_ms, [() for _ in hosts])
        results = placed(ground, ("sbon", "optimal"))
        assert results["sbon"].on_full_hosts == results["optimal"].on_full_hosts == (0 if share < 1.0 else 40)
        assert usage(results["optimal"]) <= usage(results["sbon"]) <= 0.05


def test_where_all_that_is_near_is_full_others_are_looked_for_further_away(plane: Ground) -> None:
    nearest = np.argsort(plane.rtt_ms[0])
    full = set(nearest[:100].tolist())
    hosts = [GroundHost(h.node_id, h.coordinate, OVERLOADED * (i in full)) for i, h in enumerate(plane.hosts)]
    ground = Ground(hosts, plane.rtt_ms, [() for _ in hosts])
    links = (Link("a", "merge", 9.0), Link("b", "merge", 9.0), Link("merge", "sink", 1.0))
    names = [hosts[index].node_id for index in nearest[:3]]
    problem = PlacementProblem(links, dict(zip(("a", "b", "sink"), names, strict=True)))
    placement = ground.place_all([strategies.load("sbon").place(_task(problem, ground))])[0].placement
    assert placement is not None
    assert ground.index[placement.hosts["merge"]] not in full


def test_a_search_of_the_ground_is_brute_force(plane: Ground) -> None:
    rng = random.Random(2)
    hosts = [
        GroundHost(h.node_id, replace(h.coordinate, error=rng.random()), 0.0, rng.random() < 0.7) for h in plane.hosts
    ]
    ground = Ground(hosts, plane.rtt_ms, [() for _ in hosts])
    ends = [Endpoint(hosts[i].coordinate, rng.uniform(1.0, 9.0), hosts[i].node_id) for i in (3, 40, 99)]
    point = Endpoint(Coordinate((10.0, 20.0, 0.0, 0.0), 0.0, 0.0), 5.0)
    objectives: list[Objective] = [
        LeastUsage((*ends, point), 3.0, 0.0),
        LeastUsage((*ends, point), 3.0, 0.0, optimism=2.0),
        NearestTo(hosts[5].coordinate, hosts[5].node_id),
        HasProperty(hosts[7].coordinate, accepts_operators=True),
    ]
    for objective in objectives:
        expected = sorted(hosts, key=objective.cost)[:10]
        assert ground.answer(FindHosts(objective, 10)) == expected


def test_shapes_are_what_they_say() -> None:
    hosts = [f"n{i}" for i in range(30)]
    for seed in range(50):
        for shape in SHAPES:
            problem = draw(shape, hosts, 6, random.Random(seed))
            assert 1 <= len(problem.unpinned) <= 6
            assert CONSUMER in problem.pinned
            assert len(set(problem.pinned.values())) == len(problem.pinned)
            outputs = [link.source for link in problem.links]
            assert len(outputs) == len(set(outputs))  # a tree
    aggregate = draw("aggregate-4", hosts, 6, random.Random(0))
    assert [link.rate_bytes_per_s for link in aggregate.links] == [2000.0] * 4 + [1000.0]


def test_the_same_seed_gives_the_same_report(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "placement", "--coordinates", "embedding", "--queries", "10", "--json", "--seed", "4"]
    reports = []
    for _ in range(2):
        assert main(words) == 0
        report = json.loads(capsys.readouterr().out)
        report.pop("seconds")
        for figures in report["strategies"].values():
            figures.pop("milliseconds_per_query")
        reports.append(report)
    assert reports[0] == reports[1]
    assert set(reports[0]["strategies"]) == set(strategies.NAMES)
    penalty = reports[0]["strategies"]["random"]["network_usage_penalty"]
    assert set(penalty) == {"mean", "p50", "p80", "p90"}


def test_placing_inside_a_living_overlay(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    drawing = tmp_path / "cdf.svg"
    words = ["--nodes", "25", "--minutes", "2", "--queries", "12", "--strategies", "sbon,consumer,optimal"]
    assert main(["simulate", "placement", *words, "--json", "--plot", str(drawing)]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["coordinates"] == "overlay"
    assert report["strategies"]["sbon"]["network_usage_penalty"]["mean"] <= 0.02
    assert report["strategies"]["sbon"]["rtt_samples_per_query"] > 10.0
    assert drawing.read_text().count("<polyline") == 6


def test_a_drawing_of_one_query_is_a_drawing(tmp_path: Path) -> None:
    plot.write(tmp_path / "one.svg", {"a<b": Results([0.1], [0.2], [1.0], [1], [0.1])})
    assert "a&lt;b" in (tmp_path / "one.svg").read_text()


def test_the_papers_table_stands_beside_ours(cloud: Ground, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {name: result.figures() for name, result in placed(cloud, ("sbon", "relaxation")).items()}
    report = PlacementReport(1, "cloud", 44, 44, 40, "aggregate-4", 10, "embedding", 0.0, 0.05, figures, PAPER)
    print_report(report)
    with_paper = capsys.readouterr().out
    print_report(replace(report, paper=None))
    without = capsys.readouterr().out
    (line,) = (line for line in with_paper.splitlines() if line.startswith("relaxation"))
    assert line.split()[-2:] == ["15", "24"]
    assert line.split()[:-2] in [line.split() for line in without.splitlines()]
    assert "paper" not in without


def test_transit_candidates_need_transit_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["simulate", "placement", "--candidates", "transit"]) == 1
    assert "--transit-stub" in capsys.readouterr().err


def test_an_unknown_strategy_is_refused() -> None:
    with pytest.raises(ValueError, match="no placement strategy"):
        strategies.load("best")
    with pytest.raises(SbonError):
        networks.from_files((), 100_000, 1)


def test_a_course_is_not_begun_before_it_is_asked(cloud: Ground) -> None:
    problem = draw("chain", cloud.node_ids, 2, random.Random(5))
    course: Course = strategies.load("sbon").place(_task(problem, cloud))
    assert next(course) is not None
    course.close()
