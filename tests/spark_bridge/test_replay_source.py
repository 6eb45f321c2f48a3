from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StringType, StructField, StructType, TimestampType

from sbon.errors import ConfigurationError
from spark_bridge.replay_source import ReplayReader, RowRange, load_events

SCHEMA = StructType([StructField("ts", TimestampType()), StructField("k", StringType()), StructField("v", LongType())])
ARROW = pa.schema([("ts", pa.timestamp("us", "UTC")), ("k", pa.string()), ("v", pa.int64())])
CSV = """k,ts,ignored,v
b,2013-07-01T02:00:00Z,x,2
a,2013-07-01T01:00:00Z,x,NA
c,2013-07-01T02:00:00Z,x,3
d,NA,x,4
"""


def reader(folder: Path, path: Path, **options: str) -> ReplayReader:
    return ReplayReader({"path": str(path), "event_time": "ts", "folder": str(folder / "state"), **options}, SCHEMA)


@pytest.fixture
def events(tmp_path: Path) -> Path:
    path = tmp_path / "events.csv"
    path.write_text(CSV)
    return path


def test_events_are_sorted_stably_and_those_without_a_time_are_left_out(events: Path, tmp_path: Path) -> None:
    table = load_events(events, ARROW, "ts", "NA")
    assert table["k"].to_pylist() == ["a", "b", "c"]
    assert table["v"].to_pylist() == [None, 2, 3]
    parquet.write_table(table, tmp_path / "events.parquet")
    assert load_events(tmp_path / "events.parquet", ARROW, "ts", "NA").equals(table)


def test_rows_come_when_they_are_due_and_the_end_is_told(events: Path, tmp_path: Path) -> None:
    replay = reader(tmp_path, events, speedup="3600")
    begin = replay.initialOffset()
    first = replay.latestOffset(begin, ReadAllAvailable())
    assert first == {"row": 1, "end_of_stream": False}
    (tmp_path / "state" / "started_at").write_text("0")  # long ago
    again = reader(tmp_path, events, speedup="3600", max_rows="1")
    second = again.latestOffset(first, ReadAllAvailable())
    assert second == {"row": 2, "end_of_stream": False}
    third = again.latestOffset(second, ReadAllAvailable())
    assert third == {"row": 3, "end_of_stream": True}
    assert again.latestOffset(third, ReadAllAvailable()) == third
    assert [batch["k"].to_pylist() for batch in again.read(RowRange(1, 3))] == [["b", "c"]]


def test_events_are_held_back_until_they_are_let_go(events: Path, tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    replay = reader(tmp_path, events, speedup="1e9", hold_at="2013-07-01T01:30:00+00:00", hold_until=str(gate))
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "started_at").write_text("0")
    held = replay.latestOffset(replay.initialOffset(), ReadAllAvailable())
    assert held == {"row": 1, "end_of_stream": False}
    gate.touch()
    assert replay.latestOffset(held, ReadAllAvailable()) == {"row": 3, "end_of_stream": True}


def test_an_empty_file_ends_at_once(tmp_path: Path) -> None:
    path = tmp_path / "empty.csv"
    path.write_text("ts,k,v\n")
    replay = reader(tmp_path, path)
    assert replay.latestOffset(replay.initialOffset(), ReadAllAvailable()) == {"row": 0, "end_of_stream": True}


@pytest.mark.parametrize("content", ["k,v\na,1\n", "ts,k,v\nyesterday,a,1\n", None])
def test_a_file_that_cannot_be_replayed_is_named(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "broken.csv"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigurationError, match=r"cannot replay .*broken\.csv"):
        load_events(path, ARROW, "ts", "NA")
