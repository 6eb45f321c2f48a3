"""Aggregates, unions and joins of these that a query can read of others, and what reads others itself."""

from __future__ import annotations

import pytest

from sbon.fragment import Computes, FragmentKind, Start
from sbon.sql.query_plan import QueryPlan
from tests.sbon.sql.reading import offers, plan_viewing
from tests.sbon.sql.streams import CATALOG

NEAR = "f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES"
JOINED = f"FROM flights f JOIN weather w ON {NEAR}"
HOURLY = (
    "SELECT window.end AS e, origin, count(*) AS n, avg(dep_delay) AS mean "
    "FROM flights WHERE seats > 5 GROUP BY window(ts, '1 hour'), origin"
)
UNITED = (
    "SELECT ts, place, what FROM (SELECT ts, origin AS place, 'f' AS what FROM flights WHERE seats > 5 "
    "UNION ALL SELECT ts, origin, 'w' FROM weather)"
)
FROM_BEGINNING: dict[str, Start] = {}


def read(select: str, first: str, starts: dict[str, Start] | None = None) -> list[str] | None:
    """The SQL of all but sources of a query that reads the largest part of another one that it can."""
    plan = plan_viewing(select, CATALOG, offers(first, CATALOG)[1], starts or FROM_BEGINNING)
    return None if plan is None else texts(plan)


def texts(plan: QueryPlan) -> list[str]:
    return [spec.sql for spec in plan.fragments if spec.kind is not FragmentKind.SOURCE]


def test_an_aggregate_is_read_whatever_it_is_called_and_filtered_by_its_keys() -> None:
    other = (
        "SELECT x.origin AS place, avg(x.dep_delay) AS late, window.end AS until FROM flights x "
        "WHERE 5 < x.seats AND x.origin IN ('JFK', 'EWR') GROUP BY x.origin, window(x.ts, '60 minutes')"
    )
    assert read(other, HOURLY) == [
        "SELECT * FROM (SELECT origin AS place, mean AS late, e AS until FROM in0 "
        "WHERE origin IN ('JFK', 'EWR')) AS in0"
    ]
    # What is left out there is left out for good, and what is not there cannot be made.
    assert read(HOURLY, HOURLY.replace("seats > 5", "seats > 5 AND origin <> 'LGA'")) is None
    assert read(other.replace("avg(x.dep_delay)", "max(x.dep_delay)"), HOURLY) is None


@pytest.mark.parametrize(
    ("there", "here"),
    [("seats > 5", "seats > 6"), ("1 hour", "2 hours"), ("1 hour'", "1 hour', '30 minutes'"), ("), origin", ")")],
    ids=["a filter below", "a length", "a slide", "other keys"],
)
def test_what_is_another_aggregate_is_not_read(there: str, here: str) -> None:
    assert (
        read(HOURLY.replace(there, here).replace("origin, count", "count" if here == ")" else "origin, count"), HOURLY)
        is None
    )


def test_having_is_a_filter_on_the_result() -> None:
    busy = HOURLY + " HAVING 3 < count(1)"
    assert read(busy, HOURLY) == ["SELECT * FROM (SELECT e, origin, n, mean FROM in0 WHERE 3 < n) AS in0"]
    assert read(HOURLY, busy) is None
    assert read(busy, HOURLY + " HAVING n > 3") is not None


def test_what_stands_on_an_aggregate_reads_whole_windows() -> None:
    days = f"SELECT window.end AS d, max(n) AS most FROM ({HOURLY}) GROUP BY window(e, '1 day')"
    assert read(days, HOURLY, {"q1-aggregate1": Start(3, 3_600_000)}) == [
        "SELECT window.end AS d, MAX(aggregate__n) AS most FROM (SELECT e AS window__end, n AS aggregate__n FROM in0 "
        "WHERE e >= TIMESTAMP_MILLIS(3600000)) AS in0 GROUP BY WINDOW(window__end, '1 day') "
        "HAVING window.start >= TIMESTAMP_MILLIS(3600000)",
        "SELECT * FROM in0",
    ]


