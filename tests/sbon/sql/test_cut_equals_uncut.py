"""The same SELECT on real Spark, whole and cut into fragments, gives the same rows.

No streaming here: fragments run in order as batch queries over views of what their producers gave.
"""

from __future__ import annotations

import datetime
import math
import random
from collections.abc import Iterator, Sequence

import pytest
from pyspark.errors import AnalysisException
from pyspark.sql import DataFrame, Row, SparkSession

from sbon.fragment import FragmentKind, FragmentSpec, Start
from sbon.sql.join_graph import Order
from sbon.sql.plan import prepare_query
from sbon.sql.reorder import Choose, as_written
from spark_bridge.session import start_session
from tests.sbon.sql import paper_examples, types_cases
from tests.sbon.sql.reading import offers, plan_reading, plan_viewing
from tests.sbon.sql.streams import CATALOG, SCHEMAS

pytestmark = pytest.mark.spark

NEAR = "f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES"
BAD_WEATHER = "w.visib < 5 OR w.wind_speed > 15 OR w.precip > 0"

QUERIES = {
    "filter": """
        SELECT origin, dep_delay FROM flights WHERE dep_delay > 15 AND carrier IN ('AA', 'DL') AND dest LIKE 'L%'""",
    "expressions": """
        SELECT upper(f.carrier) AS who, dep_delay / 60 AS hours,
               CASE WHEN dep_delay > 0 THEN 'late' ELSE 'ok' END AS how,
               date_trunc('hour', ts) AS h, coalesce(dep_delay, -1) AS d, CAST(dep_delay AS INT) AS i, seats DIV 7 AS s,
               seats % 7 = 1 OR dest <=> NULL AS odd, hour(ts) AS hh, ts + INTERVAL 90 MINUTES AS later,
               -seats AS m, NOT seats > 100 AS small, substring(dest, 1, 2) AS du, dest || '-' || origin AS pair,
               round(dep_delay, 1) AS r, extract(MINUTE FROM ts) AS mi, date_format(ts, 'yyyy-MM') AS ym,
               timestampdiff(MINUTE, TIMESTAMP '2013-07-01', ts) AS since, dest RLIKE '^[A-L]' AS re,
               concat_ws('/', dest, carrier) AS cc
        FROM flights f WHERE NOT (dep_delay IS NULL) AND hour(ts) BETWEEN 6 AND 20""",
    "star": "SELECT * FROM STREAM flights WHERE seats IS NOT NULL",
    "stars of a join": f"SELECT w.*, f.seats FROM flights f JOIN weather w ON {NEAR}",
    "nested stateless": """
        SELECT twice + 1 AS odd, o FROM (SELECT 2 * seats AS twice, origin AS o, ts FROM flights WHERE seats > 10)
        WHERE twice < 300 AND o <> 'JFK'""",
    "structs": "SELECT owner.name, b.owner.`group` AS g, `bag no`, owner FROM bags b WHERE owner.`group` = 1",
    "no event time": "SELECT origin FROM flights",
    "case of names": "SELECT ORIGIN, F.Dest FROM Flights f WHERE CARRIER = 'AA'",
    "union": """
        SELECT ts, origin AS place FROM flights WHERE seats > 100 UNION ALL SELECT ts, origin FROM weather
        UNION ALL (SELECT seen_at, airport FROM bags)""",
    "union that widens": """
        SELECT CAST(n AS STRING) AS n, ts FROM (
          SELECT seats AS n, ts FROM flights UNION ALL SELECT visib, ts FROM weather) WHERE CAST(n AS STRING) <> '7'""",
    "union and filter": """
        SELECT place FROM (SELECT ts, origin AS place FROM flights UNION ALL SELECT ts, origin FROM weather)
        WHERE place <> 'LGA' AND hour(ts) < 12""",
    "window": """
        SELECT window.start AS s, window.end AS e, origin, count(*) AS n, avg(dep_delay) AS mean,
               max(dep_delay) AS worst, sum(seats) AS seats, min(ts) AS first_ts, stddev(dep_delay) AS sd,
               count_if(dep_delay > 15) AS late,
               count(*) FILTER (WHERE carrier = 'AA') AS american, approx_count_distinct(dest) AS dests
        FROM flights GROUP BY window(ts, '3 hours'), origin""",
    "sliding window": """
        SELECT window, count(dep_delay) AS n FROM flights
        WHERE origin = 'JFK' GROUP BY window(ts, '1 hour', '30 minutes')""",
    "window with an offset": """
        SELECT window(ts, '1 hour', '1 hour', '15 minutes').start AS s, count(*) AS n FROM flights
        GROUP BY window(ts, '1 hour', '1 hour', '15 minutes')""",
    "having": """
        SELECT window.end, upper(origin) AS o, count(*) AS n, max(seats) AS seats FROM flights
        GROUP BY window(ts, '2 hours'), o HAVING n > 2 AND max(seats) > 100 AND sum(dep_delay) > 0 AND o <> 'EWR'""",
    "group by expressions": """
        SELECT window.start AS s, hour(ts) + 1 AS h, sum(seats) * 2 + count(*) AS x FROM flights
        GROUP BY window(ts, '1 day'), hour(ts)""",
    "aggregate of aggregates": """
        SELECT window.end AS e, max(n) AS most, sum(n) AS n FROM (
          SELECT window.end AS e, origin, count(*) AS n FROM flights GROUP BY window(ts, '1 hour'), origin)
        GROUP BY window(e, '6 hours') HAVING most > 1""",
    "union, then window": """
        SELECT window.start AS s, place, count(*) AS n FROM (
          SELECT ts, origin AS place FROM flights UNION ALL SELECT seen_at, airport FROM bags)
        WHERE place <> 'LGA' GROUP BY window(ts, '6 hours'), place""",
    "windows, then union": """
        SELECT window.end AS e, count(*) AS n FROM flights GROUP BY window(ts, '6 hours')
        UNION ALL SELECT window.end, count(*) FROM bags GROUP BY window(seen_at, '6 hours')""",
    "join": f"SELECT f.ts, f.dest, w.visib FROM flights f JOIN weather w ON {NEAR} WHERE {BAD_WEATHER}",
    "join in WHERE": f"""
        SELECT f.ts, w.precip + f.dep_delay AS x FROM flights f, weather w WHERE {NEAR} AND f.seats > w.visib""",
    "self join": """
        SELECT a.ts AS a, b.ts AS b, a.dest FROM flights a JOIN flights b
        ON a.dest = b.dest AND a.carrier < b.carrier AND b.ts > a.ts - INTERVAL 20 MINUTES AND b.ts <= a.ts""",
    "joins of three": """
        SELECT f.ts, w.visib, b.weight FROM flights f
        JOIN weather w ON f.origin = w.origin AND f.ts >= w.ts AND f.ts < w.ts + INTERVAL 1 HOUR
        JOIN bags b ON b.airport = f.origin AND b.seen_at BETWEEN f.ts - INTERVAL 10 MINUTES AND f.ts""",
    "join, then window": f"""
        SELECT window.start AS window_start, window.end AS window_end, origin, count(*) AS departures,
               avg(dep_delay) AS mean_delay, max(dep_delay) AS worst_delay
        FROM (SELECT f.ts AS ts, f.origin AS origin, f.dep_delay AS dep_delay
              FROM flights f JOIN weather w ON {NEAR} WHERE {BAD_WEATHER})
        GROUP BY window(ts, '3 hours'), origin""",
    "join and window in one": f"""
        SELECT window.start AS window_start, f.origin, count(*) AS departures, avg(dep_delay) AS mean_delay
        FROM flights f JOIN weather w ON {NEAR} WHERE {BAD_WEATHER} GROUP BY window(w.ts, '3 hours'), f.origin""",
    "join of aggregates": """
        WITH hourly AS (SELECT window, origin, count(*) AS n FROM flights GROUP BY window(ts, '1 hour'), origin)
        SELECT a.window.end AS e, a.origin AS one, b.origin AS other, a.n - b.n AS more
        FROM hourly a JOIN hourly b ON a.window = b.window AND a.origin < b.origin WHERE a.n > 1""",
    "aggregate joined with a stream": """
        SELECT f.dest, h.n FROM flights f JOIN (
          SELECT window.start AS s, origin, count(*) AS n FROM flights GROUP BY window(ts, '1 hour'), origin) h
        ON f.origin = h.origin AND f.ts >= h.s AND f.ts < h.s + INTERVAL 1 HOUR WHERE h.n > 2""",
    "union of a join and a stream": f"""
        WITH bad AS (SELECT f.ts, f.origin AS place FROM flights f JOIN weather w ON {NEAR} WHERE {BAD_WEATHER})
        SELECT window.start AS s, place, count(*) AS n
        FROM (SELECT * FROM bad UNION ALL SELECT seen_at, airport FROM bags)
        GROUP BY window(ts, '4 hours'), place""",
    "equalities of event times": """
        SELECT f.ts, b.weight FROM flights f JOIN bags b ON f.origin = b.airport
        AND f.ts = b.seen_at + INTERVAL 30 SECONDS
        UNION ALL SELECT a.ts, b.seats FROM flights a JOIN flights b ON a.ts = b.ts AND a.origin = b.origin""",
    "constants": "SELECT 1 AS one, 'x' AS kind, ts FROM flights UNION ALL SELECT 2, 'y', ts FROM weather WHERE 1 = 1",
}


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session("uncut", tmp_path_factory.mktemp("spark"), master="local[1]")
    # Compiling each of these small plans would take longer than running them. (What a session is started with, all
    # later ones of this process would be, too.)
    session.conf.set("spark.sql.codegen.wholeStage", "false")
    session.conf.set("spark.sql.codegen.factoryMode", "NO_CODEGEN")
    rng = random.Random(2013)
    start = datetime.datetime(2013, 7, 1, tzinfo=datetime.UTC)
    airports = ["EWR", "JFK", "LGA"]

    def moment() -> datetime.datetime:
        return start + datetime.timedelta(minutes=rng.randrange(36 * 60), seconds=rng.choice([0, 0, 30]))

    def maybe(value: object) -> object:
        return None if rng.random() < 0.05 else value

    dests, carriers = ["LAX", "LHR", "SFO", "BOS", "ATL"], ["AA", "DL", "UA"]
    rows: dict[str, list[tuple[object, ...]]] = {
        "flights": [
            (
                moment(),
                maybe(rng.choice(airports)),
                rng.choice(dests),
                rng.choice(carriers),
                maybe(rng.gauss(10, 30)),
                maybe(s),
            )
            for s in (rng.randrange(200) for _ in range(300))
        ],
        "weather": [
            (start + datetime.timedelta(hours=h), airport, rng.choice([2.0, 7.0, 10.0]), maybe(rng.uniform(0, 20)), 0.0)
            for h in range(36)
            for airport in airports
        ],
        "bags": [
            (moment(), rng.choice(airports), (rng.choice("ab"), rng.randrange(3)), rng.randrange(30), number)
            for number in range(150)
        ],
    }
    for name, schema in SCHEMAS.items():
        session.createDataFrame(rows[name], schema).repartition(1).createOrReplaceTempView(name)
    yield session
    session.stop()


