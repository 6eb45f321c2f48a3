"""Spark beyond this machine: what has to hold before fragments may run on executors of other hosts.

Links need nothing: ports and logs are read and written by the engine, on its own host. A checkpoint is written by
whoever runs the tasks, and moved and replicated by the engine: both must see the same folder.
"""

from __future__ import annotations

import logging
import re
import threading
import uuid
from collections.abc import Iterable
from pathlib import Path

from py4j.protocol import Py4JError
from pyspark import SparkContext
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from sbon.errors import ConfigurationError, UnavailableError

_log = logging.getLogger(__name__)

_LOCAL = re.compile(r"local(\[.*\])?")
#: A cluster that is full gives executors late or never; Spark itself would wait for ever.
_EXECUTORS_WITHIN_S = 90.0
_PROBES_PER_CORE = 4


def is_local(master: str) -> bool:
    """Whether ``master`` runs all tasks within the engine's own process."""
    return _LOCAL.fullmatch(master) is not None


def check_executors(spark: SparkSession, master: str, folder: Path) -> None:
    """Let all executors write into ``folder`` and see it here.

    Raises UnavailableError if the cluster gives none in time, ConfigurationError if one has another folder there.
    """
    try:
        written = _write_on_executors(spark.sparkContext, str(folder))
    except (PySparkException, Py4JError) as error:
        _log.warning("the tasks for executors failed", exc_info=True)
        raise UnavailableError(
            f"{master} runs no Python tasks, or not within {_EXECUTORS_WITHIN_S:g} s: see whether its workers are up, "
            "with cores and memory to spare, and have the same Python; the engine's log has more"
        ) from error
    for name, host, reason in written:
        if reason is None and not (folder / name).exists():
            reason = "what it wrote does not appear on the engine's host"
        if reason is not None:
            raise ConfigurationError(
                f"an executor on {host} does not share {folder} ({reason}): with master {master!r}, node.state_dir "
                "must be on a file system that all workers mount under the same path, and may write to"
            )
    for name, _, _ in written:
        (folder / name).unlink()


def _write_on_executors(context: SparkContext, folder: str) -> list[tuple[str, str, str | None]]:
    """Many small files, written by all executors: name, host, and what went wrong."""

    # Nested, so that Spark sends its code: sbon may not be installed where the executor is.
    def write(names: Iterable[str]) -> Iterable[tuple[str, str, str | None]]:
        import socket
        import time
        from pathlib import Path

        for name in names:
            time.sleep(0.05)  # so that no executor gets through all of them before the others have begun
            try:
                (Path(folder) / name).touch(exist_ok=False)
                yield name, socket.gethostname(), None
            except OSError as error:
                yield name, socket.gethostname(), error.strerror

    group = f"probe of {folder}"
    context.setJobGroup(group, "do all executors see the engine's folder?", interruptOnCancel=True)
    timer = threading.Timer(_EXECUTORS_WITHIN_S, context.cancelJobGroup, (group,))
    timer.start()
    names = [f"{uuid.uuid4().hex}.probe" for _ in range(_PROBES_PER_CORE * context.defaultParallelism)]
    try:
        return context.parallelize(names, len(names)).mapPartitions(write).collect()
    finally:
        timer.cancel()