def test_a_union_is_read_in_whatever_order_its_parts_are() -> None:
    other = (
        "SELECT at, upper(p) AS p FROM (SELECT w.ts AS at, w.origin AS p, 'w' AS k FROM weather w "
        "UNION ALL SELECT f.ts, f.origin, 'f' FROM flights f WHERE f.seats > 5) WHERE k <> 'f'"
    )
    found = read(other, UNITED)
    assert found == ["SELECT * FROM (SELECT ts AS at, UPPER(place) AS p FROM in0 WHERE what <> 'f') AS in0"]
    everywhere = other.replace("k <> 'f'", "p <> 'JFK'")  # it is applied in each part
    assert read(everywhere, UNITED) == [
        "SELECT * FROM (SELECT ts AS at, UPPER(place) AS p FROM in0 WHERE place <> 'JFK') AS in0"
    ]
    assert read(UNITED, UNITED.replace("seats > 5", "seats > 5 AND origin <> 'JFK'")) is None
    assert read(other.replace("f.seats > 5", "f.seats > 4"), UNITED) is None
    assert read(other.replace("w.origin AS p", "w.visib AS p"), UNITED) is None


def test_parts_of_a_union_that_look_alike_are_not_mixed_up() -> None:
    twice = "SELECT ts, a, b FROM (SELECT ts, {} AS a, {} AS b FROM flights UNION ALL SELECT ts, {}, {} FROM flights)"
    first = twice.format("origin", "dest", "dest", "origin")
    assert read(first, first) is not None
    assert read(twice.format("origin", "dest", "origin", "dest"), first) is None


def test_a_join_of_an_aggregate_is_read_and_so_is_its_part() -> None:
    hourly = "SELECT window.start AS s, origin, count(*) AS n FROM flights GROUP BY window(ts, '1 hour'), origin"
    joined = (
        "SELECT f.ts, f.dest, h.n FROM flights f JOIN ({}) h "
        "ON f.origin = h.origin AND f.ts >= h.s AND f.ts < h.s + INTERVAL 1 HOUR WHERE h.n > 2"
    )
    whole = joined.format(hourly)
    _, offered = offers(whole, CATALOG)
    assert offered.keys() == {"q1-aggregate1", "q1-join1"}
    assert read(whole.replace("h.n > 2", "2 < h.n"), whole) == ["SELECT * FROM (SELECT ts, dest, n FROM in0) AS in0"]
    part = read(joined.format(hourly).replace("f.dest", "f.carrier"), whole)
    assert part is not None
    assert "JOIN (SELECT" in part[0]


def test_computed_columns_are_read_or_computed_of_what_is_there() -> None:
    first = f"SELECT f.ts, f.dep_delay / 60 AS hours, w.visib {JOINED}"
    assert read(f"SELECT f.ts AS at, dep_delay / 60 AS late {JOINED}", first) == [
        "SELECT * FROM (SELECT ts AS at, hours AS late FROM in0) AS in0"
    ]
    assert read(f"SELECT f.ts AS at, w.visib + 1 AS more {JOINED}", first) == [
        "SELECT * FROM (SELECT ts AS at, visib + 1 AS more FROM in0) AS in0"
    ]
    assert read(f"SELECT f.ts AS at, dep_delay / 30 AS late {JOINED}", first) is None


def test_what_reads_others_is_offered_as_what_it_is_with_the_time_from_which_it_is_whole() -> None:
    join = f"SELECT f.ts, f.origin, w.visib {JOINED}"
    hourly = f"SELECT window.end AS e, f.origin, count(*) AS n {JOINED} GROUP BY window(f.ts, '1 hour'), f.origin"
    _, joins = offers(join, CATALOG)
    second = plan_viewing(hourly, CATALOG, joins, {"q1-join1": Start(5, 5_400_000)})
    assert second is not None
    [chained] = [spec.computes for spec in second.fragments if spec.computes is not None]
    [anew] = [spec for fragment, spec in offers(hourly, CATALOG)[1].items() if "aggregate" in fragment]
    # Windows that begin at or after half past one: they end an hour later.
    assert chained == Computes(anew.body, anew.filters, anew.columns, anew.event_time, anew.streams, 9_000_000)
    third = plan_viewing(hourly, CATALOG, {"q2-aggregate1": chained}, {"q2-aggregate1": Start(0, 9_000_000)}, "q3")
    assert third is not None
    assert texts(third) == ["SELECT * FROM (SELECT e, origin, n FROM in0 WHERE e >= TIMESTAMP_MILLIS(9000000)) AS in0"]
    assert third.fragments[0].ports[0].producers == ("q2-aggregate1",)
