"""What Spark is told of a port: how far it can be read, and what stands between two offsets.

Cutting a plan into fragments must not change its result, so Spark must not derive a watermark from the rows it happens
to see here: it has to take the one that travels with the segments (DESIGN: Engine and links). So besides the rows there
is one *control* row per batch, which carries the watermark as its event time.

Spark runs a batch without input whenever its watermark has moved. So an aggregate is told of a watermark only when that
closes windows.

Spark stores the smallest watermark of a query's operators, not that of each, and reads no source whose offset has not
changed. So after a restart a join would wait for ever for a port that has nothing new, because it has ended, say. An
offset therefore also counts the starts of the query: after each, every port is read once, if only for its control row.
"""

from __future__ import annotations

import json
from typing import Final

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from sbon.fragment import END_OF_STREAM_MS, WatermarkSteps
from spark_bridge.arrivals import Arrivals
from spark_bridge.port_inbox import PortInbox
from spark_bridge.segment import body_table

#: A batch takes no more of a port, unless one segment has more: who has much to catch up with, after an outage or at a
#: start, would need as much memory.
MOST_BYTES: Final = 32_000_000
CONTROL = "__control"
WATERMARK = "__watermark"


class PortReader:
    """Of one port, for one start of a query. Offsets are JSON: ``{"port": name, "segments": count, "starts": count}``.

    ``rows`` is the schema of the producers' rows, ``schema`` that of what is read: with CONTROL and WATERMARK in front.
    ``steps``: what Spark is told of the watermark, None: all of it. Nothing can be read before :meth:`open`.
    """

    _inbox: PortInbox
    _arrivals: Arrivals
    _starts: int
    #: Up to where batches were planned.
    _planned: int

    def __init__(self, port: str, rows: StructType, steps: WatermarkSteps | None = None) -> None:
        self._port = port
        self._steps = steps
        self._segments: int | None = None
        # Control rows hold nulls everywhere, whatever the producers' rows may.
        self.rows = StructType([StructField(field.name, field.dataType, nullable=True) for field in rows.fields])
        flags = [StructField(CONTROL, BooleanType()), StructField(WATERMARK, TimestampType())]
        self.schema = StructType([*flags, *self.rows.fields])
        self._arrow = to_arrow_schema(self.schema, timezone="UTC")

    def open(self, inbox: PortInbox, arrivals: Arrivals, starts: int, planned: int = 0) -> None:
        """Read from ``inbox``; this is the start number ``starts`` of the query, which has planned to read up to
        segment ``planned`` before."""
        self._inbox, self._arrivals, self._starts, self._planned = inbox, arrivals, starts, planned

    def next_offset(self) -> str | None:
        """Up to where there is something to be read, None if there never was anything; waits for news."""
        if self._arrivals.wait(self._port) or self._segments is None:
            end = self._inbox.end_within(self._planned, MOST_BYTES)
            if end and end != self._segments:
                self._arrivals.found()
            if end < self._inbox.end():
                self._arrivals.left(self._port)
            self._segments = self._planned = end
        if not self._segments:
            return None
        return json.dumps({"port": self._port, "segments": self._segments, "starts": self._starts})

    def read(self, start: str | None, end: str) -> pa.Table:
        """Rows of the segments between two offsets, in order, and the watermark after them."""
        first, last = 0 if start is None else _segments(start), _segments(end)
        tables = [
            _with_flags(table, self._arrow) for table in map(body_table, self._inbox.bodies(first, last)) if table
        ]
        watermark_ms = self._inbox.watermark_ms(last)
        if watermark_ms is not None:
            tables.append(_control_row(self._sparks_ms(watermark_ms), self._arrow))
        return pa.concat_tables(tables) if tables else self._arrow.empty_table()

    def _sparks_ms(self, watermark_ms: int) -> int:
        """Our watermark says that later rows are at it or above. Spark's says that they are above it, and drops those
        at it, but for an aggregate: it drops rows of windows that end there, and such a row is in a later one."""
        if self._steps is None or watermark_ms >= END_OF_STREAM_MS:
            return watermark_ms - 1
        return self._steps.reached_ms(watermark_ms)

    def commit(self, end: str) -> None:
        """What stands before ``end`` was read for good."""
        self._inbox.forget(_segments(end))


def _segments(offset: str) -> int:
    return int(json.loads(offset)["segments"])


def _with_flags(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` as data rows of ``schema``: not control, no watermark."""
    flags = [pa.repeat(pa.scalar(False), table.num_rows), pa.nulls(table.num_rows, schema.field(WATERMARK).type)]
    columns = [table[field.name].cast(field.type) for field in list(schema)[2:]]
    return pa.table([*flags, *columns], schema=schema)


def _control_row(sparks_ms: int, schema: pa.Schema) -> pa.Table:
    columns = [pa.array([True]), pa.array([sparks_ms * 1000], pa.int64()).cast(schema.field(WATERMARK).type)]
    columns += [pa.nulls(1, field.type) for field in list(schema)[2:]]
    return pa.table(columns, schema=schema)
