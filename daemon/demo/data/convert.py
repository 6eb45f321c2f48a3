"""How the files beside this one were made: ``python convert.py FOLDER``, FOLDER with the sources of README.md."""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np

HERE = Path(__file__).parent
CITIES = ("New York", "Asheville", "London", "Washington", "Chicago")
FLIGHTS = ("carrier", "flight", "origin", "dest", "dep_delay")
WEATHER = ("origin", "temp", "wind_speed", "precip", "visib")


def read(path: Path) -> list[dict[str, str]]:
    with gzip.open(path, "rt", newline="") as file:
        return list(csv.DictReader(file))


def write(path: Path, columns: tuple[str, ...], rows: Iterable[tuple[datetime, dict[str, str]]]) -> None:
    """Write ``ts`` and ``columns`` in event-time order; missing values (NA) become empty."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["ts", *columns])
    for ts, row in sorted(rows, key=lambda pair: pair[0]):
        writer.writerow(
            [ts.strftime("%Y-%m-%dT%H:%M:%SZ"), *("" if row[name] == "NA" else row[name] for name in columns)]
        )
    path.write_bytes(gzip.compress(text.getvalue().encode(), 9, mtime=0))


def hour(row: dict[str, str]) -> datetime:
    return datetime.fromisoformat(row["time_hour"])


def main(folder: Path) -> None:
    flights = read(folder / "nycflights13_2013-07_flights.csv.gz")
    departures = ((hour(row) + timedelta(minutes=int(row["minute"])), row) for row in flights)
    write(HERE / "flights.csv.gz", FLIGHTS, departures)
    weather = read(folder / "nycflights13_2013-07_weather.csv.gz")
    write(HERE / "weather.csv.gz", WEATHER, ((hour(row), row) for row in weather))

    with np.load(folder / "wondernetwork242_2018.npz", allow_pickle=False) as matrix:
        index = [list(matrix["names"]).index(city) for city in CITIES]
        rtt_ms = matrix["rtt"][np.ix_(index, index)].astype(float)
    rtt_ms = np.round((rtt_ms + rtt_ms.T) / 2, 1)
    np.fill_diagonal(rtt_ms, 0.0)
    rows = ",\n    ".join(json.dumps(row) for row in rtt_ms.tolist())
    (HERE / "rtt_ms.json").write_text(f'{{\n  "names": {json.dumps(CITIES)},\n  "rtt_ms": [\n    {rows}\n  ]\n}}\n')


if __name__ == "__main__":
    main(Path(sys.argv[1]))
