"""One micro-batch of a source: its late rows counted and left out, the pushed-down SQL applied, in one pass over them.

A batch may hold a few rows only, several times a second; then what costs is not the rows but each Spark job, and each
plan whose code was not compiled before.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as sf

_READ = "read"


@dataclass(frozen=True, slots=True)
class SourceBatch:
    """``table``: what the SQL gives. ``rows``: as read; ``late_rows`` of them were left out.

    ``newest_us``: the latest event time read, us since the epoch; None if no row has one.
    """

    table: pa.Table
    rows: int
    late_rows: int
    newest_us: int | None


def read_source(rows: DataFrame, event_time: str, watermark_ms: int | None, sql: str) -> SourceBatch:
    """Evaluate ``sql`` over the view ``source``: those of ``rows`` that are not older than ``watermark_ms``.

    A row without event time is late, too.
    """
    # Told in SQL: each function that pyspark has for columns is several questions to Java.
    time_us = f"unix_micros(`{event_time}`)"
    late = f"{time_us} IS NULL"
    if watermark_ms is not None:
        late += f" OR {time_us} < {_apart_from_the_code(watermark_ms * 1000, time_us)}"
    figures = [sf.expr(figure) for figure in ("count(1)", f"count_if({late})", f"max({time_us})")]
    rows.observe(_READ, *figures).where(f"NOT ({late})").createOrReplaceTempView("source")
    selected = rows.sparkSession.sql(sql)
    table = selected.toArrow()
    count, late_rows, newest_us = _observed(selected, len(figures)) or rows.agg(*figures).collect()[0]
    return SourceBatch(table, count, late_rows, newest_us)


def _observed(selected: DataFrame, figures: int) -> tuple[Any, ...] | None:
    """What was observed when ``selected`` was evaluated; None if Spark did not read a row, as its SQL selects none.

    (pyspark's Observation does not see what lies below a view.)
    """
    execution: Any = selected._jdf.queryExecution()
    observed = execution.observedMetrics().get(_READ)
    return None if observed.isEmpty() else tuple(observed.get().get(figure) for figure in range(figures))


def _apart_from_the_code(value: int, beside: str) -> str:
    """``value``, which is another one in each batch, where ``beside`` is not null.

    A number in a plan stands in the code that Spark generates, and another code has to be compiled. An array does not;
    nor does Spark know that this index is always 0.
    """
    return f"get(array({value}L), CAST(pmod({beside}, 1L) AS INT))"
