"""Which running joins a query can read, and from where on."""

from __future__ import annotations

import pytest

from sbon.errors import QueryError
from sbon.fragment import FragmentKind, Start
from tests.sbon.sql.reading import offers, plan_reading
from tests.sbon.sql.streams import CATALOG

NEAR = "{0}.origin = {1}.origin AND {0}.ts BETWEEN {1}.ts AND {1}.ts + INTERVAL 59 MINUTES"
JOIN = "flights {0} JOIN weather {1} ON " + NEAR
FIRST = f"SELECT f.ts AS moment, f.origin, f.carrier AS who, w.visib FROM {JOIN.format('f', 'w')} WHERE w.visib < 9"
LATE = {"q1-join1": Start(7, 3_600_000)}


def sql(select: str, first: str = FIRST, starts: dict[str, Start] = LATE) -> list[str] | None:
    plan = plan_reading(select, CATALOG, offers(first, CATALOG)[1], starts)
    return None if plan is None else [spec.sql for spec in plan.fragments if spec.kind is not FragmentKind.SOURCE]


def test_a_join_offers_its_columns_by_names_that_are_the_same_for_all() -> None:
    _, offered = offers(FIRST, CATALOG)
    assert offered.keys() == {"q1-join1"}
    join = offered["q1-join1"]
    assert join.columns == {
        "flights1__ts": "moment",
        "flights1__origin": "origin",
        "flights1__carrier": "who",
        "weather1__visib": "visib",
    }
    assert join.event_time == "flights1__ts"
    assert join.filters == ("weather1__visib < 9",)
    assert join.text.endswith("WHERE weather1__visib < 9")


def test_a_join_puts_out_its_event_time_whether_its_query_wants_it_or_not() -> None:
    fragments, offered = offers(f"SELECT f.origin FROM {JOIN.format('f', 'w')}", CATALOG)
    assert offered["q1-join1"].columns == {"flights1__origin": "origin", "flights1__ts": "f__ts"}
    assert fragments[-1].sql == "SELECT origin FROM in0"


def test_what_is_computed_below_is_offered_as_what_it_is_computed_from() -> None:
    computed = "(SELECT ts, origin, seats + 1 AS more FROM flights)"
    join = JOIN.format("f", "w").replace("flights", computed)
    _, offered = offers(f"SELECT f.ts, f.more FROM {join} WHERE more > 2", CATALOG)
    assert offered["q1-join1"].columns == {"flights1__ts": "ts", "1 + flights1__seats": "more"}
    assert offered["q1-join1"].filters == ("2 < (1 + flights1__seats)",)


def test_a_query_reads_it_whatever_it_calls_things_and_filters_further() -> None:
    other = (
        "SELECT a.carrier, a.ts FROM weather b JOIN flights a ON b.origin = a.origin AND a.ts >= b.ts "
        "AND a.ts <= b.ts + INTERVAL 59 MINUTES WHERE 9 > b.visib AND a.carrier <> 'AA'"
    )
    assert sql(other, FIRST.replace("f.ts BETWEEN w.ts AND", "f.ts >= w.ts AND f.ts <=")) == [
        "SELECT * FROM (SELECT who AS carrier, moment AS ts FROM in0 "
        "WHERE who <> 'AA' AND moment >= TIMESTAMP_MILLIS(3600000)) AS in0"
    ]


@pytest.mark.parametrize(
    "other",
    [
        FIRST.replace("w.visib <", "w.precip <"),
        FIRST.replace("visib < 9", "visib < 10"),
        FIRST.replace("59 MINUTES", "60 MINUTES"),
        FIRST.replace("f.carrier", "f.dest"),
    ],
    ids=["another filter", "a weaker filter", "another time", "a column that is not there"],
)
def test_what_is_not_the_same_or_lacks_something_is_not_read(other: str) -> None:
    assert sql(other) is None


def test_a_window_that_has_begun_before_is_not_put_out() -> None:
    window = f"SELECT window.end AS e, count(*) AS n FROM {JOIN.format('f', 'w')} WHERE w.visib < 9 GROUP BY "
    assert sql(window + "window(f.ts, '1 hour')") == [
        "SELECT window.end AS e, COUNT(*) AS n FROM (SELECT moment AS f__ts FROM in0 "
        "WHERE moment >= TIMESTAMP_MILLIS(3600000)) AS in0 GROUP BY WINDOW(f__ts, '1 hour') "
        "HAVING window.start >= TIMESTAMP_MILLIS(3600000)",
        "SELECT * FROM in0",
    ]
    whole = sql(window + "window(f.ts, '1 hour')", starts={"q1-join1": Start(0, None)})
    assert whole is not None
    assert "TIMESTAMP_MILLIS" not in whole[0]
    # Its event time is the flights': in windows of the weather's nobody could say when they are complete.
    with pytest.raises(QueryError, match="not the event time of its input"):
        sql(
            window.replace("f.ts AS", "w.ts AS") + "window(w.ts, '1 hour')",
            FIRST.replace("w.visib", "w.ts AS t, w.visib", 1),
        )


def test_windows_of_windows_begin_where_the_lower_ones_are_whole() -> None:
    hours = f"SELECT window.end AS e, count(*) AS n FROM {JOIN.format('f', 'w')} WHERE w.visib < 9 GROUP BY "
    days = f"SELECT window.start AS s, max(n) AS n FROM ({hours} window(f.ts, '1 hour')) GROUP BY window(e, '6 hours')"
    cut = sql(days)
    assert cut is not None
    assert cut[0].endswith("HAVING window.start >= TIMESTAMP_MILLIS(3600000)")
    assert cut[1].endswith("HAVING window.start >= TIMESTAMP_MILLIS(7200000)")


def test_other_streams_are_joined_to_it() -> None:
    three = (
        f"SELECT f.ts, w.visib, b.weight FROM {JOIN.format('f', 'w')} JOIN bags b ON b.airport = f.origin "
        "AND b.seen_at BETWEEN f.ts - INTERVAL 10 MINUTES AND f.ts WHERE w.visib < 9"
    )
    cut = sql(three)
    assert cut is not None
    join = cut[0]
    assert "FROM (SELECT moment AS f__ts, visib AS w__visib, origin AS f__origin FROM in0" in join.replace(
        "moment AS f__ts, origin AS f__origin, visib AS w__visib",
        "moment AS f__ts, visib AS w__visib, origin AS f__origin",
    )
    assert join.count("TIMESTAMP_MILLIS(3600000)") == 1
    assert "INNER JOIN in1 ON" in join
