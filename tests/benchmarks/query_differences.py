"""Random queries on real Spark: cut into fragments, with joins in a random order, against the same text in plain Spark.

    python -m tests.benchmarks.query_differences [--queries 300] [--seed 1]

Each is then planned once more, reading some part of what the first one has.

No streaming: fragments run in order as batch queries, so what is compared is the planner's work (names, pushed filters,
join orders, windows in brackets, cuts). Prints JSON; a query whose results differ is printed, and the status is 1.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from pyspark.sql import DataFrame, Row, SparkSession

from sbon.errors import QueryError
from sbon.sql.catalog import Catalog
from sbon.sql.join_graph import JoinGraph, Order
from sbon.sql.plan import prepare_query
from sbon.sql.query_plan import QueryPlan
from sbon.sql.reuse import views, with_views
from sbon.streams import SinkSpec, StreamSpec
from spark_bridge.session import start_session

SCHEMA = "ts TIMESTAMP, k INT, g STRING, x INT, y DOUBLE"
STREAMS = ("a", "b", "c", "d")
ROWS = 60
MINUTES = 90
CATALOG = Catalog(
    {name: (StreamSpec(name, "replay", SCHEMA, "ts"), name) for name in STREAMS},
    {"result": (SinkSpec("result", "console"), "a")},
)


class Generator:
    """Draws a query in two spellings: as users of sbon write it, and for plain Spark."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def query(self) -> tuple[str, str]:
        kinds = (self._join, self._aggregate, self._union, self._join_aggregate, self._twice)
        return self._rng.choices(kinds, (5, 2, 2, 2, 2))[0]()

    def _condition(self, alias: str) -> str:
        dot = f"{alias}." if alias else ""
        return self._rng.choice(
            (
                f"{dot}x > {self._rng.randrange(8)}",
                f"{dot}g IN ('p', 'q')",
                f"{dot}x + {dot}k <> {self._rng.randrange(9)}",
                f"({dot}y < 0.5 OR {dot}g = 'r')",
                f"NOT {dot}x BETWEEN 2 AND {self._rng.randrange(2, 6)}",
                f"{dot}y IS NOT NULL",
                f"coalesce({dot}y, 1) < 0.9",
            )
        )

    def _sources(self) -> tuple[str, str, str, list[str]]:
        """FROM with brackets, FROM without, what the brackets and keys say, aliases."""
        rng = self._rng
        count = rng.randint(2, 4)
        aliases = [f"s{number}" for number in range(count)]
        streams = [rng.choice(STREAMS) for _ in aliases]
        ranges = [rng.randrange(1, 12) for _ in aliases]
        brackets = ", ".join(
            f"{stream} {alias} [RANGE {length} MINUTES]"
            for stream, alias, length in zip(streams, aliases, ranges, strict=True)
        )
        plain = ", ".join(f"{stream} {alias}" for stream, alias in zip(streams, aliases, strict=True))
        latest = f"greatest({', '.join(f'{alias}.ts' for alias in aliases)})"
        times = [
            f"{latest} - {alias}.ts <= INTERVAL {length} MINUTES" for alias, length in zip(aliases, ranges, strict=True)
        ]
        keys = [f"{rng.choice(aliases[:n])}.k = {aliases[n]}.k" for n in range(1, count)]
        if rng.random() < 0.3:
            keys.append(f"{aliases[0]}.g = {aliases[-1]}.g")
        filters = [self._condition(rng.choice(aliases)) for _ in range(rng.randrange(3))]
        if rng.random() < 0.3:
            filters.append(f"{aliases[0]}.x < {aliases[-1]}.x + {rng.randrange(5)}")
        where = " AND ".join(rng.sample([*keys, *filters], len(keys) + len(filters)))
        return brackets, plain, where, [*times, *aliases]

    def _join(self) -> tuple[str, str]:
        brackets, plain, where, rest = self._sources()
        half = len(rest) // 2
        times, aliases = rest[:half], rest[half:]
        columns = ", ".join(
            f"{alias}.{self._rng.choice(('ts', 'x', 'g', 'y'))} AS c{number}" for number, alias in enumerate(aliases)
        )
        select = f"SELECT {columns}, {aliases[0]}.x - {aliases[-1]}.x AS diff FROM"
        return f"{select} {brackets} WHERE {where}", f"{select} {plain} WHERE {where} AND {' AND '.join(times)}"

    def _join_aggregate(self) -> tuple[str, str]:
        brackets, plain, where, rest = self._sources()
        half = len(rest) // 2
        times, aliases = rest[:half], rest[half:]
        select = f"SELECT window.end AS e, {aliases[0]}.g AS g, count(*) AS n, max({aliases[-1]}.x) AS most FROM"
        group = f"GROUP BY window({self._rng.choice(aliases)}.ts, '20 minutes'), {aliases[0]}.g"
        inner, outer = f"{select} {brackets} WHERE {where} {group}", f"{select} {plain} WHERE {where}"
        return inner, f"{outer} AND {' AND '.join(times)} {group}"

    def _aggregate(self) -> tuple[str, str]:
        rng = self._rng
        stream, slide = rng.choice(STREAMS), rng.choice((5, 10))
        measures = rng.sample(
            ("count(*) AS n", "sum(x) AS total", "avg(y) AS mean", "max(g) AS last", "count_if(x > 3) AS many"), 2
        )
        select = f"SELECT k, {', '.join(measures)} FROM {stream} s"
        where = f"WHERE {self._condition('s')}"
        having = rng.choice(("", " HAVING count(*) > 1"))
        brackets = f"{select} [RANGE 20 MINUTES SLIDE {slide} MINUTES] {where} GROUP BY k{having}"
        plain = f"{select} {where} GROUP BY window(ts, '20 minutes', '{slide} minutes'), k{having}"
        return brackets, plain

    def _union(self) -> tuple[str, str]:
        rng = self._rng
        parts = [
            f"SELECT ts, {rng.choice(('x', 'k'))} AS v, g FROM {rng.choice(STREAMS)} WHERE {self._condition('')}"
            for _ in range(rng.randint(2, 3))
        ]
        text = f"SELECT v + 1 AS v, g FROM ({' UNION ALL '.join(parts)}) WHERE v > {rng.randrange(5)}"
        return text, text

    def _twice(self) -> tuple[str, str]:
        """A WITH that is used twice, with other columns and filters."""
        rng = self._rng
        common = (
            f"WITH c AS (SELECT window.end AS e, k, count(*) AS n, max(x) AS most FROM {rng.choice(STREAMS)} "
            f"WHERE {self._condition('')} GROUP BY window(ts, '20 minutes', '10 minutes'), k)"
        )
        filters = [rng.choice(("k < 3", "n > 1", "most <> 2", "TRUE")) for _ in range(2)]
        if rng.random() < 0.5:
            parts = (
                f"SELECT e, {column} AS v FROM c WHERE {kept}"
                for column, kept in zip(("n", "most"), filters, strict=True)
            )
            text = f"{common} {' UNION ALL '.join(parts)}"
        else:
            near = rng.choice(("a.e = b.e", "b.e BETWEEN a.e AND a.e + INTERVAL 10 MINUTES"))
            where = f"a.{filters[0]} AND b.{filters[1]}".replace("a.TRUE", "TRUE").replace("b.TRUE", "TRUE")
            text = f"{common} SELECT a.e, a.n, b.most FROM c a JOIN c b ON a.k = b.k AND {near} WHERE {where}"
        return text, text


