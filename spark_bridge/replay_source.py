"""Replay: a file of past events played as a live stream, in event-time order, at a chosen speed-up.

Offsets are row numbers in event-time order, so a restarted query goes on at the exact row. The clock of the replay is
anchored once, when the fragment first starts, and kept with it: what would have happened during an outage has happened
when the source is back, as with any live stream.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import csv, parquet
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import StructType

from sbon.errors import ConfigurationError
from spark_bridge.durable import write_durably

REPLAY_FORMAT = "replay"
_DEFAULT_MAX_ROWS = 50_000


def register_replay_source(spark: SparkSession) -> None:
    """Make ``format = "replay"`` known to ``spark``; once per session."""
    spark.dataSource.register(ReplaySource)


class ReplaySource(DataSource):
    """Spark's handle of a replayed file. Options:

    ``path`` (CSV, gzip allowed, with a header line; or Parquet), ``event_time`` (column), ``folder`` (where the sorted
    copy and the clock's anchor are kept), ``speedup`` (event seconds per second, default 1), ``null`` (how CSV spells
    a missing value besides the empty one, default NA), ``max_rows`` (per micro-batch), ``start_delay_s`` (a pause
    before the first event), ``hold_at`` (a time in ISO format) with ``hold_until`` (a path): events after it are held
    back until there is such a file. Rows without an event time are left out.
    """

    @classmethod
    def name(cls) -> str:
        return REPLAY_FORMAT

    def streamReader(self, schema: StructType) -> ReplayReader:  # noqa: N802 - Spark's name
        return ReplayReader(dict(self.options), schema)


class RowRange(InputPartition):
    """Rows ``start`` to ``end`` (exclusive) in event-time order."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class ReplayReader(DataSourceStreamReader):
    """Runs in a Python process of Spark's; offsets are ``{"row": number, "end_of_stream": reached the last row}``."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._options = options
        self._schema = schema

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"row": 0, "end_of_stream": False}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        row = max(int(start["row"]), self._rows_due(time.time()))
        row = min(row, int(start["row"]) + int(self._options.get("max_rows", _DEFAULT_MAX_ROWS)))
        return {"row": row, "end_of_stream": row >= self._table.num_rows}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [RowRange(int(start["row"]), int(end["row"]))] if end["row"] > start["row"] else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, RowRange)
        yield from self._table.slice(partition.start, partition.end - partition.start).to_batches()

    def _rows_due(self, now: float) -> int:
        """How many rows have happened by wall-clock time ``now``."""
        times_us = self._times_us
        if not len(times_us):
            return 0
        delay_s = float(self._options.get("start_delay_s", 0))
        elapsed_s = max(now - self._started_at, 0.0) - delay_s
        played_s = elapsed_s * float(self._options.get("speedup", 1))
        if played_s < 0:
            return 0
        reached_us = min(times_us[0] + played_s * 1e6, self._held_at_us)
        return int(np.searchsorted(times_us, reached_us, side="right"))

    @property
    def _held_at_us(self) -> float:
        if "hold_at" not in self._options or Path(self._options["hold_until"]).exists():
            return math.inf
        return datetime.fromisoformat(self._options["hold_at"]).timestamp() * 1e6

    @cached_property
    def _table(self) -> pa.Table:
        """All rows in event-time order, mapped from a copy that is made once per fragment."""
        copy = self._folder / "sorted.arrow"
        if not copy.exists():
            arrow = to_arrow_schema(self._schema, timezone="UTC")
            table = load_events(Path(self._options["path"]), arrow, self._event_time, self._options.get("null", "NA"))
            sink = pa.BufferOutputStream()
            with pa.ipc.new_file(sink, arrow) as writer:
                writer.write_table(table)
            write_durably(copy, sink.getvalue().to_pybytes())
        return pa.ipc.open_file(pa.memory_map(str(copy))).read_all()

    @cached_property
    def _times_us(self) -> npt.NDArray[np.int64]:
        column = self._table[self._event_time].cast(pa.timestamp("us", "UTC")).cast(pa.int64())
        return column.to_numpy()  # type: ignore[no-any-return]

    @cached_property
    def _started_at(self) -> float:
        anchor = self._folder / "started_at"
        if not anchor.exists():
            write_durably(anchor, repr(time.time()).encode())
        return float(anchor.read_text())

    @cached_property
    def _folder(self) -> Path:
        folder = Path(self._options["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    @property
    def _event_time(self) -> str:
        return self._options["event_time"]


def load_events(path: Path, schema: pa.Schema, event_time: str, null: str) -> pa.Table:
    """Read a CSV or Parquet file as ``schema``, sorted by ``event_time`` (stable), rows without it left out.

    Raises ConfigurationError, naming the file, if it cannot be read so.
    """
    try:
        if path.suffix == ".parquet":
            table = parquet.read_table(path, columns=schema.names).cast(schema)
        else:
            convert = csv.ConvertOptions(
                column_types={field.name: _csv_type(field.type) for field in schema},
                include_columns=schema.names,
                null_values=["", null],
                strings_can_be_null=True,
            )
            table = csv.read_csv(path, convert_options=convert).cast(schema)
    except (OSError, pa.ArrowException, KeyError) as error:
        raise ConfigurationError(f"cannot replay {path}: {str(error).splitlines()[0]}") from None
    table = table.filter(pc.is_valid(table[event_time]))
    # Equal times keep the order of the file: offsets must mean the same rows whenever they are computed.
    order = np.argsort(table[event_time].cast(pa.int64()).to_numpy(), kind="stable")
    return table.take(pa.array(order))


def _csv_type(wanted: pa.DataType) -> pa.DataType:
    """CSV has no integers with a fraction or with exponents; everything else is parsed as what it is to become."""
    return pa.timestamp("us", "UTC") if pa.types.is_timestamp(wanted) else wanted
