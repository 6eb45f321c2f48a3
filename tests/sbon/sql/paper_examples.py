"""The examples of figure 1 of Pietzuch et al. (ICDE'06), which the paper draws and does not spell out.

S1 finds intruders who are seen in several networks; S2 and S3 aggregate the seismic data of several deployments, and
share operators.
"""

from __future__ import annotations

from sbon.sql.catalog import Catalog
from sbon.streams import SinkSpec, StreamSpec

CONNECTIONS = "ts TIMESTAMP, source STRING, service STRING, failed_logins INT"
QUAKES = "ts TIMESTAMP, place STRING, magnitude DOUBLE, depth_km DOUBLE"
SCHEMAS = {"campus": CONNECTIONS, "office": CONNECTIONS, "pacific": QUAKES, "andes": QUAKES, "alaska": QUAKES}
CATALOG = Catalog(
    {name: (StreamSpec(name, "replay", schema, "ts"), f"node-of-{name}") for name, schema in SCHEMAS.items()},
    {name: (SinkSpec(name, "console"), f"node-of-{name}") for name in ("guards", "agency", "press", "result")},
)
SEISMIC = """
    SELECT window.end AS until, place, count(*) AS quakes, max(magnitude) AS strongest, avg(depth_km) AS depth_km
    FROM (SELECT * FROM pacific UNION ALL SELECT * FROM andes UNION ALL SELECT * FROM alaska)
    WHERE magnitude > 1 GROUP BY window(ts, '1 hour', '20 minutes'), place"""
EXAMPLES = {
    "guards": """
        SELECT c.ts, c.source, c.service AS first, o.service AS second
        FROM campus c [RANGE 10 MINUTES], office o [RANGE 10 MINUTES]
        WHERE c.source = o.source AND c.failed_logins > 3 AND o.failed_logins > 3""",
    "agency": SEISMIC,
    "press": f"{SEISMIC} HAVING max(magnitude) > 4",
}
#: The same without brackets, for plain Spark.
IN_PLAIN_SPARK = {
    **EXAMPLES,
    "guards": """
        SELECT c.ts, c.source, c.service AS first, o.service AS second FROM campus c, office o
        WHERE c.source = o.source AND c.failed_logins > 3 AND o.failed_logins > 3
        AND c.ts - o.ts BETWEEN INTERVAL -10 MINUTES AND INTERVAL 10 MINUTES""",
}
