"""Small queries on real Spark: cut into fragments and streamed, or uncut as one batch; the rows must be the same.

The site of ``readings`` is three hours of event time behind that of ``rules``: an engine that took its watermarks from
the rows it happens to see would drop rows here, without an error.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from daemon.demo.check import read_rows
from sbon.engine_messages import FragmentState
from sbon.row_multiset import difference
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from sbon.sql.query_plan import QueryPlan
from sbon.streams import SinkSpec, StreamSpec
from spark_bridge.local_files import use_plain_files
from spark_bridge.reference import ReferenceJob, View, run_reference
from spark_bridge.session import start_session
from tests.spark_bridge.driven_engine import DrivenEngine, deploy
from tests.spark_bridge.test_engine import SKEW, readings, rules, write_csv

pytestmark = pytest.mark.spark

SCHEMA = "ts timestamp, k string, v bigint"
SPEEDUP = 24 * 3600 / 10
AT_ONCE = 4  # each source costs a process; a small host runs a few queries at a time

QUERIES = {
    "filter_query": "SELECT ts, k, v + 1 AS next FROM readings WHERE v % 5 = 0",
    "union_query": "SELECT ts, k, v FROM readings WHERE k = 'x' UNION ALL SELECT ts, k, v FROM rules WHERE v > 50",
    "window_query": "SELECT window.start AS start, k, count(*) AS n, avg(v) AS mean FROM readings "
    "GROUP BY window(ts, '90 minutes', '30 minutes'), k",
    "join_query": "SELECT r.ts AS ts, r.k AS k, r.v AS v, s.v AS rule FROM readings r JOIN rules s "
    "ON r.k = s.k AND r.ts >= s.ts AND r.ts < s.ts + INTERVAL 1 HOUR WHERE s.v > 20",
    "window_of_union_query": "SELECT window.end AS until, k, sum(v) AS total FROM "
    "(SELECT ts, k, v FROM readings UNION ALL SELECT ts, k, v FROM rules) GROUP BY window(ts, '3 hours'), k",
    "join_of_windows_query": "SELECT a.until AS until, a.k AS k, a.n AS readings, b.total AS rules FROM "
    "(SELECT window.end AS until, k, count(*) AS n FROM readings GROUP BY window(ts, '2 hours'), k) a JOIN "
    "(SELECT window.end AS until, k, sum(v) AS total FROM rules GROUP BY window(ts, '2 hours'), k) b "
    "ON a.k = b.k AND a.until = b.until",
    "window_of_join_query": "SELECT window.start AS start, k, count(*) AS n, max(rule) AS rule FROM "
    "(SELECT r.ts AS ts, r.k AS k, s.v AS rule FROM readings r JOIN rules s "
    "ON r.k = s.k AND r.ts BETWEEN s.ts - INTERVAL 30 MINUTES AND s.ts + INTERVAL 30 MINUTES) "
    "GROUP BY window(ts, '2 hours'), k",
}


def stream(folder: Path, name: str, delay_s: float) -> StreamSpec:
    options = {"path": str(folder / f"{name}.csv"), "speedup": str(SPEEDUP), "start_delay_s": str(delay_s)}
    return StreamSpec(name, "replay", SCHEMA, "ts", options)


def plans(folder: Path) -> dict[str, QueryPlan]:
    streams = [stream(folder, "readings", SKEW.total_seconds() / SPEEDUP), stream(folder, "rules", 0)]
    sinks = [SinkSpec(name, "parquet", {"path": str(folder / "out" / name)}) for name in QUERIES]
    catalog = Catalog(
        streams={spec.name: (spec, "node") for spec in streams}, sinks={spec.name: (spec, "node") for spec in sinks}
    )
    return {name: plan_query(f"INSERT INTO {name} {sql}", f"q{name}", catalog) for name, sql in QUERIES.items()}


def test_cutting_a_plan_does_not_change_its_result(tmp_path: Path) -> None:
    write_csv(tmp_path / "readings.csv", readings())
    write_csv(tmp_path / "rules.csv", rules())
    with DrivenEngine(tmp_path / "engine") as engine:
        waiting = list(plans(tmp_path).values())
        while waiting:
            together, waiting = waiting[:AT_ONCE], waiting[AT_ONCE:]
            for plan in together:
                deploy(plan.fragments, dict.fromkeys((spec.fragment_id for spec in plan.fragments), engine))
            for plan in together:
                engine.wait_for_state(plan.fragments[-1].fragment_id, FragmentState.FINISHED)
                for spec in plan.fragments:
                    engine.destroy(spec)
        assert all(status.late_rows == 0 for status in engine.statuses.values())
    spark = start_session("uncut", tmp_path / "uncut")
    views = tuple(
        View(name, str(tmp_path / f"{name}.csv"), "csv", SCHEMA, {"header": "true"}) for name in ("readings", "rules")
    )
    for name, sql in QUERIES.items():
        run_reference(spark, ReferenceJob(views, sql, str(tmp_path / "uncut" / name)))
        uncut = read_rows(tmp_path / "uncut" / name)
        assert len(uncut) > 10, f"{name} would prove nothing"
        assert difference(read_rows(tmp_path / "out" / name), uncut) is None, name
    check_that_files_are_made_without_processes(spark, tmp_path)
    spark.stop()


def check_that_files_are_made_without_processes(spark: SparkSession, folder: Path) -> None:
    """Here because it needs a Java machine."""
    use_plain_files(spark)
    jvm: Any = spark._jvm
    path = jvm.org.apache.hadoop.fs.Path
    files = path("file:///").getFileSystem(spark._jsc.hadoopConfiguration())
    assert files.getClass().getName() == "sbon.LocalFiles"
    assert files.getRawFileSystem().getClass().getName() == "sbon.LocalFiles$Raw"
    files.create(path(str(folder / "made"))).close()
    assert (folder / "made").stat().st_mode & 0o777 == 0o644
    files.copyFromLocalFile(path(str(folder / "made")), path(str(folder / "new" / "linked")))
    assert (folder / "new" / "linked").samefile(folder / "made")
