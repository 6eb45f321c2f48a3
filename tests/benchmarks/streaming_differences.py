"""Random queries on real streaming Spark: fragments, links and windows that close, against the same text as a batch.

    python -m tests.benchmarks.streaming_differences [--minutes 8] [--seed 1] [--switch]

The queries are those of :mod:`tests.benchmarks.query_differences`, cut with their joins in a random order; each
fragment is a streaming query of one engine, fed through links, from streams that are replayed and end. As many are run
as the minutes allow. With ``--switch`` each query gets another plan while it runs, in another order of joins if it has
any: it is put beside the first one, over the same sources, and the sink's port changes its producer. Prints JSON; a
query whose results differ is printed, and the status is 1.
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

import msgspec
from pyspark.sql import SparkSession

from sbon.engine_messages import FragmentState, SetPort, SetReaders, cursor_name
from sbon.fragment import Switch
from sbon.sql.catalog import Catalog
from sbon.sql.join_graph import JoinGraph, Order
from sbon.sql.plan import Prepared, prepare_query
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
from tests.spark_bridge.driven_engine import DrivenEngine, connect, deploy

#: The streams last so long; and so long if plans are changed while they do.
REPLAY_S = 3.0
SWITCHED_REPLAY_S = 25.0
AT_ONCE = 1


@dataclass(frozen=True, slots=True)
class Drawn:
    """A query in both spellings, and where its rows are."""

    text: str
    plain: str
    plan: QueryPlan
    prepared: Prepared
    folder: Path


def write_streams(folder: Path, rng: random.Random, replay_s: float) -> tuple[StreamSpec, ...]:
    specs = []
    for name in STREAMS:
        rows = sorted(draw_rows(rng), key=lambda row: row[0])
        path = folder / f"{name}.csv"
        with path.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(part.split()[0] for part in SCHEMA.split(", "))
            writer.writerows([row[0].isoformat(), *("" if item is None else item for item in row[1:])] for row in rows)
        timing = {"path": str(path), "speedup": f"{MINUTES * 60 / replay_s:g}"}
        specs.append(StreamSpec(name, "replay", SCHEMA, "ts", timing))
    return tuple(specs)


def draw(generator: Generator, rng: random.Random, streams: tuple[StreamSpec, ...], folder: Path, number: int) -> Drawn:
    text, plain = generator.query()
    out = folder / "out" / str(number)
    catalog = Catalog(
        {spec.name: (spec, "node") for spec in streams},
        {"result": (SinkSpec("result", "parquet", {"path": str(out)}), "node")},
    )
    prepared = prepare_query(f"INSERT INTO result {text}", catalog)
    return Drawn(text, plain, prepared.cut(f"q{number}", random_order(rng)), prepared, out)


def stream_for(
    minutes: float, rng: random.Random, streams: tuple[StreamSpec, ...], folder: Path, *, switch: bool
) -> tuple[list[Drawn], int]:
    """The queries that ran to their end, and how many of them ended with another plan than they began with."""
    switched = 0
    generator, done = Generator(rng), list[Drawn]()
    until_s = time.monotonic() + minutes * 60
    with DrivenEngine(folder / "engine") as engine:
        while time.monotonic() < until_s:
            together = [draw(generator, rng, streams, folder, len(done) + number) for number in range(AT_ONCE)]
            schemas = [
                deploy(query.plan.fragments, dict.fromkeys((spec.fragment_id for spec in query.plan.fragments), engine))
                for query in together
            ]
            others = [
                change_plan(engine, query, rng, described) if switch else None
                for query, described in zip(together, schemas, strict=True)
            ]
            for query in together:
                engine.wait_for_state(query.plan.fragments[-1].fragment_id, FragmentState.FINISHED)
            for query, other in zip(together, others, strict=True):
                ports = engine.statuses[query.plan.fragments[-1].fragment_id].ports
                switched += any(port.passed for port in ports)
                for spec in (*query.plan.fragments, *(other.fragments[:-1] if other is not None else ())):
                    engine.destroy(spec)
            done += together
        assert all(status.late_rows == 0 for status in engine.statuses.values())
    return done, switched


def change_plan(engine: DrivenEngine, query: Drawn, rng: random.Random, described: dict[str, str]) -> QueryPlan | None:
    """Some time after a query has begun, put another plan beside it, as its keeper would; None if there is none."""
    *_, sink = query.plan.fragments
    sources = {spec.fragment_id: spec for spec in query.plan.fragments if spec.stream is not None}
    own = {fragment_id: spec.computes for fragment_id, spec in sources.items() if spec.computes is not None}
    beside, order = query.prepared.beside(own, f"{query.plan.query_id}-new"), random_order(rng)
    orders: dict[int, Order | None] = {}

    def choose(graph: JoinGraph) -> Order | None:
        return orders.setdefault(len(graph.inputs), order(graph))

    planned = beside.cut(query.plan.query_id, choose)
    *inner, new_sink = planned.fragments
    if new_sink.signature() != sink.signature() or any(spec.stream is not None for spec in inner):
        return None
    time.sleep(rng.uniform(0.0, SWITCHED_REPLAY_S / 3))
    starts = {}
    for fragment_id in sources:
        cursors = cursors_of(planned, fragment_id)
        reply = engine.do(SetReaders(fragment_id, 1, "test", (*cursors_of(query.plan, fragment_id), *cursors)))
        if cursors:
            starts[fragment_id] = max((reply.starts[each] for each in cursors), key=lambda start: start.first_batch)
    plan = beside.cut(query.plan.query_id, choose, starts)
    *inner, _ = plan.fragments
    top = plan.fragments[-1].ports[0].producers[0]
    deploy(tuple(inner), dict.fromkeys((*sources, *(spec.fragment_id for spec in inner)), engine), described)
    new = next(spec for spec in inner if spec.fragment_id == top)
    assert new.computes is not None
    assert new.event_time is not None
    (port,) = sink.ports
    switch = Switch(port.producers[0], top, new.event_time, new.computes.from_ms)
    both = msgspec.structs.replace(port, producers=(*port.producers, top), switch=switch, changes=1)
    engine.do(SetPort(sink.fragment_id, 1, "test", both))
    connect(engine, sink, port.name, top, engine)
    return plan


def cursors_of(plan: QueryPlan, fragment_id: str) -> tuple[str, ...]:
    """Those with which its fragments read this one."""
    return tuple(
        cursor_name(spec.fragment_id, port.name)
        for spec in plan.fragments
        for port in spec.ports
        if fragment_id in port.producers
    )


def streamed(spark: SparkSession, query: Drawn) -> list[str]:
    """What reached the sink."""
    files = [str(path) for path in query.folder.glob("*.parquet")]
    return comparable(spark.read.parquet(*files).collect()) if files else []


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="that queries are streamed for")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--switch", action="store_true", help="change the plan of each query while it runs")
    arguments = parser.parse_args()
    rng, different, rows, empty = random.Random(arguments.seed), 0, 0, 0
    began_s = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="sbon-differences-") as name:
        folder = Path(name)
        streams = write_streams(folder, rng, SWITCHED_REPLAY_S if arguments.switch else REPLAY_S)
        done, switched = stream_for(arguments.minutes, rng, streams, folder, switch=arguments.switch)
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
    if arguments.switch:
        report["switched"] = switched
    print(json.dumps(report | {"seconds": round(time.perf_counter() - began_s, 1)}))
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
