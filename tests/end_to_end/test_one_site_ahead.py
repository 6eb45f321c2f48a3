"""One of two sites runs three hours of event time ahead of the other: cut into fragments, nothing is lost by it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import trio

from daemon.demo.check import compare_with_reference
from daemon.demo.scenario import Scenario
from sbon.streams import SinkSpec, StreamSpec
from tests.end_to_end.cluster import Role, make_cluster_scenario, running_cluster

pytestmark = pytest.mark.spark

SCHEMA = "ts TIMESTAMP, key STRING, value INT"
MIDNIGHT = datetime(2013, 7, 1, tzinfo=UTC)
AHEAD = timedelta(hours=3)
HOURS = 8
#: Eight hours in some 12 s.
SPEEDUP = 2400.0

UNION = """
INSERT INTO counts
SELECT window.end AS until, key, count(*) AS n, sum(value) AS total
FROM (SELECT ts, key, value FROM behind UNION ALL SELECT ts, key, value FROM ahead)
GROUP BY window(ts, '30 minutes'), key
"""
JOIN = """
INSERT INTO pairs
SELECT a.ts AS at, b.ts AS bt, a.key AS key, a.value + b.value AS total
FROM ahead a JOIN behind b ON a.key = b.key AND b.ts BETWEEN a.ts - INTERVAL 5 MINUTES AND a.ts + INTERVAL 5 MINUTES
"""


def write_events(path: Path, start: datetime) -> None:
    """An event every five minutes, of four keys in turn."""
    rows = ["ts,key,value"]
    for number in range(HOURS * 12):
        ts = start + timedelta(minutes=5 * number)
        rows.append(f"{ts:%Y-%m-%dT%H:%M:%SZ},{'abcd'[number % 4]},{number}")
    path.write_text("\n".join([*rows, ""]))


@pytest.fixture
def scenario(tmp_path: Path) -> Scenario:
    """Both replays start at about the same moment, with first events three hours apart."""
    streams = []
    for name, start in (("behind", MIDNIGHT), ("ahead", MIDNIGHT + AHEAD)):
        write_events(tmp_path / f"{name}.csv", start)
        options = {"path": str(tmp_path / f"{name}.csv"), "speedup": f"{SPEEDUP:g}"}
        streams.append(StreamSpec(name, "replay", SCHEMA, "ts", options))
    sinks = tuple(SinkSpec(name, "parquet", {"path": str(tmp_path / name)}) for name in ("counts", "pairs"))
    roles = (
        Role("middle", sinks=sinks),
        Role("behind", accepts_operators=False, streams=(streams[0],)),
        Role("ahead", accepts_operators=False, streams=(streams[1],)),
    )
    return make_cluster_scenario(tmp_path, roles, [[0.0, 10.0, 10.0], [10.0, 0.0, 10.0], [10.0, 10.0, 0.0]])


async def test_a_union_with_windows_and_a_join_are_complete(scenario: Scenario, tmp_path: Path) -> None:
    with trio.fail_after(400):
        async with running_cluster(scenario) as cluster:
            queries = [await cluster.submit(sql) for sql in (UNION, JOIN)]
            for query_id in queries:
                await cluster.wait_until_finished(query_id)
                late = {operator.late_rows for operator in (await cluster.operators(query_id)).values()}
                assert late <= {0}
        for sql, sink, least_rows in ((UNION, "counts", 60), (JOIN, "pairs", 60)):
            verdict = await compare_with_reference(tmp_path / sink, sql, scenario.streams, tmp_path)
            assert verdict.difference is None
            assert verdict.rows >= least_rows
