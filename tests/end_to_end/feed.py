"""A real month of flights and weather as files that a test puts into folders, a part at a time: nothing depends on how
fast the machine is."""

from __future__ import annotations

import csv
import gzip
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from daemon.demo.scenario import DATA

#: Rows of a time so late that all windows close; they match nothing and give no result.
SENTINELS = {
    "flights": "2013-12-01T00:00:00Z,XX,0,XXX,YYY,0",
    "weather": "2013-12-01T00:00:00Z,ZZZ,0,0,0,10",
}

#: Every flight that left in bad weather: the join of the demo's query, and nothing else.
JOINED = """
INSERT INTO joined
SELECT a.dep_delay AS dep_delay, a.ts AS ts, a.origin AS origin
FROM weather b JOIN flights a ON b.origin = a.origin AND a.ts BETWEEN b.ts AND b.ts + INTERVAL 59 MINUTES
WHERE a.dep_delay IS NOT NULL AND (b.visib < 5 OR b.wind_speed > 15 OR b.precip > 0)
"""
#: Rows of a day after all windows have closed: one pair that matches.
LATER = {"flights": "2013-12-02T00:30:00Z,XX,0,EWR,YYY,7", "weather": "2013-12-02T00:00:00Z,EWR,0,99,0,0"}


@dataclass(frozen=True, slots=True)
class Feed:
    """The folders that the streams are read from; :meth:`put` lets days of July (from, until) happen."""

    folder: Path

    def put(self, first_day: int, end_day: int, *, last: bool = False) -> None:
        for name, sentinel in SENTINELS.items():
            with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
                header, *rows = csv.reader(file)
            # The last day of the month in New York ends on the first of August in UTC.
            chosen = [
                ",".join(row) for row in rows if first_day <= int(row[0][8:10]) + 31 * (row[0][6] == "8") < end_day
            ]
            lines = [",".join(header), *chosen, *([sentinel] if last else [])]
            self._put(name, f"{first_day:02}.csv", lines)

    def put_later(self) -> None:
        """Let the day after everything happen."""
        for name, row in LATER.items():
            with gzip.open(DATA / f"{name}.csv.gz", "rt", newline="") as file:
                self._put(name, "later.csv", [file.readline().strip(), row])

    def _put(self, name: str, file_name: str, lines: list[str]) -> None:
        whole = self.folder / f"{name}.part"
        whole.write_text("\n".join([*lines, ""]))
        whole.rename(self.folder / name / file_name)

    def rows(self, name: str) -> list[dict[str, str]]:
        """All that was put there."""
        files = sorted((self.folder / name).glob("*.csv"))
        return [row for path in files for row in csv.DictReader(path.read_text().splitlines())]

    def joined(self, from_ms: int | None) -> Counter[tuple[int, str, datetime]]:
        """What JOINED gives of all that was put there, from some event time on."""
        bad: Counter[tuple[str, str]] = Counter()
        for row in self.rows("weather"):
            visib, wind_speed, precip = (float(row[name] or "nan") for name in ("visib", "wind_speed", "precip"))
            if visib < 5 or wind_speed > 15 or precip > 0:
                assert row["ts"][14:19] == "00:00", "observed at each full hour"
                bad[row["origin"], row["ts"][:13]] += 1
        found: Counter[tuple[int, str, datetime]] = Counter()
        for row in self.rows("flights"):
            at = datetime.fromisoformat(row["ts"])
            if row["dep_delay"] and (from_ms is None or at.timestamp() * 1000 >= from_ms):
                found[int(row["dep_delay"]), row["origin"], at] += bad[row["origin"], row["ts"][:13]]
        return +found