@pytest.mark.parametrize("select", QUERIES.values(), ids=QUERIES.keys())
def test_cut_equals_uncut(spark: SparkSession, select: str) -> None:
    whole = spark.sql(select.replace("STREAM ", ""))
    cut = _run_fragments(spark, select)
    assert cut.columns == whole.columns
    assert [field.dataType for field in cut.schema] == [field.dataType for field in whole.schema]
    expected = _comparable(whole.collect())
    assert len(expected) > 3, "the query should find something to compare"
    assert _comparable(cut.collect()) == expected


IN_WINDOWS = {
    "two streams": (
        "SELECT f.ts, f.dest, b.weight FROM flights f [RANGE 20 MINUTES], bags b [RANGE 5 MINUTES] "
        "WHERE f.origin = b.airport",
        "SELECT f.ts, f.dest, b.weight FROM flights f, bags b WHERE f.origin = b.airport "
        "AND f.ts >= b.seen_at - INTERVAL 20 MINUTES AND b.seen_at >= f.ts - INTERVAL 5 MINUTES",
    ),
    "three streams": (
        "SELECT f.ts, w.visib, b.weight FROM flights f [RANGE 30 MINUTES], weather w [RANGE 40 MINUTES], "
        "bags b [RANGE 10 MINUTES] WHERE f.origin = w.origin AND f.origin = b.airport",
        "SELECT f.ts, w.visib, b.weight FROM flights f, weather w, bags b WHERE f.origin = w.origin "
        "AND f.origin = b.airport AND greatest(f.ts, w.ts, b.seen_at) - f.ts <= INTERVAL 30 MINUTES "
        "AND greatest(f.ts, w.ts, b.seen_at) - w.ts <= INTERVAL 40 MINUTES "
        "AND greatest(f.ts, w.ts, b.seen_at) - b.seen_at <= INTERVAL 10 MINUTES",
    ),
    "an aggregate": (
        "SELECT f.origin, count(*) AS n FROM flights f [RANGE 2 HOURS SLIDE 30 MINUTES] GROUP BY f.origin",
        "SELECT f.origin, count(*) AS n FROM flights f GROUP BY window(f.ts, '2 hours', '30 minutes'), f.origin",
    ),
}


