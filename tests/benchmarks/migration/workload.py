"""Queries with as much state as is wanted, and a trickle that makes them put something out all the time."""

from __future__ import annotations

import random
from datetime import timedelta
from pathlib import Path

import msgspec
import pyarrow as pa
from pyarrow import parquet

from sbon.streams import StreamSpec
from spark_bridge.session import STATE_STORE_PROVIDER
from tests.benchmarks.links.workload import SCHEMA, START

STATE_ROW_BYTES = 1000
TRICKLE = timedelta(milliseconds=200)
_TRICKLE_S = 3600
#: As ``{lefts}`` and ``{rights}``. Each row of ``lefts`` finds one of ``rights``, all of which stay in the state.
JOIN = (
    "SELECT l.ts AS ts, l.v AS v, r.text AS text FROM {lefts} l JOIN {rights} r "
    "ON l.v = r.v AND r.ts BETWEEN l.ts - INTERVAL 1 DAY AND l.ts"
)
#: Windows of a second of ``lefts`` close all the time, that of ``rights``, which is far in the future, never.
AGGREGATE = (
    "SELECT window.start AS start, v, max(text) AS text, count(*) AS n "
    "FROM (SELECT ts, v, text FROM {lefts} UNION ALL SELECT ts, v, text FROM {rights}) "
    "GROUP BY window(ts, '1 second'), v"
)
#: Spark's own: the state is in the heap.
HEAP_STORE = {STATE_STORE_PROVIDER: "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider"}
QUERIES = {"join": JOIN, "aggregate": AGGREGATE}


class PlainJob(msgspec.Struct, frozen=True):
    """What the plain Spark process does: run ``sql`` over ``streams``, stop and start it ``restarts`` times.

    ``folder`` takes the checkpoint, the results (``out``) and, for each restart, the times of the stop and of the start
    (s since the epoch, ``restarts.json``).
    """

    folder: str
    streams: tuple[StreamSpec, ...]
    sql: str
    restarts: int
    settle_s: float
    settings: dict[str, str]


def streams(folder: Path, kind: str, state_bytes: int, name: str = "") -> tuple[StreamSpec, StreamSpec]:
    """``lefts``, the trickle of an hour, and ``rights``, rows that are all there at once: the state."""
    state_rows = max(1, state_bytes // STATE_ROW_BYTES)
    count = int(_TRICKLE_S / TRICKLE.total_seconds())
    start_us, gap_us = int(START.timestamp() * 1e6), TRICKLE // timedelta(microseconds=1)
    end_us = start_us + count * gap_us
    trickle = _table([start_us + number * gap_us for number in range(count)], state_rows, 0)
    at_us = start_us if kind == "join" else start_us + 86_400_000_000
    # One more at the end, so that the stream does not end before.
    state = _table([at_us] * state_rows + [at_us + end_us - start_us], state_rows, STATE_ROW_BYTES)
    found = []
    for stream, table in (("lefts", trickle), ("rights", state)):
        file = folder / f"{name}{stream}.parquet"
        parquet.write_table(table, file)
        found.append(StreamSpec(f"{name}{stream}", "replay", SCHEMA, "ts", {"path": str(file)}))
    return found[0], found[1]


def _table(times_us: list[int], keys: int, text_bytes: int) -> pa.Table:
    """Texts that no compression of a state store makes much smaller."""
    rng = random.Random(1)
    return pa.table(
        {
            "ts": pa.array(times_us).cast(pa.timestamp("us", "UTC")),
            "v": pa.array([number % keys for number in range(len(times_us))], pa.int64()),
            "text": pa.array([rng.randbytes(text_bytes // 2).hex() for _ in times_us]),
        }
    )
