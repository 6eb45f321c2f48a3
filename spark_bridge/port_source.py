"""A port as a Spark streaming relation: rows of the producers, and the watermark they promised.

Cutting a plan into fragments must not change its result, so Spark must not derive a watermark from the rows it happens
to see here: it has to take the one that travels with the segments (DESIGN: Engine and links). The source therefore
yields, besides the rows, one *control* row per batch that carries the watermark as its event time, and only control
rows pass through Spark's watermark operator. They are removed again right above it.

Spark stores the smallest watermark of a query's operators, not that of each, and reads no source whose offset has not
changed. So after a restart a join would wait for ever for a port that has nothing new, because it has ended, say. An
offset therefore also counts the starts of the query: after each, every port is read once, if only for its control row.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as sf
from pyspark.sql.datasource import DataSource, DataSourceStreamReader, InputPartition
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.streaming.datasource import ReadLimit
from pyspark.sql.types import BooleanType, StructField, StructType, TimestampType

from spark_bridge.port_inbox import PortInbox
from spark_bridge.segment import body_table

_FORMAT = "sbon_port"
_CONTROL = "__control"
_WATERMARK = "__watermark"


def port_view(
    spark: SparkSession, port: str, inbox: Path, producers: Sequence[str], schema: StructType, event_time: str | None
) -> DataFrame:
    """The stream of ``port`` with the columns of ``schema``; ``event_time`` carries the producers' watermark."""
    columns = [sf.col(f"`{field.name}`") for field in schema.fields]
    raw = (
        spark.readStream.format(_FORMAT)
        .option("port", port)
        .option("inbox", str(inbox))
        .option("producers", "\n".join(producers))
        .option("rows", _nullable(schema).json())
        .load()
    )
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


def register_port_source(spark: SparkSession) -> None:
    """Make ports known to ``spark``; once per session."""
    spark.dataSource.register(PortSource)


class PortSource(DataSource):
    """Spark's handle of one port. Options: ``port``, ``inbox`` (path), ``producers`` (lines), ``rows`` (schema)."""

    @classmethod
    def name(cls) -> str:
        return _FORMAT

    def schema(self) -> StructType:
        rows = _struct(self.options["rows"])
        return StructType(
            [StructField(_CONTROL, BooleanType()), StructField(_WATERMARK, TimestampType()), *rows.fields]
        )

    def streamReader(self, schema: StructType) -> PortReader:  # noqa: N802 - Spark's name
        return PortReader(self.options["port"], Path(self.options["inbox"]), self.options["producers"], schema)


class PortRange(InputPartition):
    """Segments ``start`` to ``end`` (exclusive) and the watermark there, read by one task so that order is kept."""

    def __init__(self, start: int, end: int) -> None:
        self.start = start
        self.end = end


class PortReader(DataSourceStreamReader):
    """Runs in a Python process of Spark's; its offsets are ``{"port": name, "segments": count, "starts": count}``."""

    def __init__(self, port: str, inbox: Path, producers: str, schema: StructType) -> None:
        self._port = port
        self._inbox_path = inbox
        self._producers = tuple(producers.splitlines())
        self._schema = schema
        self._starts: int | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return {"port": self._port, "segments": 0, "starts": 0}

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        if self._starts is None:
            # Before the first segment there is no watermark that Spark could have forgotten.
            self._starts = int(start["starts"]) + (1 if start["segments"] else 0)
        return {"port": self._port, "segments": self._inbox.end(), "starts": self._starts}

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        return [PortRange(int(start["segments"]), int(end["segments"]))] if start != end else []

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        assert isinstance(partition, PortRange)
        arrow = to_arrow_schema(self._schema, timezone="UTC")
        for body in self._inbox.bodies(partition.start, partition.end):
            table = body_table(body)
            if table is not None:
                yield from _with_flags(table, arrow).to_batches()
        watermark_ms = self._inbox.watermark_ms(partition.end)
        if watermark_ms is not None:
            yield _control_row(watermark_ms, arrow)

    def commit(self, end: dict[str, Any]) -> None:
        self._inbox.forget(int(end["segments"]))

    @cached_property
    def _inbox(self) -> PortInbox:
        return PortInbox(self._inbox_path, self._producers)


def _with_flags(table: pa.Table, schema: pa.Schema) -> pa.Table:
    """``table`` as data rows of ``schema``: not control, no watermark."""
    flags = [pa.repeat(pa.scalar(False), table.num_rows), pa.nulls(table.num_rows, schema.field(_WATERMARK).type)]
    columns = [table[field.name].cast(field.type) for field in list(schema)[2:]]
    return pa.table([*flags, *columns], schema=schema)


def _control_row(watermark_ms: int, schema: pa.Schema) -> pa.RecordBatch:
    # Our watermark says that later rows are at it or above. Spark's says that they are above it, and drops those at it.
    sparks_ms = watermark_ms - 1
    columns = [pa.array([True]), pa.array([sparks_ms * 1000], pa.int64()).cast(schema.field(_WATERMARK).type)]
    columns += [pa.nulls(1, field.type) for field in list(schema)[2:]]
    return pa.record_batch(columns, schema=schema)


def _nullable(schema: StructType) -> StructType:
    """Control rows hold nulls everywhere, whatever the producer's rows may."""
    return StructType([StructField(field.name, field.dataType, nullable=True) for field in schema.fields])


def _struct(json_text: str) -> StructType:
    return StructType.fromJson(json.loads(json_text))
