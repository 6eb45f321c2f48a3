"""Several INSERT statements in one text: one plan, in which what one has already is not computed again."""

from __future__ import annotations

from sbon.fragment import FragmentSpec
from sbon.sql.plan import plan_query
from sbon.sql.query_plan import QueryPlan
from tests.sbon.sql.streams import CATALOG

NEAR = "f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES"
JOIN = f"FROM flights f JOIN weather w ON {NEAR} WHERE w.visib < 5"
HOURLY = f"SELECT window.end AS e, f.origin, count(*) AS n {JOIN} GROUP BY window(f.ts, '1 hour'), f.origin"


def plan(first: str, second: str) -> QueryPlan:
    return plan_query(f"INSERT INTO result {first}; INSERT INTO alerts {second};", "q", CATALOG)


def by_id(found: QueryPlan) -> dict[str, FragmentSpec]:
    return {spec.fragment_id.removeprefix("q-"): spec for spec in found.fragments}


def test_a_join_is_shared() -> None:
    found = plan(HOURLY, f"SELECT f.ts, f.origin AS at {JOIN} AND f.origin <> 'JFK'")
    fragments = by_id(found)
    assert list(fragments) == ["source1", "source2", "join1", "aggregate1", "sink1", "sink2"]
    assert fragments["sink2"].sql == (
        "SELECT * FROM (SELECT f__ts AS ts, f__origin AS at FROM in0 WHERE f__origin <> 'JFK') AS in0"
    )
    assert fragments["sink2"].ports[0].producers == ("q-join1",)
    assert [spec.sink.name for spec in fragments.values() if spec.sink is not None] == ["result", "alerts"]
    assert found.owners["q-sink1"] == "node-of-result"
    assert found.owners["q-sink2"] == "node-of-alerts"
    assert {consumer for producer, consumer, _ in found.links if producer == "q-join1"} == {"q-aggregate1", "q-sink2"}


def test_results_and_streams_are_shared() -> None:
    of_result = by_id(plan(HOURLY, HOURLY + " HAVING n > 7"))
    assert list(of_result) == ["source1", "source2", "join1", "aggregate1", "sink1", "sink2"]
    assert of_result["sink2"].ports[0].producers == ("q-aggregate1",)
    of_stream = by_id(plan("SELECT * FROM flights", "SELECT carrier AS c FROM flights WHERE seats > 5"))
    assert list(of_stream) == ["source1", "sink1", "sink2"]
    assert of_stream["sink2"].sql == "SELECT * FROM (SELECT carrier AS c FROM in0 WHERE seats > 5) AS in0"


def test_what_differs_is_computed_for_each() -> None:
    fragments = by_id(plan(HOURLY, HOURLY.replace("visib < 5", "visib < 6")))
    assert [name for name in fragments if name.startswith(("join", "aggregate"))] == [
        "join1",
        "aggregate1",
        "join2",
        "aggregate2",
    ]
    # The stream that both read with the same columns is read once.
    assert fragments["join2"].ports[0].producers == fragments["join1"].ports[0].producers == ("q-source1",)
    assert fragments["join2"].ports[1].producers != fragments["join1"].ports[1].producers
