"""The reference job: SQL by plain Spark over whole files, its result as Parquet, its errors as one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pyarrow import parquet

pytestmark = pytest.mark.spark


def run_job(folder: Path, sql: str) -> subprocess.CompletedProcess[str]:
    (folder / "words.csv").write_text(
        "ts,word\n2013-07-01T00:10:00Z,a\n2013-07-01T00:50:00Z,a\n2013-07-01T01:00:00Z,\n"
    )
    view = {
        "name": "words",
        "path": str(folder / "words.csv"),
        "format": "csv",
        "schema": "ts TIMESTAMP, word STRING",
        "options": {"header": "true"},
    }
    job = folder / "job.json"
    job.write_text(json.dumps({"views": [view], "sql": sql, "out": str(folder / "out")}))
    command = [sys.executable, "-m", "spark_bridge.reference", str(job)]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def test_an_insert_is_computed_as_its_select(tmp_path: Path) -> None:
    done = run_job(
        tmp_path,
        "-- how many\ninsert into counts SELECT unix_timestamp(window.start) AS hour_s, word, count(*) AS n FROM words"
        " GROUP BY window(ts, '1 hour'), word;",
    )
    assert done.returncode == 0, done.stderr
    rows = parquet.read_table(tmp_path / "out").to_pylist()
    assert sorted(rows, key=lambda row: row["hour_s"]) == [
        {"hour_s": 1372636800, "word": "a", "n": 2},
        {"hour_s": 1372640400, "word": None, "n": 1},
    ]


def test_a_query_that_spark_refuses_is_one_line(tmp_path: Path) -> None:
    done = run_job(tmp_path, "SELECT nothing FROM words")
    assert done.returncode == 2
    [line] = [line for line in done.stderr.splitlines() if line.startswith("sbon reference:")]
    assert "nothing" in line
