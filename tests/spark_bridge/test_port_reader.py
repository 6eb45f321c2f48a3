from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from sbon.fragment import END_OF_STREAM_MS, WatermarkSteps
from spark_bridge import port_reader
from spark_bridge.arrivals import Arrivals
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.port_reader import PortReader

SCHEMA = StructType([StructField("v", LongType())])


def rows(values: list[int]) -> bytes:
    sink = pa.BufferOutputStream()
    table = pa.table({"v": values})
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def test_a_port_is_read_once_after_each_start_even_if_it_has_nothing_new(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))

    def started(number: int) -> tuple[PortReader, Arrivals]:
        reader, arrivals = PortReader("in0", SCHEMA), Arrivals(0.0)
        reader.open(inbox, arrivals, number)
        return reader, arrivals

    def read(reader: PortReader, start: str | None, end: str) -> list[tuple[object, ...]]:
        return [tuple(row.values()) for row in reader.read(start, end).to_pylist()]

    first, arrivals = started(1)
    assert first.next_offset() is None, "no batch before the first segment"
    inbox.append(Segment("p", 1, 0, 1, 2000, rows([7])))
    arrivals.tell(1)
    read_all = first.next_offset()
    assert read_all is not None
    data, control = read(first, None, read_all)
    assert data == (False, None, 7)
    assert control[0] is True
    arrivals.batch_begins()
    assert first.next_offset() == read_all

    second, arrivals = started(2)
    told_again = second.next_offset()
    assert told_again is not None
    assert told_again != read_all
    assert read(second, read_all, told_again) == [control]
    arrivals.batch_begins()
    assert second.next_offset() == told_again, "once, and then it rests"


def test_a_batch_that_was_read_for_good_is_empty_when_spark_asks_for_it_again(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    inbox.append(Segment("p", 1, 0, 1, None, rows([7])))
    reader = PortReader("in0", SCHEMA)
    reader.open(inbox, Arrivals(0.0), 1)
    end = reader.next_offset()
    assert end is not None
    assert reader.read(None, end).num_rows == 1
    reader.commit(end)
    assert reader.read(None, end).num_rows == 0


@pytest.mark.parametrize(
    ("watermark_ms", "whole_ms", "stepped_ms"),
    [
        (1000, 999, 0),
        (2499, 2498, 0),
        (2500, 2499, 2500),  # windows that end there have all their rows, others lose none
        (2501, 2500, 2500),
        (END_OF_STREAM_MS, END_OF_STREAM_MS - 1, END_OF_STREAM_MS - 1),
    ],
)
def test_an_aggregate_is_told_of_a_watermark_when_that_closes_windows(
    tmp_path: Path, watermark_ms: int, whole_ms: int, stepped_ms: int
) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    inbox.append(Segment("p", 1, 0, 1, watermark_ms, b""))
    for steps, told_ms in ((None, whole_ms), (WatermarkSteps(2500), stepped_ms)):
        reader = PortReader("in0", SCHEMA, steps)
        reader.open(inbox, Arrivals(0.0), 1)
        end = reader.next_offset()
        assert end is not None
        [told] = reader.read(None, end)["__watermark"].cast(pa.int64()).to_pylist()
        assert told == told_ms * 1000


def test_a_batch_takes_no_more_than_memory_is_meant_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    size_bytes = len(rows([0]))
    monkeypatch.setattr(port_reader, "MOST_BYTES", 2 * size_bytes)
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    for batch_id in range(5):
        inbox.append(Segment("p", 1, batch_id, 1, None, rows([batch_id])))
    arrivals = Arrivals(0.0)
    reader = PortReader("in0", SCHEMA)
    reader.open(inbox, arrivals, 1)
    taken, offsets = [], [None, *(told(reader, arrivals) for _ in range(3))]
    for start, end in itertools.pairwise(offsets):
        assert end is not None
        taken.append(reader.read(start, end)["v"].to_pylist())
    assert taken == [[0, 1], [2, 3], [4]]
    assert told(reader, arrivals) == offsets[-1], "that was all"

    again = PortReader("in0", SCHEMA)
    again.open(inbox, Arrivals(0.0), 2, planned=4)
    end = again.next_offset()
    assert end is not None
    assert again.read(offsets[2], end)["v"].to_pylist() == [4], "it does not go back behind what was planned"


def test_a_segment_that_is_too_large_comes_without_others(tmp_path: Path) -> None:
    inbox = PortInbox(tmp_path / "in0.sqlite", ("p",))
    inbox.append(Segment("p", 1, 0, 3, None, rows([7, 8, 9])))
    inbox.append(Segment("p", 1, 1, 0, 5, b""))
    inbox.append(Segment("p", 1, 2, 1, None, rows([1])))
    assert [inbox.end_within(start, 1) for start in range(4)] == [2, 2, 3, 3], "those without rows come along"


def told(reader: PortReader, arrivals: Arrivals) -> str | None:
    offset = reader.next_offset()
    arrivals.batch_begins()
    return offset
