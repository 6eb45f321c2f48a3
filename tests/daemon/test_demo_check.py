"""Reading results as rows: files joined, columns by name, times as instants."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from daemon.demo.check import read_rows
from sbon.row_multiset import difference


def test_order_of_files_rows_and_columns_and_the_form_of_times_do_not_matter(tmp_path: Path) -> None:
    aware, naive = pa.timestamp("us", "UTC"), pa.timestamp("ns")
    noon, one = datetime(2013, 7, 1, 12, tzinfo=UTC), datetime(2013, 7, 1, 13, tzinfo=UTC)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    for number, (at, count) in enumerate([(one, 2), (noon, 1)]):
        parquet.write_table(pa.table({"at": pa.array([at], aware), "n": [count]}), ours / f"{number}.parquet")
    times = pa.array([noon.replace(tzinfo=None), one.replace(tzinfo=None)], naive)
    parquet.write_table(pa.table({"n": [1, 2], "at": times}), theirs / "all.parquet")
    assert len(read_rows(ours)) == 2
    assert difference(read_rows(ours), read_rows(theirs)) is None


def test_nothing_written_is_no_rows(tmp_path: Path) -> None:
    assert read_rows(tmp_path) == []
