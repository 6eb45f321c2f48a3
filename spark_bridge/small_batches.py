"""Small batches are run with little ado.

For each expression of a batch Spark writes a program, looks whether it has compiled the same text before, and runs
that; and it divides what is read among as many tasks as there are cores. That pays for many rows. For few, it is a
fifth of the time that a batch takes: Spark can also evaluate expressions as they are, and read in one piece. Which of
the two is better depends on each batch (docs/decisions/links.md).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

#: From here on compiled expressions are worth their price: some thousand rows.
SMALL_BYTES = 256 * 1024

_SMALL = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.leafNodeDefaultParallelism": "1"}


class BatchSizes:
    """Of the batches of one query, whose ports share this. Spark asks all ports how far they can be read, and then
    reads some of them: that is a batch."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark
        #: A query of Spark's has a session of its own, which is there once it runs.
        self._session: SparkSession | None = None
        self._bytes = 0
        self._is_small = False
        chosen = spark.sparkContext.getConf()
        #: What the user has set stays as it is.
        self._settings = {name: value for name, value in _SMALL.items() if not chosen.contains(name)}

    def begins(self) -> None:
        """Nothing of the next batch was read yet."""
        self._bytes = 0

    def frame(self, rows: pa.Table, schema: StructType) -> DataFrame:
        """``rows``, which are part of the batch, for Spark. Called in the thread in which the query runs."""
        session = self._session = self._session or self._running()
        self._bytes += rows.nbytes
        is_small = self._bytes < SMALL_BYTES
        if is_small != self._is_small:
            self._is_small = is_small
            for name, value in self._settings.items():
                if is_small:
                    session.conf.set(name, value)
                else:
                    session.conf.unset(name)
        return session.createDataFrame(rows, schema)

    def _running(self) -> SparkSession:
        jvm: Any = self._spark._jvm
        return SparkSession(self._spark.sparkContext, jvm.org.apache.spark.sql.classic.SparkSession.active())
