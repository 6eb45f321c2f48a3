"""Twelve daemons on twelve hosts, as far apart as twelve cloud regions are (tests/data/README.md)."""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Iterator
from itertools import combinations

import numpy as np
import pytest

from daemon.control.messages import Operators, OperatorsReply, Submit, SubmitReply
from sbon.network_usage import Link, network_usage
from sbon.placement.optimum import Truth, optimum
from sbon.placement.problem import PlacementProblem
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.streams import SinkSpec, StreamSpec
from tests.lab.daemons import WideArea, running, see
from tests.lab.lab import Lab, why_impossible
from tests.lab.simulated import median_errors
from tests.truth import cloud_region_names, cloud_regions

pytestmark = pytest.mark.skipif(why_impossible() is not None, reason=f"no wide-area lab here: {why_impossible()}")

#: Ten probes a second in place of one: half a minute does for five.
OVERLAY = {"probe_interval_s": 0.1}
SETTLE_S = 30.0
#: The lab may be worse than the simulator by this factor. An overlay of twelve is one draw of many (a site that settles
#: on the wrong side of the others stays there for long), so it is compared with the worst of many: of 80 simulated ones
#: three are worse than 1.3 times the worst of the first eight. That the means agree is shown by
#: tests/benchmarks/lab_error.py, which takes longer.
AGREEMENT = 1.3
SIMULATED_SEEDS = range(1, 33)
#: How soon deaths are found and hosts are back is shown in the simulator; here it is enough that they are.
PATIENCE_S = 90.0
#: Network usage of a query placed by the daemons, over the least possible on the matrix behind them.
NEAR_OPTIMUM = 1.05

RTT_MS = cloud_regions()
NAMES = cloud_region_names()

#: A query over two streams far apart, towards a sink elsewhere again.
LEFT, RIGHT, SINK = NAMES[0], NAMES[4], NAMES[9]
STREAMS = {
    LEFT: StreamSpec("lefts", "rate", "ts TIMESTAMP, k STRING, v INT", "ts", rate_bytes_per_s=20_000.0),
    RIGHT: StreamSpec("rights", "rate", "ts TIMESTAMP, k STRING, v INT", "ts", rate_bytes_per_s=5_000.0),
}
SINKS = {SINK: SinkSpec("out", "parquet", {"path": "out"})}
SQL = """
    INSERT INTO out
    SELECT window(l.ts, '1 minute').start AS at, l.k, count(*) AS n
    FROM lefts l JOIN rights r ON l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL 1 MINUTE AND l.ts
    GROUP BY window(l.ts, '1 minute'), l.k
"""


@pytest.fixture(scope="module")
def area(tmp_path_factory: pytest.TempPathFactory) -> Iterator[WideArea]:
    """All have found each other, and their places: whichever test comes first."""
    folder = tmp_path_factory.mktemp("area")
    declared = {name: (spec,) for name, spec in (STREAMS | SINKS).items()}
    with Lab(RTT_MS, seed=1) as lab, running(lab, NAMES, RTT_MS, folder, OVERLAY, declared) as area:
        started_s = time.monotonic()
        area.until(lambda: see(area.nodes, set(NAMES)), PATIENCE_S)
        time.sleep(max(0.0, started_s + SETTLE_S - time.monotonic()))
        yield area


def test_all_find_each_other_and_predict_round_trips_as_in_the_simulator(area: WideArea) -> None:
    measured_ms = area.measured_ms()
    paths = list(combinations(range(len(NAMES)), 2))
    assert all(measured_ms[i][j] >= RTT_MS[i][j] for i, j in paths)
    # A busy machine adds to every path: coordinates are to be those of the paths as they are.
    errors = area.relative_errors(measured_ms)
    assert len(errors) == len(paths)
    simulated = median_errors(OVERLAY, SETTLE_S, SIMULATED_SEEDS)
    assert statistics.median(errors) <= AGREEMENT * max(simulated)


def test_the_command_line_tells_the_measured_round_trip(area: WideArea) -> None:
    """A direct measurement is never less than the path's, and not taken for that of the next longer path."""
    told = json.loads(area.nodes[0].sbon("latency", NAMES[0], NAMES[3], "--json"))
    assert RTT_MS[0][3] <= told["measured_rtt_ms"] < min(rtt_ms for rtt_ms in RTT_MS[0] if rtt_ms > RTT_MS[0][3])


def test_a_query_is_placed_near_the_optimum_of_the_real_matrix(area: WideArea) -> None:
    """A join and an aggregate, placed by the overlay's searches and measurements; the engines under them are fakes."""
    query_id = area.nodes[1].ask(Submit(SQL), SubmitReply).query_id
    operators = area.nodes[NAMES.index(SINK)].ask(Operators(), OperatorsReply).operators
    placed = {operator.fragment_id: operator.node for operator in operators}
    streams = {spec.name: (spec, name) for name, spec in STREAMS.items()}
    sinks = {spec.name: (spec, name) for name, spec in SINKS.items()}
    plan = plan_query(SQL, query_id, Catalog(streams, sinks))
    problem = PlacementProblem(tuple(Link(*link) for link in plan.links), plan.owners)
    best = optimum(problem, Truth.of(NAMES, np.array(RTT_MS)))
    usage = network_usage(problem.links, placed, lambda a, b: RTT_MS[NAMES.index(a)][NAMES.index(b)])
    assert len(problem.unpinned) == 2
    assert usage <= NEAR_OPTIMUM * best.cost


def test_a_host_that_is_cut_off_is_found_and_healed_is_back(area: WideArea) -> None:
    lonely = area.nodes[5]
    others = area.others(lonely)
    area.lab.isolate(lonely.host)
    try:
        area.until(lambda: all(lonely.name not in node.nodes() for node in others), PATIENCE_S)
        assert see(others, {node.name for node in others})
        area.until(lambda: set(lonely.nodes()) == {lonely.name}, PATIENCE_S)
    finally:
        area.lab.reconnect(lonely.host)
    area.until(lambda: see(area.nodes, set(NAMES)), PATIENCE_S)
