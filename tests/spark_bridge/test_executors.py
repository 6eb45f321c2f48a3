"""Executors of other hosts must share the engine's folder; the cluster is a fake here.

A real one: ``python -m tests.benchmarks.spark_cluster``.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from py4j.protocol import Py4JError
from pyspark.sql import SparkSession

from sbon.errors import ConfigurationError, UnavailableError
from spark_bridge.executors import check_executors, is_local

MASTER = "spark://192.0.2.1:7077"


class FakeContext:
    """Runs each partition here and then calls ``after``, with which another host's file system may differ."""

    defaultParallelism = 2  # noqa: N815

    def __init__(self, after: Callable[[], None] = lambda: None) -> None:
        self._after = after
        self._names: Sequence[str] = ()

    def setJobGroup(self, *_: Any, **__: Any) -> None:  # noqa: N802
        pass

    def cancelJobGroup(self, group: str) -> None:  # noqa: N802
        pass

    def parallelize(self, names: Sequence[str], partitions: int) -> FakeContext:
        assert partitions == len(names)
        self._names = names
        return self

    def mapPartitions(self, task: Callable[[Iterable[str]], Iterable[Any]]) -> FakeContext:  # noqa: N802
        self._task = task
        return self

    def collect(self) -> list[Any]:
        written = [row for name in self._names for row in self._task([name])]
        self._after()
        return written


def session(context: FakeContext) -> SparkSession:
    class FakeSession:
        sparkContext = context  # noqa: N815

    return cast(SparkSession, FakeSession())


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,3]"])
def test_the_engine_s_own_process_is_local(master: str) -> None:
    assert is_local(master)


@pytest.mark.parametrize("master", [MASTER, "yarn", "k8s://https://192.0.2.1", "local-cluster[2,1,1024]"])
def test_all_else_has_executors_of_its_own(master: str) -> None:
    assert not is_local(master)


def test_a_shared_folder_is_accepted_and_left_as_it_was(tmp_path: Path) -> None:
    (tmp_path / "kept").touch()
    check_executors(session(FakeContext()), MASTER, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]


def test_executors_that_write_elsewhere_are_refused(tmp_path: Path) -> None:
    def lose() -> None:
        shutil.rmtree(tmp_path)
        tmp_path.mkdir()

    with pytest.raises(ConfigurationError, match=r"does not share .* node\.state_dir must be on a file system"):
        check_executors(session(FakeContext(lose)), MASTER, tmp_path)


def test_executors_without_the_folder_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="No such file or directory"):
        check_executors(session(FakeContext()), MASTER, tmp_path / "elsewhere")


def test_a_cluster_without_executors_is_told(tmp_path: Path) -> None:
    def cancelled() -> None:
        raise Py4JError("job cancelled")

    with pytest.raises(UnavailableError, match=r"192\.0\.2\.1:7077 runs no Python tasks"):
        check_executors(session(FakeContext(cancelled)), MASTER, tmp_path)
