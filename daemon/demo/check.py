"""Is the result right? The same SQL by plain Spark over the whole files, in one process, compared row for row."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import trio
from pyarrow import parquet, timestamp, types

from sbon.errors import SbonError
from sbon.row_multiset import difference
from sbon.streams import StreamSpec


class Verdict(msgspec.Struct, frozen=True):
    """``difference`` is None if the result is identical, otherwise one line about the first difference."""

    rows: int
    difference: str | None

    @property
    def identical(self) -> bool:
        return self.difference is None


def read_rows(folder: Path) -> list[tuple[object, ...]]:
    """All rows of the Parquet files in ``folder``, columns in the order of their names, times in UTC microseconds."""
    rows: list[tuple[object, ...]] = []
    for file in sorted(folder.glob("*.parquet")):
        table = parquet.read_table(file)
        table = table.select(sorted(table.column_names))
        for at, field in enumerate(table.schema):
            if types.is_timestamp(field.type):
                table = table.set_column(at, field.name, table.column(at).cast(timestamp("us", "UTC")))
        rows += zip(*(column.to_pylist() for column in table.columns), strict=True)
    return rows


async def compute_reference(sql: str, streams: Sequence[StreamSpec], scratch: Path) -> Path:
    """Run ``sql`` over the files that ``streams`` replay; the folder with the result. SbonError if that fails."""
    out = scratch / "reference"
    views = [
        {
            "name": stream.name,
            "path": stream.options["path"],
            "format": "parquet" if stream.options["path"].endswith(".parquet") else "csv",
            "schema": stream.schema,
            "options": {"header": "true"},
        }
        for stream in streams
    ]
    job = scratch / "reference.json"
    job.write_bytes(msgspec.json.encode({"views": views, "sql": sql, "out": str(out)}))
    command = [sys.executable, "-m", "spark_bridge.reference", str(job)]
    done = await trio.run_process(command, capture_stderr=True, check=False, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise SbonError(f"the reference run failed: {done.stderr.decode(errors='replace').strip().splitlines()[-1]}")
    return out


async def compare_with_reference(result: Path, sql: str, streams: Sequence[StreamSpec], scratch: Path) -> Verdict:
    """Compare the Parquet files in ``result`` with what ``sql`` must give."""
    expected = read_rows(await compute_reference(sql, streams, scratch))
    rows = read_rows(result)
    return Verdict(len(rows), difference(rows, expected))
