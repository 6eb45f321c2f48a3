"""A port as a Spark streaming relation: rows of the producers, and the watermark they promised.

Cutting a plan into fragments must not change its result, so Spark must not derive a watermark from the rows it happens
to see here: it has to take the one that travels with the segments (DESIGN: Engine and links). The source therefore
yields, besides the rows, one *control* row per batch that carries the watermark as its event time, and only control
rows pass through Spark's watermark operator. They are removed again right above it.

Spark stores the smallest watermark of a query's operators, not that of each, and reads no source whose offset has not
changed. So after a restart a join would wait for ever for a port that has nothing new, because it has ended, say. An
offset therefore also counts the starts of the query: after each, every port is read once, if only for its control row.

The source is an object of this process that Spark calls, through Py4J, as one of its own (its first interface for
sources, ``Source``). So there is no process per port to be started, and a port without news costs nothing: whoever asks
waits until there is some (docs/decisions/links.md has the figures).
"""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from spark_bridge.arrivals import Arrivals
from spark_bridge.port_inbox import PortInbox
from spark_bridge.segment import body_table

_CONTROL = "__control"
_WATERMARK = "__watermark"


def port_view(spark: SparkSession, source: PortSource, event_time: str | None) -> DataFrame:
    """The stream of a port with the columns of its producers; ``event_time`` carries their watermark."""
    schema = source.rows
    columns = [sf.col(f"`{field.name}`") for field in schema.fields]
    raw = source.relation()
    data = raw.where(~sf.col(_CONTROL)).select(*columns, sf.lit(False).alias(_CONTROL))
    if event_time is None:
        return data.drop(_CONTROL)
    others = [column for field, column in zip(schema.fields, columns, strict=True) if field.name != event_time]
    # The flag must be something that Spark can neither fold nor reorder with a filter: predicates that a join or an
    # aggregate infers (key IS NOT NULL, say) would otherwise be pushed below the watermark operator, where they drop
    # every control row, and the query would never advance. A projection with a non-deterministic column is a barrier
    # to them (`rand() >= 0` would be folded).
    flag = (sf.randn() > sf.lit(-1e9)).alias(_CONTROL)
    control = (
        raw.where(sf.col(_CONTROL))
        .select(sf.col(_WATERMARK).alias(event_time), *others)
        .withWatermark(event_time, "0 seconds")
        .select(*columns, flag)
    )
    # Control first: a union takes the mark of the event-time column from its first side.
    merged = control.union(data)
    return merged.where(~sf.col(_CONTROL) | sf.col(f"`{event_time}`").isNull()).select(*columns)


class PortSource:
    """Spark's handle of one port. Its offsets are ``{"port": name, "segments": count, "starts": count}``."""

    def __init__(
        self, spark: SparkSession, port: str, inbox: PortInbox, arrivals: Arrivals, rows: StructType, starts: int
    ) -> None:
        """``rows`` is the schema of the producers' rows, ``starts`` how often the query has been started, now included."""
        self._spark = spark
        self._jvm: Any = spark._jvm
        self._port = port
        self._inbox = inbox
        self._arrivals = arrivals
        self._starts = starts
        self._told: int | None = None
        #: Control rows hold nulls everywhere, whatever the producers' rows may.
        self.rows = StructType([StructField(field.name, field.dataType, nullable=True) for field in rows.fields])
        self._flagged = StructType(
            [StructField(_CONTROL, BooleanType()), StructField(_WATERMARK, TimestampType()), *self.rows.fields]
        )
        self._arrow = to_arrow_schema(self._flagged, timezone="UTC")
        self._jschema: Any = spark._jsparkSession.parseDataType(self._flagged.json())

    def relation(self) -> DataFrame:
        """The stream of flagged rows."""
        ensure_callback_server_started(self._spark.sparkContext._gateway)
        sql = self._jvm.org.apache.spark.sql
        relation = sql.execution.streaming.runtime.StreamingExecutionRelation
        unnamed = getattr(relation, "$lessinit$greater$default$4")()
        attributes = sql.catalyst.types.DataTypeUtils.toAttributes(self._jschema)
        session: Any = self._spark._jsparkSession
        plan = relation(self, attributes, self._option(None), unnamed, session)
        datasets = getattr(getattr(self._jvm, "org.apache.spark.sql.classic.Dataset$"), "MODULE$")
        return DataFrame(datasets.ofRows(session, plan), self._spark)

    # --- called by Spark, under its names

    def schema(self) -> Any:
        return self._jschema

    def initialOffset(self) -> None:  # noqa: N802
        return None

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        return self._jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset(text)

    def getOffset(self) -> Any:  # noqa: N802
        """What there is to be read by now; waits until that is news."""
        if self._arrivals.wait(self._port) or self._told is None:
            self._told = self._inbox.end()
        if not self._told:
            return self._option(None)
        offset = {"port": self._port, "segments": self._told, "starts": self._starts}
        return self._option(self.deserializeOffset(json.dumps(offset)))

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        """Rows of the segments from ``start`` to ``end``, in order, and the watermark after them."""
        first = 0 if start.isEmpty() else int(json.loads(start.get().json())["segments"])
        rows = self._read(first, int(json.loads(end.json())["segments"]))
        frame = self._spark.createDataFrame(rows, self._flagged)._jdf
        session: Any = self._spark._jsparkSession
        return session.internalCreateDataFrame(frame.queryExecution().toRdd(), frame.schema(), True)

    def commit(self, end: Any) -> None:
        self._inbox.forget(int(json.loads(end.json())["segments"]))

    def stop(self) -> None:
        """The engine stops its pullers, and closes the inbox."""

    def hashCode(self) -> int:  # noqa: N802
        return 0

    def equals(self, other: object) -> bool:
        return other is self

    def toString(self) -> str:  # noqa: N802
        return f"port {self._port}"

    class Java:
        """For Py4J."""

        implements = ("org.apache.spark.sql.execution.streaming.Source",)

    # --- reading

    def _read(self, first: int, last: int) -> pa.Table:
        tables = [
            _with_flags(table, self._arrow) for table in map(body_table, self._inbox.bodies(first, last)) if table
        ]
        watermark_ms = self._inbox.watermark_ms(last)
        if watermark_ms is not None:
            tables.append(_control_row(watermark_ms, self._arrow))
        return pa.concat_tables(tables) if tables else self._arrow.empty_table()

    def _option(self, value: Any) -> Any:
        return self._jvm.scala.Option.apply(value)


def _with_flags(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` as data rows of ``schema``: not control, no watermark."""
    flags = [pa.repeat(pa.scalar(False), table.num_rows), pa.nulls(table.num_rows, schema.field(_WATERMARK).type)]
    columns = [table[field.name].cast(field.type) for field in list(schema)[2:]]
    return pa.table([*flags, *columns], schema=schema)


def _control_row(watermark_ms: int, schema: pa.Schema) -> pa.Table:
    # Our watermark says that later rows are at it or above. Spark's says that they are above it, and drops those at it.
    sparks_ms = watermark_ms - 1
    columns = [pa.array([True]), pa.array([sparks_ms * 1000], pa.int64()).cast(schema.field(_WATERMARK).type)]
    columns += [pa.nulls(1, field.type) for field in list(schema)[2:]]
    return pa.table(columns, schema=schema)
