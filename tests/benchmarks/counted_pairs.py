"""A query whose result tells by itself whether a row was lost, doubled, or out of order.

Two streams count at the same rate (Spark's ``rate`` source), a join pairs their numbers, and an aggregate tells of each
key (the number modulo 4) and window how many pairs there were, their least, greatest and sum. As the numbers of a key
follow each other without a gap, so do the rows of a key, in the order of the batches that wrote them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from pyarrow import parquet

from sbon.streams import SinkSpec, StreamSpec

KEYS = 4
_SQL = """
INSERT INTO pairs
SELECT window.start AS start, k, count(*) AS n, min(value) AS least, max(value) AS greatest, sum(value) AS total
FROM (
  SELECT a.timestamp AS ts, a.value AS value, a.value % {keys} AS k FROM ticks a JOIN tocks b
  ON a.value = b.value AND a.timestamp
  BETWEEN b.timestamp - INTERVAL {apart_s} SECONDS AND b.timestamp + INTERVAL {apart_s} SECONDS
)
GROUP BY window(ts, '{window_s} seconds'), k
"""


def counted_pairs(window_s: int = 10, apart_s: int = 60) -> str:
    """``apart_s``: by how much the streams may begin one after the other. So much later come the windows."""
    return _SQL.format(keys=KEYS, window_s=window_s, apart_s=apart_s)


def counting_stream(name: str, rows_per_s: int) -> StreamSpec:
    """``ticks`` or ``tocks``."""
    options = {"rowsPerSecond": str(rows_per_s)}
    schema = "timestamp TIMESTAMP, value BIGINT"
    return StreamSpec(name, "rate", schema, "timestamp", options, 0.0, rows_per_s * 16.0, 16.0)


def pairs_sink(folder: Path) -> SinkSpec:
    return SinkSpec("pairs", "parquet", {"path": str(folder)})


@dataclass(frozen=True, slots=True)
class Pairs:
    """What is in the sink: how many pairs, the begin of the newest window, and what is wrong, if anything."""

    pairs: int
    newest: datetime | None
    wrong: str | None


def read_pairs(folder: Path) -> Pairs:
    """Reads all of the sink's ``folder``."""
    due = list(range(KEYS))  # of each key, the number that comes next
    newest = None
    for row in _rows(folder):
        key, n, least, greatest, total = (int(str(row[name])) for name in ("k", "n", "least", "greatest", "total"))
        last = least + KEYS * (n - 1)
        if least != due[key] or greatest != last or 2 * total != n * (least + last):
            wrong = f"{n} pairs from {least} to {greatest} with the sum {total}, where {due[key]} was due"
            return Pairs(_counted(due), newest, wrong)
        due[key] = last + KEYS
        start = row["start"]
        assert isinstance(start, datetime)
        newest = start if newest is None else max(newest, start)
    return Pairs(_counted(due), newest, None)


def _counted(due: list[int]) -> int:
    return (sum(due) - sum(range(KEYS))) // KEYS


def _rows(folder: Path) -> Iterator[dict[str, object]]:
    """In the order of the batches. Within a batch Spark promises none: there by number."""
    for path in sorted(folder.glob("*.parquet")):
        yield from sorted(parquet.read_table(path).to_pylist(), key=lambda row: int(row["least"]))
