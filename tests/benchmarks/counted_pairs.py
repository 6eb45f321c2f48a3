"""A query whose result tells by itself whether a row was lost, doubled, or out of order.

Two streams count at the same rate (Spark's ``rate`` source), a join pairs their numbers, and an aggregate tells of each
key (the number modulo 4) and window how many pairs there were, their least, greatest and sum. As the numbers of a key
follow each other without a gap, so do the rows of a key, in the order of the batches that wrote them.
"""

from __future__ import annotations

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


class PairsReader:
    """Reads the sink's ``folder``, each file once: a run of hours has thousands of them.

    What was read is gone over again by a new reader alone, which finds it, too, if a file was changed afterwards.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._last = ""  # the name of the newest file that was read
        self._files = 0
        self._due = list(range(KEYS))  # of each key, the number that comes next
        self._newest: datetime | None = None
        self._wrong: str | None = None

    def read(self) -> Pairs:
        """What there is now. Nothing is read after something was wrong."""
        paths = sorted(self._folder.glob("*.parquet"))
        new = [path for path in paths if path.name > self._last]
        if self._wrong is None and len(paths) - len(new) != self._files:
            self._wrong = f"{len(paths) - len(new)} files up to {self._last}, where {self._files} were before"
        for path in new:
            if self._wrong is not None:
                break
            self._wrong = self._take(path)
            self._last, self._files = path.name, self._files + 1
        pairs = (sum(self._due) - sum(range(KEYS))) // KEYS
        return Pairs(pairs, self._newest, self._wrong)

    def _take(self, path: Path) -> str | None:
        """What is wrong with a batch. Spark promises no order of its rows: they are taken by number."""
        for row in sorted(parquet.read_table(path).to_pylist(), key=lambda row: int(row["least"])):
            key, n, least, greatest, total = (int(row[name]) for name in ("k", "n", "least", "greatest", "total"))
            last = least + KEYS * (n - 1)
            if least != self._due[key] or greatest != last or 2 * total != n * (least + last):
                return f"{n} pairs from {least} to {greatest} with the sum {total}, where {self._due[key]} was due"
            self._due[key] = last + KEYS
            self._newest = row["start"] if self._newest is None else max(self._newest, row["start"])
        return None


def read_pairs(folder: Path) -> Pairs:
    """Reads all of the sink's ``folder``."""
    return PairsReader(folder).read()
