"""A rehearsal: a fragment that is about to arrive is run here before, on nothing, while it still runs elsewhere.

Spark compiles the code of a plan when its first batch runs, and the Java machine loads what that needs: seconds, which
would be seconds without output if they began when the fragment's state is here. What is compiled is kept under the text
of the code, and that is the same when the fragment itself starts. It will go on from a checkpoint, of which reading is
half of what there is to load: so does the rehearsal, from its own.
"""

from __future__ import annotations

import shutil
import time
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from sbon.engine_messages import Instantiate, Rehearse
from sbon.errors import SbonError
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings

_WITHIN_S = 60.0
_POLL_S = 0.02


def rehearse(spark: SparkSession, command: Rehearse, settings: RunnerSettings) -> None:
    """Run the first batches of the fragment in ``command.folder``, and go on from there as after a move; the folder is
    deleted, before and after.

    Raises SbonError if it cannot run here. On a busy host the rehearsal is left after a minute.
    """
    folder = Path(command.folder)
    shutil.rmtree(folder, ignore_errors=True)
    spec = msgspec.structs.replace(command.spec, fragment_id=f"{command.fragment_id}-rehearsal")
    start = Instantiate(spec.fragment_id, command.generation, command.owner, spec, command.folder, command.port_schemas)
    deadline = time.monotonic() + _WITHIN_S
    try:
        # The second batch of a stateful one is that without input, which drops what the watermark has passed.
        for until_batch in (1, 2) if spec.stateful else (0, 1):
            if time.monotonic() < deadline:
                _run(spark, start, settings, until_batch, deadline)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _run(spark: SparkSession, start: Instantiate, settings: RunnerSettings, until_batch: int, deadline: float) -> None:
    """Start it from its folder, and stop it once it has run the batch ``until_batch``."""
    runner = FragmentRunner(
        spark, start, replace(settings, trigger_ms=0), lambda *_: None, lambda _: None, lambda: None
    )
    try:
        runner.feed_nothing()
        while runner.newest_batch < until_batch and time.monotonic() < deadline:
            if not runner.runs():
                raise SbonError(runner.status().error or f"{start.fragment_id} does not run here")
            time.sleep(_POLL_S)
    finally:
        runner.stop()
