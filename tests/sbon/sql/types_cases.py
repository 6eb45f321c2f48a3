"""What has no type, with what is said of it, and what looks so and has one. Spark is held against it, too."""

from __future__ import annotations

REFUSED = {
    "SELECT origin FROM flights WHERE dest": "flights.dest at line 1, column 53 is a text where a condition is needed",
    "SELECT origin FROM flights WHERE seats": "flights.seats at line 1, column 53 is a number where a condition",
    "SELECT origin FROM flights WHERE dest = 'x' AND ts": "flights.ts at line 1, column 68 is a point of time where",
    "SELECT origin FROM flights WHERE NOT seats": "flights.seats at line 1, column 57 is a number where",
    "SELECT CASE WHEN seats THEN 1 ELSE 2 END AS x FROM flights": "column 37 is a number where a condition is needed",
    "SELECT origin FROM flights WHERE ts > 5": "flights.ts > 5 at line 1, column 53 compares a point of time with",
    "SELECT origin FROM flights WHERE ts BETWEEN 1 AND 2": "column 53 compares a point of time with a number",
    "SELECT seen_at FROM bags WHERE owner = 'a'": "column 51 compares a struct, array or map with a text",
    "SELECT owner + 1 AS x FROM bags": "bags.owner + 1 at line 1, column 27 reckons with a struct, array or map",
    "SELECT ts + 5 AS x FROM flights": "flights.ts + 5 at line 1, column 27 reckons with a point of time and a number",
    "SELECT (seats > 5) + 1 AS x FROM flights": "reckons with a condition",
    "SELECT window.end AS e, sum(owner) AS s FROM bags GROUP BY window(seen_at, '1 hour')": "is over a struct",
    "SELECT n FROM (SELECT window.end AS e, count(*) AS n FROM flights GROUP BY window(ts, '1 hour')) WHERE n": (
        "is a number where a condition is needed"
    ),
}
ACCEPTED = [
    "SELECT window.end AS e, sum(ts) AS s FROM flights GROUP BY window(ts, '1 hour')",
    "SELECT origin FROM flights WHERE ts > '2013-07-01' AND seats > '5'",
    "SELECT CAST(ts AS DATE) + 1 AS x, ts + INTERVAL 5 MINUTES AS y, ts - ts AS z FROM flights",
    "SELECT origin FROM flights WHERE seats IS NULL",
    "SELECT origin FROM flights WHERE (seats > 5) = (dep_delay > 3) AND NOT (seats IN (1, 2.5))",
    "SELECT owner = owner AS same, owner.name || 'x' AS text FROM bags WHERE owner.`group` = 1 OR weight > 2.5",
    "SELECT dep_delay / 60 + seats AS x, -seats AS y, if(seats > 3, 1, 'x') AS z FROM flights",
]
