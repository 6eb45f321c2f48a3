"""Small batches are run with little ado.

For each expression of a batch Spark writes a program, looks whether it has compiled the same text before, and runs
that; it divides what is read among as many tasks as there are cores; and rows come to it by a server and a plan of
their own. That pays for many rows. For few, it is a quarter of the time that a batch takes: Spark can also evaluate
expressions as they are, read in one piece, and take rows as a part of the plan. Which of the two is better depends on
each batch (docs/decisions/links.md).
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

#: From here on compiled expressions are worth their price: some thousand rows.
SMALL_BYTES = 256 * 1024

_SMALL = {"spark.sql.codegen.factoryMode": "NO_CODEGEN", "spark.sql.leafNodeDefaultParallelism": "1"}
#: From which size on Spark makes no local relations of rows from outside: 48 MB, if the user has set nothing else.
_LOCAL_BYTES = "spark.sql.execution.arrow.localRelationThreshold"


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
        self._may_be_local = not chosen.contains(_LOCAL_BYTES)
        jvm: Any = spark._jvm
        # Each step of such a path is a question to Java, too.
        self._to_frame = jvm.org.apache.spark.sql.api.python.PythonSQLUtils.toDataFrame
        self._iterators = getattr(getattr(jvm, "scala.collection.Iterator$"), "MODULE$")
        self._datasets = getattr(getattr(jvm, "org.apache.spark.sql.classic.Dataset$"), "MODULE$")
        self._none = jvm.scala.Option.empty()

    def begins(self) -> None:
        """Nothing of the next batch was read yet."""
        self._bytes = 0

    def stream(self, rows: pa.Table, schema: StructType) -> Any:
        """``rows``, which are part of the batch, as a piece of a stream: Java's Dataset. Called in the thread in which
        the query runs."""
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
        if is_small and self._may_be_local:
            return self._in_the_plan(rows, schema, session)
        frame = session.createDataFrame(rows, schema)._jdf
        return session._jsparkSession.internalCreateDataFrame(frame.queryExecution().toRdd(), frame.schema(), True)

    def _in_the_plan(self, rows: pa.Table, schema: StructType, session: SparkSession) -> Any:
        """By few questions to Java, as each takes about as long as hundreds of rows."""
        batches = [batch.serialize().to_pybytes() for batch in rows.combine_chunks().to_batches()]
        iterator = self._iterators.single(batches[0]) if batches else self._iterators.empty()
        relation = self._to_frame(iterator, schema.json(), session._jsparkSession).logicalPlan()
        of_a_stream = relation.copy(relation.output(), relation.data(), True, self._none)
        return self._datasets.ofRows(session._jsparkSession, of_a_stream)

    def _running(self) -> SparkSession:
        jvm: Any = self._spark._jvm
        return SparkSession(self._spark.sparkContext, jvm.org.apache.spark.sql.classic.SparkSession.active())
