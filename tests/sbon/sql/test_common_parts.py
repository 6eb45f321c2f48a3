"""What a query has several times is computed once."""

from __future__ import annotations

import pytest

from sbon.fragment import FragmentSpec
from sbon.sql.plan import plan_query
from tests.sbon.sql.streams import CATALOG

HOURLY = (
    "SELECT window.end AS e, origin, count(*) AS n, sum(seats) AS seats FROM flights "
    "GROUP BY window(ts, '1 hour'), origin"
)
NEAR = "f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES"
JOINED = f"SELECT f.ts, f.origin, f.dest, w.visib FROM flights f JOIN weather w ON {NEAR}"


def fragments(sql: str) -> dict[str, FragmentSpec]:
    found = plan_query(f"INSERT INTO result {sql}", "q", CATALOG).fragments
    return {spec.fragment_id.removeprefix("q-"): spec for spec in found}


def test_a_with_that_is_used_twice_is_computed_once_with_the_columns_of_both_uses() -> None:
    found = fragments(
        f"WITH h AS ({HOURLY}) SELECT a.e, a.n, b.seats FROM h a JOIN h b ON a.e = b.e AND a.origin = b.origin"
        " WHERE a.n > 7"
    )
    assert list(found) == ["source1", "aggregate1", "join1", "sink1"]
    assert [port.producers for port in found["join1"].ports] == [("q-aggregate1",)] * 2
    assert "COUNT(*)" in found["aggregate1"].sql
    assert "SUM(" in found["aggregate1"].sql
    assert "> 7" in found["join1"].sql, "a use that keeps less filters by itself"


def test_links_of_one_consumer_to_one_producer_are_one() -> None:
    sql = f"INSERT INTO result WITH j AS ({JOINED}) SELECT ts, origin AS x FROM j UNION ALL SELECT ts, dest FROM j"
    plan = plan_query(sql, "q", CATALOG)
    once = plan_query(f"INSERT INTO result {JOINED}", "q", CATALOG)
    (rate,) = (rate for producer, consumer, rate in plan.links if (producer, consumer) == ("q-join1", "q-union1"))
    (of_one,) = (rate for producer, _, rate in once.links if producer == "q-join1")
    assert rate > of_one


def test_what_contains_a_part_that_occurs_elsewhere_reads_it_and_may_itself_be_read_twice() -> None:
    daily = "SELECT window.end AS e, max(n) AS most FROM h GROUP BY window(e, '1 day')"
    found = fragments(
        f"WITH h AS ({HOURLY}), d AS ({daily}) SELECT h.e, h.seats FROM h JOIN d ON h.n = d.most AND h.e = d.e "
        "UNION ALL SELECT e, most FROM d"
    )
    assert list(found) == ["source1", "aggregate1", "aggregate2", "join1", "union1", "sink1"]
    assert [port.producers[0] for port in found["join1"].ports] == ["q-aggregate1", "q-aggregate2"]
    assert [port.producers[0] for port in found["union1"].ports] == ["q-join1", "q-aggregate2"]


@pytest.mark.parametrize(
    ("here", "there"),
    [(HOURLY, HOURLY.replace("1 hour", "2 hours")), (HOURLY, HOURLY.replace("flights", "flights WHERE seats > 5"))],
    ids=["another window", "another filter below"],
)
def test_what_differs_is_computed_for_each(here: str, there: str) -> None:
    found = fragments(f"SELECT e, n FROM ({here}) UNION ALL SELECT e, n FROM ({there})")
    assert [name for name in found if name.startswith("aggregate")] == ["aggregate1", "aggregate2"]


def test_uses_that_need_different_event_times_compute_it_for_themselves() -> None:
    hourly = HOURLY.replace("window.end AS e", "window.end AS e, window.start AS s")
    found = fragments(
        f"WITH h AS ({hourly}) SELECT window.end AS u, max(n) AS m FROM h GROUP BY window(e, '1 day') "
        "UNION ALL SELECT window.end, max(n) FROM h GROUP BY window(s, '1 day')"
    )
    assert sum(name.startswith("aggregate") for name in found) == 4