@pytest.mark.parametrize(("select", "spelled_out"), IN_WINDOWS.values(), ids=IN_WINDOWS.keys())
def test_windows_in_brackets_are_what_they_stand_for(spark: SparkSession, select: str, spelled_out: str) -> None:
    expected = _comparable(spark.sql(spelled_out).collect())
    assert len(expected) > 3, "the query should find something to compare"
    assert _comparable(_run_fragments(spark, select).collect()) == expected


@pytest.mark.parametrize("order", [((0, 1), 2), ((0, 2), 1), (0, (1, 2))], ids=str)
def test_the_order_of_joins_changes_nothing(spark: SparkSession, order: Order) -> None:
    select = QUERIES["joins of three"]
    cut = _run_fragments(spark, select, lambda graph: order)
    assert _comparable(cut.collect()) == _comparable(spark.sql(select).collect())


SHARED = f"SELECT f.ts, f.origin, f.dest, f.seats, w.visib FROM flights f JOIN weather w ON {NEAR}"
FROM = "TIMESTAMP '2013-07-01 12:20:00Z'"
LATE = {"q1-join1": Start(5, int(datetime.datetime(2013, 7, 1, 12, 20, tzinfo=datetime.UTC).timestamp() * 1000))}
#: Queries that read the join above from some time on, and what they are to give.
READERS = {
    "the join, filtered further": (
        f"SELECT f.ts, f.dest, w.visib FROM flights f JOIN weather w ON {NEAR} WHERE f.seats > 50",
        f"SELECT f.ts, f.dest, w.visib FROM flights f JOIN weather w ON {NEAR} WHERE f.seats > 50 AND f.ts >= {FROM}",
    ),
    "whole windows": (
        f"""SELECT window.start AS s, f.origin, sum(f.seats) AS n FROM flights f JOIN weather w ON {NEAR}
        GROUP BY window(f.ts, '2 hours'), f.origin""",
        f"""SELECT window.start AS s, f.origin, sum(f.seats) AS n FROM flights f JOIN weather w ON {NEAR}
        GROUP BY window(f.ts, '2 hours'), f.origin HAVING window.start >= {FROM}""",
    ),
    "a third stream": (
        f"""SELECT f.ts, w.visib, b.weight FROM flights f JOIN weather w ON {NEAR} JOIN bags b
        ON b.airport = f.origin AND b.seen_at BETWEEN f.ts - INTERVAL 10 MINUTES AND f.ts""",
        f"""SELECT f.ts, w.visib, b.weight FROM flights f JOIN weather w ON {NEAR} JOIN bags b
        ON b.airport = f.origin AND b.seen_at BETWEEN f.ts - INTERVAL 10 MINUTES AND f.ts WHERE f.ts >= {FROM}""",
    ),
}


