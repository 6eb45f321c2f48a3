"""What a query's result must be: the same SQL, by plain Spark, as one batch over the whole files, in one process.

``python -m spark_bridge.reference JOB.json`` uses nothing of fragments, links and watermarks; only the settings that
give SQL its meaning are the engine's. The demo and the end-to-end tests compare their results with it.
"""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path

import msgspec
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sbon.errors import QueryError, SbonError
from spark_bridge.session import start_session

_INSERT = re.compile(r"(?:\s|--[^\n]*\n)*INSERT\s+INTO\s+(?:TABLE\s+)?[`\w.]+\s+", re.IGNORECASE)


class View(msgspec.Struct, frozen=True):
    """A file as a table: ``format``, ``schema`` (DDL) and ``options`` are those of Spark's ``read``."""

    name: str
    path: str
    format: str
    schema: str
    options: dict[str, str] = {}


class ReferenceJob(msgspec.Struct, frozen=True):
    """``sql`` over ``views``, written to the folder ``out`` as Parquet. ``INSERT INTO sink`` in front is left out."""

    views: tuple[View, ...]
    sql: str
    out: str


def run_reference(spark: SparkSession, job: ReferenceJob) -> None:
    """Compute ``job``. Raises QueryError with Spark's own words if Spark refuses the query or a file."""
    try:
        for view in job.views:
            reader = spark.read.format(view.format).schema(view.schema).options(**view.options)
            reader.load(view.path).createOrReplaceTempView(view.name)
        result = spark.sql(_INSERT.sub("", job.sql.strip().removesuffix(";"), count=1))
        result.write.mode("overwrite").parquet(job.out)
    except PySparkException as error:
        raise QueryError(f"the reference cannot be computed: {str(error).splitlines()[0]}") from None


def main(arguments: list[str]) -> int:
    """Run the job in the file named by the one argument; 2 and one line on stderr if that cannot be done."""
    try:
        if len(arguments) != 1:
            raise SbonError("usage: python -m spark_bridge.reference JOB.json")
        job = msgspec.json.decode(Path(arguments[0]).read_bytes(), type=ReferenceJob)
        with tempfile.TemporaryDirectory(prefix="sbon-reference-") as scratch:
            spark = start_session("reference", Path(scratch), memory_mb=512)
            try:
                run_reference(spark, job)
            finally:
                spark.stop()
    except (SbonError, OSError, msgspec.DecodeError) as error:
        print(f"sbon reference: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