def random_order(rng: random.Random) -> Callable[[JoinGraph], Order | None]:
    """Some order of the joins in which each part can be joined, all of them equally likely."""

    def choose(graph: JoinGraph) -> Order | None:
        found = list(_orders(graph, frozenset(range(len(graph.inputs)))))
        return rng.choice(found) if found else None

    return choose


def _orders(graph: JoinGraph, numbers: frozenset[int]) -> list[Order]:
    if len(numbers) == 1:
        return [next(iter(numbers))]
    if not graph.can_join(numbers):
        return []
    first = min(numbers)
    found: list[Order] = []
    for count in range(1, len(numbers)):
        for left in itertools.combinations(sorted(numbers), count):
            if first in left:
                pairs = itertools.product(_orders(graph, frozenset(left)), _orders(graph, numbers - frozenset(left)))
                found += [(one, other) if len(left) % 2 else (other, one) for one, other in pairs]
    return found


def run_fragments(spark: SparkSession, plan: QueryPlan, results: dict[str, DataFrame]) -> DataFrame:
    """What reaches the sink when each fragment runs as a batch query over the results of its producers.

    ``results``, by fragment, has those of other queries, and gets these.
    """
    for fragment in plan.fragments:
        if fragment.stream is not None:
            spark.table(fragment.stream.name).createOrReplaceTempView("source")
        for port in fragment.ports:
            results[port.producers[0]].createOrReplaceTempView(port.name)
        results[fragment.fragment_id] = result = spark.sql(fragment.sql)
    return result


