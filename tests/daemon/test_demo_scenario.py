"""The demo's five sites are such that there is something to see: clear best hosts, before and after the change."""

from __future__ import annotations

import csv
import gzip
from itertools import product
from pathlib import Path

import pytest

from daemon.demo.scenario import (
    DATA,
    DEFAULT_SPEEDUP,
    FLIGHTS_SCHEMA,
    MONTH_S,
    QUERY,
    SLOW_RTT_MS,
    WEATHER_SCHEMA,
    Scenario,
    free_ports,
    make_scenario,
)
from daemon.demo.usage import MeanRates, TrueNetwork, usage_bytes
from sbon.network_usage import Link
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.sql.query_plan import QueryPlan


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    return make_scenario(tmp_path / "scratch", tmp_path / "out", DEFAULT_SPEEDUP)


@pytest.fixture
def plan(scenario: Scenario) -> QueryPlan:
    catalog = Catalog(
        streams={stream.name: (stream, site.name) for site in scenario.sites for stream in site.streams},
        sinks={sink.name: (sink, site.name) for site in scenario.sites for sink in site.sinks},
    )
    return plan_query(QUERY, "q1", catalog)


def ranking(plan: QueryPlan, network: TrueNetwork) -> list[tuple[float, tuple[str, ...]]]:
    """All placements of the unpinned fragments with their network usage at the estimated rates, best first."""
    links = [Link(*link) for link in plan.links]
    free = [spec.fragment_id for spec in plan.fragments if not spec.pinned]
    hosts = [site.name for site in network.scenario.sites if site.accepts_operators]
    placements = [dict(zip(free, chosen, strict=True)) for chosen in product(hosts, repeat=len(free))]
    usages = [usage_bytes(links, plan.owners, network, moved=placement) for placement in placements]
    return sorted((usage, tuple(placement.values())) for usage, placement in zip(usages, placements, strict=True))


def test_washington_is_best_and_the_consumer_clearly_worse(scenario: Scenario, plan: QueryPlan) -> None:
    ranked = ranking(plan, TrueNetwork(scenario))
    best, where = ranked[0]
    usage_of = {placement: usage for usage, placement in ranked}
    assert where == ("washington", "washington")
    assert usage_of["london", "london"] > 3 * best
    assert usage_of["chicago", "chicago"] > 1.5 * best


def test_chicago_is_best_once_the_path_to_washington_is_slow(scenario: Scenario, plan: QueryPlan) -> None:
    network = TrueNetwork(scenario)
    network.slow_down("new-york", "washington", SLOW_RTT_MS)
    ranked = ranking(plan, network)
    usage_of = {placement: usage for usage, placement in ranked}
    assert ranked[0][1] == ("chicago", "chicago")
    assert usage_of["washington", "washington"] > 5 * ranked[0][0]
    assert usage_of["london", "london"] > 1.5 * ranked[0][0]


@pytest.mark.parametrize(
    ("name", "schema", "rows"), [("flights", FLIGHTS_SCHEMA, 29_425), ("weather", WEATHER_SCHEMA, 2_228)]
)
def test_the_data_is_whole_ordered_and_as_declared(name: str, schema: str, rows: int) -> None:
    with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
        read = list(csv.DictReader(file))
    assert len(read) == rows
    assert list(read[0]) == [column.split()[0] for column in schema.split(", ")]
    times = [row["ts"] for row in read]
    assert times == sorted(times)
    assert times[0] >= "2013-07-01T04:00:00Z"
    assert times[-1] < "2013-08-01T04:00:00Z"


def test_the_month_takes_a_minute_and_a_half() -> None:
    assert 80 < MONTH_S / DEFAULT_SPEEDUP < 100


def test_free_ports_differ() -> None:
    ports = free_ports(20)
    assert len(set(ports)) == 20


def test_mean_rates_leave_out_silence() -> None:
    rates = MeanRates()
    for rate in (100.0, 0.0, 300.0):
        rates.add([Link("a", "b", rate)])
    assert rates.links() == (Link("a", "b", 200.0),)
