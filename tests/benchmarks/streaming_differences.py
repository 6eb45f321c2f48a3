"""Random queries on real streaming Spark: fragments, links and windows that close, against the same text as a batch.

    python -m tests.benchmarks.streaming_differences [--minutes 8] [--seed 1]

The queries are those of :mod:`tests.benchmarks.query_differences`, cut with their joins in a random order; each
fragment is a streaming query of one engine, fed through links, from streams that are replayed and end. As many are run
as the minutes allow. Prints JSON; a query whose results differ is printed, and the status is 1.
"""

from __future__ import annotations

import argparse
import csv
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from pyspark.sql import SparkSession

from sbon.engine_messages import FragmentState
from sbon.sql.catalog import Catalog
from sbon.sql.plan import prepare_query
from sbon.sql.query_plan import QueryPlan
from sbon.streams import SinkSpec, StreamSpec
from spark_bridge.session import start_session
from tests.benchmarks.query_differences import (
    MINUTES,
    SCHEMA,
    STREAMS,
    Generator,
    comparable,
    draw_rows,
    random_order,
)
from tests.spark_bridge.driven_engine import DrivenEngine, deploy

#: The streams last so long.
REPLAY_S = 3.0
AT_ONCE = 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """A query in both spellings, and where its rows are."""

    text: str
    plain: str
    plan: QueryPlan
    folder: Path


def write_streams(folder: Path, rng: random.Random) -> tuple[StreamSpec, ...]:
    specs = []
    for name in STREAMS:
        rows = sorted(draw_rows(rng), key=lambda row: row[0])
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(part.split()[0] for part in SCHEMA.split(", "))
            writer.writerows([row[0].isoformat(), *("" if item is None else item for item in row[1:])] for row in rows)
        timing = {"path": str(path), "speedup": f"{MINUTES * 60 / REPLAY_S:g}"}
        specs.append(StreamSpec(name, "replay", SCHEMA, "ts", timing))
    return tuple(specs)


def draw(generator: Generator, rng: random.Random, streams: tuple[StreamSpec, ...], folder: Path, number: int) -> Drawn:
    text, plain = generator.query()
    out = folder / "out" / str(number)
    catalog = Catalog(
        {spec.name: (spec, "node") for spec in streams},
        {"result": (SinkSpec("result", "parquet", {"path": str(out)}), "node")},
    )
    plan = prepare_query(f"INSERT INTO result {text}", catalog).cut(f"q{number}", random_order(rng))
    return Drawn(text, plain, plan, out)


def stream_for(minutes: float, rng: random.Random, streams: tuple[StreamSpec, ...], folder: Path) -> list[Drawn]:
    """The queries that ran to their end."""
    generator, done = Generator(rng), list[Drawn]()
    until_s = time.monotonic() + minutes * 60
    with DrivenEngine(folder / "engine") as engine:
        while time.monotonic() < until_s:
            together = [draw(generator, rng, streams, folder, len(done) + number) for number in range(AT_ONCE)]
            for query in together:
                deploy(query.plan.fragments, dict.fromkeys((spec.fragment_id for spec in query.plan.fragments), engine))
            for query in together:
                engine.wait_for_state(query.plan.fragments[-1].fragment_id, FragmentState.FINISHED)
                for spec in query.plan.fragments:
                    engine.destroy(spec)
            done += together
        assert all(status.late_rows == 0 for status in engine.statuses.values())
    return done


def streamed(spark: SparkSession, query: Drawn) -> list[str]:
    """What reached the sink."""
    files = [str(path) for path in query.folder.glob("*.parquet")]
    return comparable(spark.read.parquet(*files).collect()) if files else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="that queries are streamed for")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    rng, different, rows, empty = random.Random(arguments.seed), 0, 0, 0
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sbon-differences-") as name:
        folder = Path(name)
        streams = write_streams(folder, rng)
        done = stream_for(arguments.minutes, rng, streams, folder)
        spark = start_session("differences", folder / "plain", master="local[1]")
        for spec in streams:
            frame = spark.read.csv(spec.options["path"], schema=SCHEMA, header=True)
            frame.createOrReplaceTempView(spec.name)
        for query in done:
            expected, found = comparable(spark.sql(query.plain).collect()), streamed(spark, query)
            rows += len(expected)
            empty += not expected
            if found != expected:
                different += 1
                print(f"{len(expected)} rows expected, {len(found)} found: {query.text}", file=sys.stderr)
                for fragment in query.plan.fragments:
                    print(f"    {fragment.fragment_id}: {fragment.sql}", file=sys.stderr)
        spark.stop()
    fragments = sum(len(query.plan.fragments) for query in done)
    report = {"queries": len(done), "fragments": fragments, "different": different, "empty": empty, "rows": rows}
    print(json.dumps(report | {"seconds": round(time.perf_counter() - began_s, 1)}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
