"""``sbon simulate planning``: few queries on the paper's network; docs/planning.md has the figures of many."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest

from daemon.cli.main import main
from daemon.simulation import transit_stub
from daemon.simulation.planning.run import Ground, Results, plans_by, run
from daemon.simulation.planning.workloads import (
    BAGGAGE,
    CHECKINS,
    FLIGHTS,
    SOURCES,
    Width,
    airline,
    synthetic,
)
from sbon.placement.optimum import Truth
from sbon.planning.hierarchy import build
from sbon.planning.problem import JoinQuery

SEEDS = (1, 2, 3)


def ground_of(seed: int) -> Ground:
    rtt_ms = transit_stub.generate(seed, transit_stub.Shape.of(128)).rtt_ms
    truth = Truth.of([f"n{index}" for index in range(len(rtt_ms))], rtt_ms)
    return Ground(truth, truth, build(truth.one_way_s, 32, random.Random(seed)))


def results_of(name: str, queries: list[JoinQuery], ground: Ground, moves: int = 0) -> Results:
    return run(queries, ground, plans_by(name), lambda count: None, moves)


def mean_above(name: str, workload: str) -> float:
    """Over several seeds: what the planner's deployments cost above the joint planner's."""
    above = []
    for seed in SEEDS:
        ground, rng = ground_of(seed), random.Random(seed)
        hosts = len(ground.truth.node_ids)
        queries = synthetic(60, hosts, rng) if workload == "synthetic" else airline(150, hosts, rng, Width.FIXED)
        cost, best = (results_of(each, queries, ground).costs[-1] for each in (name, "joint"))
        above.append(cost / best - 1.0)
    return sum(above) / len(above)


@pytest.mark.parametrize(
    ("name", "synthetic_share", "airline_share"),
    [("top-down", 0.03, 0.05), ("npc", 0.18, 0.06), ("bottom-up", 0.34, 0.36)],
)
def test_hierarchical_planners_are_as_good_as_the_papers(
    name: str, synthetic_share: float, airline_share: float
) -> None:
    assert mean_above(name, "synthetic") <= synthetic_share
    assert mean_above(name, "airline") <= airline_share


def test_planning_first_and_placing_later_costs_more() -> None:
    assert mean_above("plan-then-place", "synthetic") > 0.05
    assert mean_above("plan-then-place-alone", "synthetic") > 0.5
    assert mean_above("plan-then-place-alone", "airline") > 5.0


@pytest.mark.parametrize("seed", SEEDS)
def test_joint_is_the_optimum(seed: int) -> None:
    ground, rng = ground_of(seed), random.Random(seed)
    for queries in (synthetic(12, 132, rng), airline(40, 132, rng, Width.SUM)):
        joint, optimal = (results_of(name, queries, ground) for name in ("joint", "optimal"))
        # Each query in turn costs the same; of equal plans one is chosen, and later ones may differ by that.
        assert joint.costs[0] == pytest.approx(optimal.costs[0])
        assert joint.costs[-1] == pytest.approx(optimal.costs[-1], rel=0.01)


def test_planning_anew_recovers_what_early_queries_lost() -> None:
    shares = []
    for seed in SEEDS:
        ground = ground_of(seed)
        results = results_of("joint", synthetic(100, 132, random.Random(seed)), ground, moves=100)
        assert results.replanned_cost is not None
        shares.append(1.0 - results.replanned_cost / results.costs[-1])
    assert min(shares) > 0.0
    assert sum(shares) / len(shares) >= 0.04


def test_the_airlines_rates_are_those_of_figure_5() -> None:
    assert [round(source.keys) for source in SOURCES] == [1500, 120, 125, 450, 70]
    queries = airline(200, 50, random.Random(1), Width.FIXED)
    gate = next(query for query in queries if query.result.body == "FLIGHTS CHECKINS BAGGAGE" and query.result.filters)
    per_record = 100.0 / 60.0
    assert gate.rates[1 << 0] == pytest.approx(300.0 * per_record)
    assert gate.rates[0b011] == pytest.approx(240.0 * per_record)  # each check-in has one flight
    assert gate.rates[0b111] == pytest.approx(120.0 * 2.0 * 4.0 * per_record)  # for each flight 2 x 4
    assert gate.result_rate == pytest.approx(gate.rates[0b111] / 1500.0)
    kinds = [bool(query.result.filters) for query in queries]
    assert 0.9 < sum(kinds) / len(kinds) < 1.0
    assert len({query.hosts for query in queries if len(query.hosts) == 3 and query.result.filters}) == 1


def test_what_nothing_joins_is_not_joined() -> None:
    for query in airline(300, 50, random.Random(2), Width.FIXED):
        assert math.isfinite(query.rates[query.everything])
        names = query.signatures[query.everything].body.split()
        for mask in range(1, query.everything + 1):
            chosen = {name for i, name in enumerate(names[: len(query.hosts)]) if mask >> i & 1}
            no_flights = SOURCES[FLIGHTS].name not in chosen
            mixed = bool(chosen & {SOURCES[CHECKINS].name, SOURCES[BAGGAGE].name}) and bool(
                chosen & {"WEATHER", "SALES"}
            )
            assert query.joinable(mask) == (not (no_flights and mixed))


def test_the_command_reports_all_planners(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "costs.svg"
    words = ["simulate", "planning", "--transit-stub", "64", "--queries", "8", "--replan", "--plot", str(plot)]
    assert main([*words, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["planners"]["optimal"]["above_optimal"] == 0.0
    assert report["planners"]["joint"]["replanned_cost"] <= report["planners"]["joint"]["cumulative_cost"]
    assert report["planners"]["plan-then-place-alone"]["reused"] == 0
    assert report["planners"]["joint"]["plans"] > report["planners"]["top-down"]["plans"] > 0
    assert plot.read_text().count("<polyline") == len(report["planners"])
    assert main(words) == 0
    assert "plan-then-place-alone" in capsys.readouterr().out
    assert _without_times(_run_json(words, capsys)) == _without_times(report)


def test_what_a_node_of_an_overlay_finds_is_nearly_as_good(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "planning", "--view", "overlay", "--coordinates", "embedding", "--planners", "joint"]
    for workload, queries in (("synthetic", 15), ("airline", 30)):
        report = _run_json([*words, "--workload", workload, "--queries", str(queries)], capsys)
        assert report["planners"]["joint"]["above_optimal"] <= 0.03
        assert 0.0 < report["planners"]["joint"]["measured_paths_per_query"] < 40.0


def test_the_width_of_joined_records_matters(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["simulate", "planning", "--workload", "airline", "--queries", "20", "--planners", "joint"]
    fixed, wide = (_run_json([*words, "--width", width], capsys) for width in ("fixed", "sum"))
    assert wide["optimal_cost"] > 1.2 * fixed["optimal_cost"]


def test_search_spaces_stay_below_their_bounds(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    plot = tmp_path / "spaces.svg"
    words = ["simulate", "planning", "--search-space", "--queries", "3", "--plot", str(plot)]
    report = _run_json(words, capsys)
    assert [row["hosts"] for row in report["networks"]] == [68, 132, 264, 528, 1056]
    for row in report["networks"]:
        assert 0.0 < row["top_down"] <= row["bound"] < row["exhaustive"]
        assert 0.0 < row["bottom_up"] <= row["bound"]
    assert plot.read_text().count("<polyline") == 5
    assert main(words) == 0


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--queries", "0"], "at least one"),
        (["--transit-stub", "64", "--rtt", "x.npz"], "give one of them"),
        (["--planners", "guess"], "guess"),
    ],
)
def test_what_cannot_be_simulated_is_refused(words: list[str], told: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        status = main(["simulate", "planning", *words])
    except SystemExit as refusal:
        status = int(refusal.code or 0)
    assert status != 0
    assert told in capsys.readouterr().err


def _run_json(words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def _without_times(report: Any) -> Any:
    for figures in report["planners"].values():
        figures.pop("milliseconds_per_query")
    return {**report, "seconds": 0.0}