def plan_reading(text: str, other: QueryPlan, rng: random.Random) -> QueryPlan | None:
    """A query of the same text that reads some part of ``other``; None if it can read none."""
    offers = {spec.fragment_id: spec.computes for spec in other.fragments if spec.computes is not None}
    prepared = prepare_query(f"INSERT INTO result {text}", CATALOG)
    found = views(prepared.plan, prepared.outputs, offers)
    if not found:
        return None
    try:
        return replace(prepared, plan=with_views(prepared.plan, [rng.choice(found)])).cut("r", random_order(rng))
    except QueryError:  # what it reads has another event time than it needs
        return None


def comparable(rows: list[Row]) -> list[str]:
    return sorted(repr([f"{item:.9e}" if isinstance(item, float) else item for item in row]) for row in rows)


def draw_rows(rng: random.Random) -> list[tuple[datetime.datetime, int, str, int | None, float | None]]:
    """Of one stream, in any order."""
    start = datetime.datetime(2013, 7, 1, tzinfo=datetime.UTC)
    return [
        (
            start + datetime.timedelta(seconds=30 * rng.randrange(2 * MINUTES)),
            rng.randrange(4),
            rng.choice("pqr"),
            rng.choice((*range(8), None)),
            rng.choice((rng.random(), None)),
        )
        for _ in range(ROWS)
    ]


def fill(spark: SparkSession, rng: random.Random) -> None:
    for name in STREAMS:
        spark.createDataFrame(draw_rows(rng), SCHEMA).repartition(1).cache().createOrReplaceTempView(name)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--queries", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    generator = Generator(rng)
    began, different, empty, rows, read = time.perf_counter(), 0, 0, 0, 0
    settings = {"spark.sql.codegen.wholeStage": "false", "spark.sql.codegen.factoryMode": "NO_CODEGEN"}
    with tempfile.TemporaryDirectory() as folder:
        spark = start_session("differences", Path(folder), master="local[1]", settings=settings)
        fill(spark, rng)
        for _ in range(arguments.queries):
            text, plain = generator.query()
            expected = comparable(spark.sql(plain).collect())
            results: dict[str, DataFrame] = {}
            plan = prepare_query(f"INSERT INTO result {text}", CATALOG).cut("q", random_order(rng))
            reading = plan_reading(text, plan, rng)
            found = [comparable(run_fragments(spark, plan, results).collect())]
            if reading is not None:
                read += 1
                found.append(comparable(run_fragments(spark, reading, results).collect()))
            empty += not expected
            rows += len(expected)
            if any(each != expected for each in found):
                different += 1
                counts = " and ".join(str(len(each)) for each in found)
                print(f"{len(expected)} rows expected, {counts} found: {text}", file=sys.stderr)
        spark.stop()
    report = {"queries": arguments.queries, "different": different, "read": read, "empty": empty, "rows": rows}
    print(json.dumps(report | {"seconds": round(time.perf_counter() - began, 1)}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
