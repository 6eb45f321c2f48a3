"""Spark in the process of the tests, with the files of an engine."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from spark_bridge import local_files
from spark_bridge.session import start_session


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    session = start_session("tests", tmp_path_factory.mktemp("a scratch with spaces"), settings=local_files.SETTINGS)
    local_files.use_plain_files(session)
    yield session
    session.stop()
