"""A port as a Spark streaming relation: rows of the producers, and the watermark they promised (see port_reader).

Only control rows pass through Spark's watermark operator, and they are removed again right above it.

The source is an object of this process that Spark calls, through Py4J, as one of its own (its first interface for
sources, ``Source``). So there is no process per port to be started, and a port without news costs nothing: whoever asks
waits until there is some (docs/decisions/links.md).
"""

from __future__ import annotations

from typing import Any, cast

from pyspark.java_gateway import ensure_callback_server_started
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf

from spark_bridge.port_reader import CONTROL, WATERMARK, PortReader
from spark_bridge.small_batches import BatchSizes


def port_view(spark: SparkSession, reader: PortReader, sizes: BatchSizes, event_time: str | None) -> DataFrame:
    """The stream of a port with the columns of its producers; ``event_time`` carries their watermark. ``sizes``: of the
    query that is to read it."""
    columns = [sf.col(f"`{field.name}`") for field in reader.rows.fields]
    raw = PortSource(spark, reader, sizes).relation()
    data = raw.where(~sf.col(CONTROL)).select(*columns, sf.lit(False).alias(CONTROL))
    if event_time is None:
        return data.drop(CONTROL)
    others = [column for field, column in zip(reader.rows.fields, columns, strict=True) if field.name != event_time]
    # The flag must be something that Spark can neither fold nor reorder with a filter: predicates that a join or an
    # aggregate infers (key IS NOT NULL, say) would otherwise be pushed below the watermark operator, where they drop
    # every control row, and the query would never advance. A projection with a non-deterministic column is a barrier
    # to them. (Not a random one: each batch gets another seed, which stands in the code that is generated from the
    # plan, and so has it compiled anew.)
    flag = (sf.spark_partition_id() >= sf.lit(0)).alias(CONTROL)
    control = (
        raw.where(sf.col(CONTROL))
        .select(sf.col(WATERMARK).alias(event_time), *others)
        .withWatermark(event_time, "0 seconds")
        .select(*columns, flag)
    )
    # Control first: a union takes the mark of the event-time column from its first side.
    merged = control.union(data)
    return merged.where(~sf.col(CONTROL) | sf.col(f"`{event_time}`").isNull()).select(*columns)


class PortSource:
    """Spark's handle of one port: ``org.apache.spark.sql.execution.streaming.Source`` around a :class:`PortReader`."""

    def __init__(self, spark: SparkSession, reader: PortReader, sizes: BatchSizes) -> None:
        self._spark = spark
        self._reader = reader
        self._sizes = sizes
        self._jvm = jvm = cast("Any", spark._jvm)
        # Each step of such a path is a question to Java, which looks for a class of that name in all of its jars first.
        self._offset_of = jvm.org.apache.spark.sql.execution.streaming.runtime.SerializedOffset
        self._option = jvm.scala.Option.apply
        self._session: Any = spark._jsparkSession
        self._schema: Any = self._session.parseDataType(reader.schema.json())
        #: The last answers. Py4J tells Java the name of an object that is answered, and in a thread of its own has Java
        #: forget objects that Python has forgotten: Java may not have looked at the name yet, and then reads null.
        self._offset: Any = None
        self._batch: Any = None

    def relation(self) -> DataFrame:
        """The stream of what is read, as Spark's own sources make theirs."""
        ensure_callback_server_started(self._spark.sparkContext._gateway)
        sql = self._jvm.org.apache.spark.sql
        relation = sql.execution.streaming.runtime.StreamingExecutionRelation
        unnamed = getattr(relation, "$lessinit$greater$default$4")()
        attributes = sql.catalyst.types.DataTypeUtils.toAttributes(self._schema)
        plan = relation(self, attributes, self._option(None), unnamed, self._session)
        datasets = getattr(getattr(self._jvm, "org.apache.spark.sql.classic.Dataset$"), "MODULE$")
        return DataFrame(datasets.ofRows(self._session, plan), self._spark)

    # --- called by Spark, under its names

    def schema(self) -> Any:
        return self._schema

    def initialOffset(self) -> None:  # noqa: N802
        return None

    def deserializeOffset(self, text: str) -> Any:  # noqa: N802
        self._offset = self._offset_of(text)
        return self._offset

    def getOffset(self) -> Any:  # noqa: N802
        self._sizes.begins()
        offset = self._reader.next_offset()
        self._offset = self._option(None if offset is None else self._offset_of(offset))
        return self._offset

    def getBatch(self, start: Any, end: Any) -> Any:  # noqa: N802
        rows = self._reader.read(None if start.isEmpty() else start.get().json(), end.json())
        self._batch = self._sizes.stream(rows, self._reader.schema)
        return self._batch

    def commit(self, end: Any) -> None:
        self._reader.commit(end.json())

    def stop(self) -> None:
        """Whoever made the reader closes what it reads."""

    def hashCode(self) -> int:  # noqa: N802
        return 0

    def equals(self, other: object) -> bool:
        return other is self

    def toString(self) -> str:  # noqa: N802
        return "a port of sbon"

    class Java:
        """For Py4J."""

        implements = ("org.apache.spark.sql.execution.streaming.Source",)