@pytest.mark.parametrize(("select", "expected"), READERS.values(), ids=READERS.keys())
def test_who_reads_the_join_of_another_query_gets_all_that_is_late_enough(
    spark: SparkSession, select: str, expected: str
) -> None:
    fragments, offered = offers(SHARED, CATALOG)
    results: dict[str, DataFrame] = {}
    _run(spark, fragments, results)
    plan = plan_reading(select, CATALOG, offered, LATE)
    assert plan is not None
    found = _comparable(_run(spark, plan.fragments, results).collect())
    assert len(found) > 3, "the query should find something to compare"
    assert found == _comparable(spark.sql(expected).collect())


HOURLY = f"""
    SELECT window.end AS e, f.origin, count(*) AS n, avg(f.seats) AS seats FROM flights f JOIN weather w ON {NEAR}
    GROUP BY window(f.ts, '1 hour'), f.origin"""
UNITED = """
    SELECT ts, place, what FROM (
      SELECT ts, origin AS place, 'f' AS what FROM flights WHERE seats > 5
      UNION ALL SELECT ts, origin, 'w' FROM weather)"""
#: What runs, and a query that reads it.
VIEWERS = {
    "an aggregate, by one of its keys": (
        HOURLY,
        """SELECT window.end AS until, avg(a.seats) + 1 AS more FROM weather b JOIN flights a
        ON a.origin = b.origin AND a.ts >= b.ts AND a.ts <= b.ts + INTERVAL 59 MINUTES
        WHERE a.origin <> 'JFK' GROUP BY a.origin, window(a.ts, '60 minutes') HAVING count(1) > 1""",
    ),
    "an aggregate of an aggregate": (
        HOURLY,
        f"SELECT window.start AS s, max(n) AS n FROM ({HOURLY}) GROUP BY window(e, '3 hours')",
    ),
    "a union, its parts the other way round": (
        UNITED,
        """SELECT upper(p) AS p, at FROM (
        SELECT ts AS at, origin AS p FROM weather UNION ALL SELECT ts, origin FROM flights WHERE 5 < seats)
        WHERE p <> 'JFK'""",
    ),
}


