from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import BooleanType, LongType, StructField, StructType, TimestampType

from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.port_source import PortRange, PortReader

SCHEMA = StructType(
    [
        StructField("__control", BooleanType()),
        StructField("__watermark", TimestampType()),
        StructField("v", LongType()),
    ]
)


def rows(values: list[int]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"v": values})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_port_is_read_once_after_each_start_even_if_it_has_nothing_new(tmp_path: Path) -> None:
    path = tmp_path / "in0.sqlite"
    inbox = PortInbox(path, ("p",))

    def started() -> PortReader:
        return PortReader("in0", path, "p", SCHEMA)

    def read(reader: PortReader, start: dict[str, object], end: dict[str, object]) -> list[tuple[object, ...]]:
        (part,) = reader.partitions(start, end)
        assert isinstance(part, PortRange)
        return [tuple(row.values()) for batch in reader.read(part) for row in batch.to_pylist()]

    first = started()
    begin = first.initialOffset()
    assert first.latestOffset(begin, ReadAllAvailable()) == begin, "no batch before the first segment"
    inbox.append(Segment("p", 1, 0, 1, 2000, rows([7])))
    read_all = first.latestOffset(begin, ReadAllAvailable())
    data, control = read(first, begin, read_all)
    assert data == (False, None, 7)
    assert control[0] is True
    assert first.latestOffset(read_all, ReadAllAvailable()) == read_all

    second = started()
    told_again = second.latestOffset(read_all, ReadAllAvailable())
    assert read(second, read_all, told_again) == [control]
    assert second.latestOffset(told_again, ReadAllAvailable()) == told_again, "once, and then it rests"
    assert second.partitions(told_again, told_again) == []
