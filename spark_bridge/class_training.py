"""``python -m spark_bridge.class_training``: makes the archive of Java's classes (:mod:`spark_bridge.class_archive`).

What an engine will do is done once: streams are read, joined, grouped and written, over real links, from a few rows; a
join starts again from its checkpoint, as after a move. Java then writes down what it has loaded and learned.
"""

from __future__ import annotations

import argparse
import os
import shlex
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import parquet
from pyspark.sql import SparkSession

from sbon.engine_messages import (
    ClassArchive,
    Command,
    Connect,
    EngineReply,
    FragmentState,
    Instantiate,
    Migrate,
    Rehearse,
    cursor_name,
)
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.streams import SinkSpec, StreamSpec
from spark_bridge import local_files
from spark_bridge.class_archive import archive_file, writing_options
from spark_bridge.engine import Fragments
from spark_bridge.flight_links import LinkServer
from spark_bridge.fragment_runner import RunnerSettings
from spark_bridge.java_runtime import find_java
from spark_bridge.replay_source import register_replay_source
from spark_bridge.session import EXTRA_JAVA_OPTIONS, start_session

_ROWS = 2000
#: The two hours take six seconds.
_SPEEDUP = 1000
_POLL_S = 0.1
_SETTINGS = RunnerSettings(trigger_ms=100)
_WITHIN_S = 180.0
_WRITE_WITHIN_S = 300.0
_STREAMS = ("lefts", "rights")
_SCHEMA = "ts timestamp, k string, v bigint"
_JOIN = (
    "SELECT l.ts AS ts, l.k AS k, l.v + r.v AS v FROM lefts l JOIN rights r "
    "ON l.k = r.k AND r.ts BETWEEN l.ts - INTERVAL 1 MINUTE AND l.ts WHERE l.v % 5 > 0"
)
_QUERIES = {
    "joined": _JOIN,
    "grouped": "SELECT window.start AS start, k, count(*) AS n, avg(v) AS mean FROM lefts "
    "GROUP BY window(ts, '1 minute'), k",
    "united": "SELECT ts, k, v FROM lefts WHERE k = 'k1' UNION ALL SELECT ts, k, v FROM rights WHERE v > 50",
}


def train(archive: Path, folder: Path) -> None:
    """Make ``archive``, with temporary files in ``folder``.

    Raises SbonError if a query does not run, or if this Java writes no archive; then there is none.
    """
    archive.parent.mkdir(parents=True, exist_ok=True)
    archive.unlink(missing_ok=True)
    fresh = archive.with_name(f"{archive.name}.new")
    fresh.unlink(missing_ok=True)
    java_options = shlex.join(writing_options(find_java(), fresh))
    settings = {**local_files.SETTINGS, EXTRA_JAVA_OPTIONS: java_options}
    spark = start_session("training", folder / "scratch", settings=settings)
    try:
        _run_queries(spark, folder)
    finally:
        _end_java(spark)
    if not fresh.exists():
        raise SbonError("this Java wrote no archive of its classes; engines run all the same")
    fresh.replace(archive)


def _run_queries(spark: SparkSession, folder: Path) -> None:
    local_files.use_plain_files(spark)
    register_replay_source(spark)
    training = _Training(spark, folder)
    for sink, sql in _QUERIES.items():
        training.run(sink, sql)


def _end_java(spark: SparkSession) -> None:
    """Let Java end by itself, which is when it writes the archive."""
    gateway = spark.sparkContext._gateway
    spark.stop()
    assert gateway is not None
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_WRITE_WITHIN_S)


