"""Streams, and queries over them: once as SQL for plain Spark, once as the fragments that the query is cut into."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import parquet

from sbon.fragment import FragmentKind, FragmentSpec, PortSpec
from sbon.streams import SinkSpec, StreamSpec

START = datetime(2013, 7, 1, tzinfo=UTC)
#: In Arrow a row of these columns has 100 bytes: 8 for the time, 8 for the number, 4 + 80 for the text.
SCHEMA = "ts TIMESTAMP, v BIGINT, text STRING"
ROW_BYTES = 100
#: What the chain computes, in any number of fragments.
CHAIN_SQL = "SELECT ts, v, text FROM events WHERE v >= 0"
STATE_SQL = (
    "SELECT window.start AS start, count(*) AS n, max(right) AS most FROM (SELECT l.ts AS ts, r.v AS right FROM lefts "
    "l JOIN rights r ON l.v = r.v AND l.ts BETWEEN r.ts AND r.ts + INTERVAL 1 MINUTE) GROUP BY window(ts, '1 minute')"
)


class PlainJob(msgspec.Struct, frozen=True):
    """Queries for one plain Spark process: each reads ``streams`` and writes Parquet files to a folder of its own.

    ``folder`` takes checkpoints, Spark's scratch and what replays keep.
    """

    folder: str
    streams: tuple[StreamSpec, ...]
    queries: dict[str, str]


def rows(count: int, gap: timedelta, first: int = 0) -> pa.Table:
    """``count`` rows of ROW_BYTES, numbered from ``first`` on, one each ``gap``."""
    start_us, gap_us = int(START.timestamp() * 1e6), gap // timedelta(microseconds=1)
    numbers = range(first, first + count)
    return pa.table(
        {
            "ts": pa.array([start_us + number * gap_us for number in numbers]).cast(pa.timestamp("us", "UTC")),
            "v": pa.array(numbers, pa.int64()),
            "text": pa.array([f"{number:080}" for number in numbers]),
        }
    )


def files_stream(folder: Path, files: int, rows_per_file: int) -> StreamSpec:
    """A stream of files, each of which makes a micro-batch."""
    folder.mkdir(parents=True)
    for number in range(files):
        table = rows(rows_per_file, timedelta(milliseconds=1), number * rows_per_file)
        parquet.write_table(table, folder / f"{number:04}.parquet")
    return StreamSpec("events", "parquet", SCHEMA, "ts", {"path": str(folder), "maxFilesPerTrigger": "1"})


def trickle_stream(name: str, file: Path, count: int, gap: timedelta) -> StreamSpec:
    """``count`` rows in real time, one each ``gap``; then the stream stays, and nothing comes any more."""
    parquet.write_table(rows(count + 1, gap), file)
    held_at = START + (count - 1) * gap
    options = {"path": str(file), "hold_at": held_at.isoformat(), "hold_until": str(file.with_suffix(".released"))}
    return StreamSpec(name, "replay", SCHEMA, "ts", options)


def source(stream: StreamSpec, query_id: str = "q") -> FragmentSpec:
    return FragmentSpec(
        f"{query_id}-{stream.name}",
        query_id,
        FragmentKind.SOURCE,
        "SELECT * FROM source",
        event_time="ts",
        stream=stream,
    )


def sink(reads: str, query_id: str, out: Path) -> FragmentSpec:
    ports = (PortSpec("in0", (reads,)),)
    spec = SinkSpec("out", "parquet", {"path": str(out)})
    return FragmentSpec(f"{query_id}-sink", query_id, FragmentKind.SINK, "SELECT * FROM in0", ports, sink=spec)


def chain(stream: StreamSpec, links: int, out: Path) -> tuple[FragmentSpec, ...]:
    """CHAIN_SQL as a source, a sink, and as many stateless fragments between them as make that many links."""
    fragments = [source(stream)]
    for number in range(links - 1):
        ports = (PortSpec("in0", (fragments[-1].fragment_id,)),)
        sql = CHAIN_SQL.replace("events", "in0")
        fragments.append(FragmentSpec(f"q-pass{number}", "q", FragmentKind.FILTER, sql, ports, event_time="ts"))
    return (*fragments, sink(fragments[-1].fragment_id, "q", out))


def stateful(streams: tuple[StreamSpec, StreamSpec], query_id: str, out: Path) -> tuple[FragmentSpec, ...]:
    """STATE_SQL as five fragments: two sources, a join, an aggregate, a sink."""
    lefts, rights = (source(stream, query_id) for stream in streams)
    join = FragmentSpec(
        f"{query_id}-join",
        query_id,
        FragmentKind.JOIN,
        "SELECT l.ts AS ts, r.v AS right FROM in0 l JOIN in1 r "
        "ON l.v = r.v AND l.ts BETWEEN r.ts AND r.ts + INTERVAL 1 MINUTE",
        (PortSpec("in0", (lefts.fragment_id,)), PortSpec("in1", (rights.fragment_id,))),
        event_time="ts",
        stateful=True,
    )
    aggregate = FragmentSpec(
        f"{query_id}-aggregate",
        query_id,
        FragmentKind.AGGREGATE,
        "SELECT window.start AS start, count(*) AS n, max(right) AS most FROM in0 GROUP BY window(ts, '1 minute')",
        (PortSpec("in0", (join.fragment_id,)),),
        event_time="start",
        watermark_lag_ms=60_000,
        stateful=True,
    )
    return lefts, rights, join, aggregate, sink(aggregate.fragment_id, query_id, out)
