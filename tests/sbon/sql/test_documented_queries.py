"""Every query that docs/queries.md prints is planned; what it says is refused is refused."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from sbon.errors import QueryError
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.streams import SinkSpec, StreamSpec

PAGE = Path(__file__).parents[3] / "docs" / "queries.md"
CATALOG = Catalog(
    streams={
        "flights": (StreamSpec("flights", "replay", "ts TIMESTAMP, origin STRING, dep_delay INT", "ts"), "a"),
        "weather": (StreamSpec("weather", "replay", "ts TIMESTAMP, origin STRING, visib DOUBLE", "ts"), "b"),
    },
    sinks={name: (SinkSpec(name, "parquet"), "c") for name in ("delays", "alerts")},
)


@pytest.mark.parametrize("text", re.findall(r"```sql\n(.*?)```", PAGE.read_text(), re.DOTALL))
def test_a_printed_query_is_planned(text: str) -> None:
    plan = plan_query(text, "q1", CATALOG)
    assert plan.fragments[-1].sink is not None


@pytest.mark.parametrize(
    "select",
    [
        "SELECT rand() AS r FROM flights",
        "SELECT uuid() AS r FROM flights",
        "SELECT current_timestamp() AS r FROM flights",
        "SELECT monotonically_increasing_id() AS r FROM flights",
        "SELECT first(origin) AS r FROM flights GROUP BY window(ts, '1 hour')",
        "SELECT collect_list(origin) AS r FROM flights GROUP BY window(ts, '1 hour')",
        "SELECT origin FROM flights ORDER BY origin",
        "SELECT origin FROM flights LIMIT 3",
        "SELECT DISTINCT origin FROM flights",
        "SELECT origin FROM flights UNION SELECT origin FROM weather",
        "SELECT count(*) AS n FROM flights",
        "SELECT f.origin AS o FROM flights f JOIN weather w ON f.origin = w.origin",
        "SELECT row_number() OVER (PARTITION BY origin ORDER BY ts) AS n FROM flights",
        "SELECT f.origin AS o FROM flights f LEFT JOIN weather w ON f.origin = w.origin AND f.ts = w.ts",
        "SELECT origin FROM flights WHERE origin IN (SELECT origin FROM weather)",
        "SELECT filter(array(dep_delay), x -> x > 1) AS a FROM flights",
        "SELECT my_function(origin) AS a FROM flights",
    ],
)
def test_what_the_page_says_is_refused_is_refused_in_one_line(select: str) -> None:
    with pytest.raises(QueryError) as refused:
        plan_query(f"INSERT INTO delays {select}", "q1", CATALOG)
    assert "\n" not in str(refused.value)
