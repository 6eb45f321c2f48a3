"""The streams and sinks that the tests of the planner query."""

from __future__ import annotations

from sbon.sql.catalog import Catalog
from sbon.streams import SinkSpec, StreamSpec

SCHEMAS = {
    "flights": "ts TIMESTAMP, origin STRING, dest STRING, carrier STRING, dep_delay DOUBLE, seats INT",
    "weather": "ts TIMESTAMP, origin STRING, visib DOUBLE, wind_speed DOUBLE, precip DOUBLE",
    "bags": "seen_at TIMESTAMP, airport STRING, owner STRUCT<name: STRING, `group`: INT>, weight INT, `bag no` INT",
}
_EVENT_TIMES = {"flights": "ts", "weather": "ts", "bags": "seen_at"}

CATALOG = Catalog(
    streams={
        name: (StreamSpec(name=name, format="replay", schema=schema, event_time=_EVENT_TIMES[name]), f"node-of-{name}")
        for name, schema in SCHEMAS.items()
    },
    sinks={
        "result": (SinkSpec(name="result", format="parquet", options={"path": "out"}), "node-of-result"),
        "alerts": (SinkSpec(name="alerts", format="console"), "node-of-alerts"),
    },
)
