"""What Spark is answered when it asks a port, with a fake in the place of Java."""

from __future__ import annotations

import gc
import weakref
from types import SimpleNamespace
from typing import Any, cast
from unittest.mock import MagicMock

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession
from pyspark.sql.types import LongType, StructField, StructType

from spark_bridge.port_reader import PortReader
from spark_bridge.port_source import PortSource
from spark_bridge.small_batches import BatchSizes


class FakeObject:
    """An object of Java, as long as Python has not forgotten it."""

    def __init__(self, *_of: object) -> None:
        pass

    def json(self) -> str:
        return "{}"

    def isEmpty(self) -> bool:  # noqa: N802
        return True


class FakeReader(PortReader):
    """Always has something to be read."""

    def next_offset(self) -> str | None:
        return "{}"

    def read(self, start: str | None, end: str) -> pa.Table:
        return pa.table({})


@pytest.fixture
def source() -> PortSource:
    spark = MagicMock()
    spark._jvm.org.apache.spark.sql.execution.streaming.runtime = SimpleNamespace(SerializedOffset=FakeObject)
    spark._jvm.scala.Option.apply = FakeObject
    sizes = MagicMock()
    sizes.stream = FakeObject
    reader = FakeReader("in0", StructType([StructField("v", LongType())]))
    return PortSource(cast("SparkSession", spark), reader, cast("BatchSizes", sizes))


@pytest.mark.parametrize(
    ("method", "arguments"),
    [("getOffset", []), ("deserializeOffset", ["{}"]), ("getBatch", [FakeObject(), FakeObject()])],
)
def test_an_answer_is_kept_until_java_has_looked_at_it(source: PortSource, method: str, arguments: list[Any]) -> None:
    answered = weakref.ref(getattr(source, method)(*arguments))
    gc.collect()
    assert answered() is not None
    again = getattr(source, method)(*arguments)
    assert again is not answered()
    gc.collect()
    assert answered() is None, "no more than the last answer is kept"