@pytest.mark.parametrize(("first", "select"), VIEWERS.values(), ids=VIEWERS.keys())
def test_who_reads_an_aggregate_or_a_union_of_another_query_gets_the_same(
    spark: SparkSession, first: str, select: str
) -> None:
    fragments, offered = offers(first, CATALOG)
    results: dict[str, DataFrame] = {}
    _run(spark, fragments, results)
    plan = plan_viewing(select, CATALOG, offered, {})
    assert plan is not None
    assert not any(spec.stream for spec in plan.fragments)
    found = _comparable(_run(spark, plan.fragments, results).collect())
    assert len(found) > 3, "the query should find something to compare"
    assert found == _comparable(spark.sql(select).collect())


def test_what_is_refused_for_its_types_spark_refuses_too(spark: SparkSession) -> None:
    for select in types_cases.REFUSED:
        with pytest.raises(AnalysisException):
            spark.sql(select)
    for select in types_cases.ACCEPTED:
        spark.sql(select)


def test_the_papers_examples_give_what_plain_spark_gives(spark: SparkSession) -> None:
    rng = random.Random(2006)
    start = datetime.datetime(2018, 2, 1, tzinfo=datetime.UTC)
    for name, schema in paper_examples.SCHEMAS.items():
        drawn = [
            (
                start + datetime.timedelta(seconds=rng.randrange(4 * 3600)),
                rng.choice("pqrs"),
                *((rng.uniform(0, 6), rng.random()) if "magnitude" in schema else (rng.choice("xy"), rng.randrange(8))),
            )
            for _ in range(120)
        ]
        spark.createDataFrame(drawn, schema).repartition(1).createOrReplaceTempView(name)
    for sink, select in paper_examples.EXAMPLES.items():
        plan = prepare_query(f"INSERT INTO {sink} {select}", paper_examples.CATALOG).cut("q")
        found = _comparable(_run(spark, plan.fragments, {}).collect())
        assert len(found) > 3, "the query should find something to compare"
        assert found == _comparable(spark.sql(paper_examples.IN_PLAIN_SPARK[sink]).collect())


def test_each_of_several_sinks_gets_what_it_would_alone(spark: SparkSession) -> None:
    second = HOURLY + " HAVING n > 1"
    plan = prepare_query(f"INSERT INTO result {HOURLY}; INSERT INTO alerts {second}", CATALOG).cut("q")
    results: dict[str, DataFrame] = {}
    _run(spark, plan.fragments, results)
    for sink, select in (("q-sink1", HOURLY), ("q-sink2", second)):
        found = _comparable(results[sink].collect())
        assert len(found) > 3, "the query should find something to compare"
        assert found == _comparable(spark.sql(select).collect())


def _run_fragments(spark: SparkSession, select: str, choose: Choose = as_written) -> DataFrame:
    """What reaches the sink when each fragment runs as a batch query over the results of its producers."""
    return _run(spark, prepare_query(f"INSERT INTO result {select}", CATALOG).cut("q", choose).fragments, {})


def _run(spark: SparkSession, fragments: Sequence[FragmentSpec], results: dict[str, DataFrame]) -> DataFrame:
    """As above; ``results``, by fragment, has those of other queries, and gets these."""
    for fragment in fragments:
        if fragment.stream is not None:
            spark.table(fragment.stream.name).createOrReplaceTempView("source")
        for port in fragment.ports:
            (producer,) = port.producers
            results[producer].createOrReplaceTempView(port.name)
        results[fragment.fragment_id] = result = spark.sql(fragment.sql)
        assert fragment.event_time is None or result.schema[fragment.event_time].dataType.typeName() == "timestamp"
        if fragment.kind != FragmentKind.SINK:
            assert all(name.isidentifier() or fragment.kind == FragmentKind.SOURCE for name in result.columns)
    return results[fragment.fragment_id]


def _comparable(rows: list[Row]) -> list[str]:
    """Rows as a multiset, floating point to nine digits."""

    def value(item: object) -> object:
        if isinstance(item, Row):
            return tuple(value(part) for part in item)
        return f"{item:.9e}" if isinstance(item, float) and math.isfinite(item) else item

    return sorted(repr(tuple(value(item) for item in row)) for row in rows)
