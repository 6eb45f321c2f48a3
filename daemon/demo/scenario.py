"""Five sites, who owns what there, and the round trips between them.

New York replays the flights, Asheville (home of the climate archive) the weather, London wants the result; Washington
and Chicago have room for operators, London too. The flights are most of the traffic: with the real round trips
Washington is best by far (a third of Chicago's network usage, an eighth of London's), and Chicago once New York -
Washington is slow.
"""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

from sbon.streams import SinkSpec, StreamSpec

DATA = Path(str(resources.files("daemon.demo") / "data"))
QUERY = (Path(str(resources.files("daemon.demo"))) / "query.sql").read_text()

#: The replayed month, from the first observation (2013-07-01 04:00 UTC) to the last departure.
MONTH_START_MS = 1_372_651_200_000
MONTH_S = 2_678_340
#: Event seconds per second: the month takes a minute and a half.
DEFAULT_SPEEDUP = 30_000.0
#: Where the replay waits until the operators have moved: a slow machine may need long to start one more Spark for them.
HOLD_AT = "2013-07-24T00:00:00+00:00"
#: The round trip that the path from the flights to the join's host is slowed down to.
SLOW_RTT_MS = 240.0

FLIGHTS_SCHEMA = "ts TIMESTAMP, carrier STRING, flight INT, origin STRING, dest STRING, dep_delay INT"
WEATHER_SCHEMA = "ts TIMESTAMP, origin STRING, temp DOUBLE, wind_speed DOUBLE, precip DOUBLE, visib DOUBLE"


@dataclass(frozen=True, slots=True)
class Site:
    """One daemon of the demo. ``index`` is its row in the matrix of round trips."""

    name: str
    city: str
    index: int
    port: int
    folder: Path
    accepts_operators: bool
    streams: tuple[StreamSpec, ...] = ()
    sinks: tuple[SinkSpec, ...] = ()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def config_file(self) -> Path:
        return self.folder / "config.toml"

    @property
    def log_file(self) -> Path:
        return self.folder / "daemon.log"

    @property
    def socket(self) -> Path:
        # The state folder, not --out, which may be too deep for the 107 bytes of a Unix socket's path.
        return self.folder / "control.sock"


@dataclass(frozen=True, slots=True)
class Scenario:
    """The sites, the true round trips between them in ms, and where the result goes.

    ``gate``: once there is such a file, the replays go on past HOLD_AT.
    """

    sites: tuple[Site, ...]
    rtt_ms: tuple[tuple[float, ...], ...]
    result: Path
    gate: Path

    def site(self, name: str) -> Site:
        return next(site for site in self.sites if site.name == name)

    @property
    def flights(self) -> Site:
        return next(site for site in self.sites if any(stream.name == "flights" for stream in site.streams))

    @property
    def consumer(self) -> Site:
        return next(site for site in self.sites if site.sinks)

    @property
    def streams(self) -> tuple[StreamSpec, ...]:
        return tuple(stream for site in self.sites for stream in site.streams)


def make_scenario(scratch: Path, out: Path, speedup: float) -> Scenario:
    """Five sites with their folders under ``scratch`` and free ports, the result under ``out``."""
    matrix = json.loads((DATA / "rtt_ms.json").read_text())
    gate = scratch / "gate"
    timing = {"speedup": f"{speedup:g}", "hold_at": HOLD_AT, "hold_until": str(gate)}
    flights = replay("flights", FLIGHTS_SCHEMA, timing, rate_bytes_per_s=16_000, row_bytes=40)
    weather = replay("weather", WEATHER_SCHEMA, timing, rate_bytes_per_s=1_500, row_bytes=48)
    result = out / "result"
    roles: dict[str, tuple[bool, tuple[StreamSpec, ...], tuple[SinkSpec, ...]]] = {
        "New York": (False, (flights,), ()),
        "Asheville": (False, (weather,), ()),
        "London": (True, (), (SinkSpec("delays", "parquet", {"path": str(result)}),)),
        "Washington": (True, (), ()),
        "Chicago": (True, (), ()),
    }
    sites = []
    for index, (city, port) in enumerate(zip(matrix["names"], free_ports(len(matrix["names"])), strict=True)):
        name = city.lower().replace(" ", "-")
        sites.append(Site(name, city, index, port, scratch / name, *roles[city]))
    return Scenario(tuple(sites), tuple(tuple(row) for row in matrix["rtt_ms"]), result, gate)


def replay(
    name: str, schema: str, timing: Mapping[str, str], *, rate_bytes_per_s: float, row_bytes: float
) -> StreamSpec:
    """One of the demo's data files as a live stream; ``timing`` are options of the replay."""
    return StreamSpec(
        name=name,
        format="replay",
        schema=schema,
        event_time="ts",
        options={"path": str(DATA / f"{name}.csv.gz"), **timing},
        rate_bytes_per_s=rate_bytes_per_s,
        row_bytes=row_bytes,
    )


def free_ports(count: int) -> list[int]:
    """Loopback ports that are free for UDP and TCP now; bound all at once, so that they differ."""
    ports: list[int] = []
    with ExitStack() as held:
        while len(ports) < count:
            tcp = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            udp = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            tcp.bind(("127.0.0.1", 0))
            try:
                udp.bind(tcp.getsockname())
            except OSError:
                continue
            ports.append(tcp.getsockname()[1])
    return ports
