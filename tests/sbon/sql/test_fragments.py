"""What a query is cut into, as pairs of text; and what holds for every plan."""

from __future__ import annotations

import msgspec
import pytest

from sbon.errors import QueryError
from sbon.fragment import FragmentKind
from sbon.sql.catalog import Catalog
from sbon.sql.dialect import parse_columns
from sbon.sql.plan import plan_query
from sbon.sql.query_plan import QueryPlan
from sbon.streams import StreamSpec
from tests.sbon.sql.fixtures import blocks
from tests.sbon.sql.streams import CATALOG

CASES = blocks("fragments.txt")
DEMO = """
    INSERT INTO result
    SELECT window.start AS window_start, window.end AS window_end, {o}origin, count(*) AS departures,
           avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
    FROM {source}
    GROUP BY window({o}ts, '3 hours'), {o}origin"""
BAD_WEATHER = """
    flights f JOIN weather w ON f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES
    WHERE w.visib < 5 OR w.wind_speed > 15 OR w.precip > 0"""


@pytest.mark.parametrize("case", CASES, ids=[title for title, *_ in CASES])
def test_fragments(case: list[str]) -> None:
    _, query, *expected = case
    plan = plan_query(f"INSERT INTO result {query}", "q", CATALOG)
    found = [
        f"{spec.fragment_id.removeprefix('q-')} | {spec.event_time} | {spec.watermark_lag_ms} | {spec.sql}"
        for spec in plan.fragments
    ]
    assert found == expected


@pytest.mark.parametrize("case", CASES, ids=[title for title, *_ in CASES])
def test_every_plan_is_a_sound_dag(case: list[str]) -> None:
    plan = plan_query(f"INSERT INTO result {case[1]}", "q", CATALOG)
    seen: set[str] = set()
    for spec in plan.fragments:
        assert spec.query_id == "q"
        assert {producer for port in spec.ports for producer in port.producers} <= seen, "producers come first"
        assert [port.name for port in spec.ports] == [f"in{number}" for number in range(len(spec.ports))]
        assert spec.stateful == (spec.kind in (FragmentKind.JOIN, FragmentKind.AGGREGATE))
        assert (spec.stream is not None) == (spec.kind == FragmentKind.SOURCE)
        assert (spec.sink is not None) == (spec.kind == FragmentKind.SINK)
        assert spec.watermark_lag_ms >= 0
        assert (spec.watermark_steps is not None) == (spec.kind == FragmentKind.AGGREGATE)
        assert spec.selectivity > 0
        seen.add(spec.fragment_id)
    assert plan.fragments[-1].kind == FragmentKind.SINK
    assert set(plan.owners) == {spec.fragment_id for spec in plan.fragments if spec.pinned}
    assert {producer for producer, _, _ in plan.links} == seen - {plan.fragments[-1].fragment_id}
    assert all(rate > 0 for _, _, rate in plan.links)


def test_the_demo_is_the_same_plan_with_and_without_its_subquery() -> None:
    inner = f"(SELECT f.ts AS ts, f.origin AS origin, f.dep_delay AS dep_delay FROM {BAD_WEATHER})"
    nested = plan_query(DEMO.format(o="", source=inner), "q", CATALOG)
    flat = plan_query(DEMO.format(o="f.", source=BAD_WEATHER), "q", CATALOG)
    assert [spec.sql for spec in nested.fragments] == [spec.sql for spec in flat.fragments] == [
        "SELECT ts AS f__ts, origin AS f__origin, dep_delay AS f__dep_delay FROM source",
        "SELECT ts AS w__ts, origin AS w__origin FROM source WHERE visib < 5 OR wind_speed > 15 OR precip > 0",
        "SELECT f__ts, f__origin, f__dep_delay FROM in0 INNER JOIN in1 "
        "ON f__origin = w__origin AND f__ts BETWEEN w__ts AND w__ts + INTERVAL '59' MINUTES",
        "SELECT window.start AS window_start, window.end AS window_end, f__origin AS origin, COUNT(*) AS departures, "
        "AVG(f__dep_delay) AS mean_delay, MAX(f__dep_delay) AS worst_delay "
        "FROM in0 GROUP BY WINDOW(f__ts, '3 hours'), f__origin",
        "SELECT * FROM in0",
    ]  # fmt: skip
    assert [spec.event_time for spec in flat.fragments] == ["f__ts", "w__ts", "f__ts", "window_end", "window_end"]
    assert flat.owners == {
        "q-source1": "node-of-flights",
        "q-source2": "node-of-weather",
        "q-sink1": "node-of-result",
    }
    rates = {(producer, consumer): rate for producer, consumer, rate in flat.links}
    assert rates["q-aggregate1", "q-sink1"] < rates["q-join1", "q-aggregate1"] < rates["q-source1", "q-join1"]


def test_planning_is_reproducible_and_plans_can_be_stored() -> None:
    text = DEMO.format(o="f.", source=BAD_WEATHER)
    plan = plan_query(text, "q", CATALOG)
    assert plan == plan_query(text, "q", CATALOG)
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(plan), type=QueryPlan) == plan


def test_names_of_intermediate_columns_never_clash() -> None:
    query = "SELECT a.ts FROM flights a JOIN flights A__ ON a.origin = A__.origin AND a.ts = A__.ts"
    sources = plan_query(f"INSERT INTO result {query}", "q", CATALOG).fragments[:2]
    names = [part.split(" AS ")[1].split(" ")[0].lower() for spec in sources for part in spec.sql.split(", ")]
    assert len(set(names)) == len(names) == 4


@pytest.mark.parametrize(
    ("ddl", "columns"),
    [
        ("ts TIMESTAMP, origin STRING", {"ts": "TIMESTAMP", "origin": "STRING"}),
        ("`a b` INT NOT NULL COMMENT 'x', d DECIMAL(5, 2)", {"a b": "INT", "d": "DECIMAL(5, 2)"}),
        ("s STRUCT<a: INT, b: ARRAY<STRING>>, m MAP<STRING, INT>", None),
    ],
)
def test_declared_schemas(ddl: str, columns: dict[str, str] | None) -> None:
    found = parse_columns(ddl)
    assert found == columns if columns is not None else list(found) == ["s", "m"]


@pytest.mark.parametrize("ddl", ["", "ts", "a: INT", "ts TIMESTAMP) AS SELECT (1"])
def test_schemas_that_are_none(ddl: str) -> None:
    with pytest.raises(QueryError, match="write it as"):
        parse_columns(ddl)


def test_a_stream_whose_event_time_is_not_in_its_schema() -> None:
    spec = StreamSpec(name="s", format="replay", schema="a INT", event_time="ts")
    with pytest.raises(QueryError, match="its event_time 'ts' is not in its schema; correct it"):
        plan_query("INSERT INTO result SELECT a FROM s", "q", Catalog({"s": (spec, "n")}, CATALOG.sinks))