class _Training:
    """Runs queries to their end on one session, in place of engines and daemons."""

    def __init__(self, spark: SparkSession, folder: Path) -> None:
        self._folder = folder
        self._fragments = Fragments(spark, _SETTINGS, lambda _: None, lambda: None)
        self._server = LinkServer("127.0.0.1", self._fragments.links)
        streams = [StreamSpec(name, "replay", _SCHEMA, "ts", self._write_rows(name)) for name in _STREAMS]
        sinks = [SinkSpec(name, "parquet", {"path": str(folder / "out" / name)}) for name in _QUERIES]
        self._catalog = Catalog(
            {spec.name: (spec, "node") for spec in streams}, {spec.name: (spec, "node") for spec in sinks}
        )

    def run(self, sink: str, sql: str) -> None:
        """Until all rows are in the sink. What is stateful moves meanwhile: it is rehearsed, stopped, started again."""
        plan = plan_query(f"INSERT INTO {sink} {sql}", f"q{sink}", self._catalog)
        described: dict[str, str] = {}
        for spec in plan.fragments:
            described[spec.fragment_id] = self._start(spec, plan.fragments, described, generation=1)
        for spec in plan.fragments:
            if spec.stateful:
                folder = str(self._folder / "rehearsal")
                self._do(Rehearse(spec.fragment_id, 1, "node", spec, folder, _port_schemas(spec, described)))
                self._do(Migrate(spec.fragment_id, 1, "node"))
                self._start(spec, plan.fragments, described, generation=2)
        self._wait_for_end(plan.fragments[-1].fragment_id)
        self._fragments.stop_all()

    def _start(
        self, spec: FragmentSpec, fragments: Sequence[FragmentSpec], described: Mapping[str, str], generation: int
    ) -> str:
        """What it puts out. Producers come before their consumers; who reads it already is connected again."""
        readers = [
            (other, port.name) for other in fragments for port in other.ports if spec.fragment_id in port.producers
        ]
        reply = self._do(
            Instantiate(
                spec.fragment_id,
                generation,
                "node",
                spec,
                str(self._folder / "fragments" / spec.fragment_id),
                _port_schemas(spec, described),
                tuple(cursor_name(other.fragment_id, port) for other, port in readers),
            )
        )
        for port in spec.ports:
            for producer in port.producers:
                self._connect(spec.fragment_id, generation, port.name, producer, 1)
        for other, port_name in readers:
            if other.fragment_id in described:
                self._connect(other.fragment_id, 1, port_name, spec.fragment_id, generation)
        assert reply.output_schema is not None
        return reply.output_schema

    def _connect(self, consumer: str, generation: int, port: str, producer: str, producer_generation: int) -> None:
        address = self._server.address
        self._do(Connect(consumer, generation, "node", port, producer, producer_generation, address))

    def _do(self, command: Command) -> EngineReply:
        reply = self._fragments.carry_out(0, command)
        if reply.error is not None:
            raise SbonError(reply.error)
        return reply

    def _wait_for_end(self, fragment_id: str) -> None:
        deadline = time.monotonic() + _WITHIN_S
        while True:
            statuses = self._fragments.statuses()
            if failed := [status.error for status in statuses if status.state is FragmentState.FAILED]:
                raise SbonError(failed[0] or "a fragment failed")
            if any(status.fragment_id == fragment_id and status.state is FragmentState.FINISHED for status in statuses):
                return
            if time.monotonic() > deadline:
                raise SbonError(f"{fragment_id} did not end within {_WITHIN_S:g} s: this host is too busy")
            time.sleep(_POLL_S)

    def _write_rows(self, name: str) -> dict[str, str]:
        """A stream of two hours, and its options."""
        start = datetime(2020, 1, 1, tzinfo=UTC)
        times = [start + timedelta(seconds=3 * number) for number in range(_ROWS)]
        table = pa.table(
            {
                "ts": pa.array(times, pa.timestamp("us", "UTC")),
                "k": [f"k{number % 7}" for number in range(_ROWS)],
                "v": [number % 100 for number in range(_ROWS)],
            }
        )
        file = self._folder / f"{name}.parquet"
        parquet.write_table(table, file)
        return {"path": str(file), "speedup": str(_SPEEDUP)}


def _port_schemas(spec: FragmentSpec, described: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(described[port.producers[0]] for port in spec.ports)


def main() -> int:
    """0 when there is an archive, with a line of JSON about it; 2 with one line on stderr when none can be made."""
    parser = argparse.ArgumentParser(prog="spark_bridge.class_training", description=__doc__.splitlines()[0])
    parser.add_argument("--again", action="store_true", help="make it anew, even if there is one")
    arguments = parser.parse_args()
    try:
        archive = archive_file(find_java())
        is_new = arguments.again or not archive.exists()
        if is_new:
            with tempfile.TemporaryDirectory(prefix="sbon-classes-") as folder:
                train(archive, Path(folder))
        made = ClassArchive(str(archive), archive.stat().st_size, is_new)
    except (SbonError, OSError) as error:
        print(f"no archive of Java's classes: {error}", file=sys.stderr)
        return 2
    print(msgspec.json.encode(made).decode())
    return 0


if __name__ == "__main__":
    status = main()
    sys.stdout.flush()
    os._exit(status)  # threads of Spark's and Flight's may be waiting for what has gone
