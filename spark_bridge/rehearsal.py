"""A rehearsal: a fragment that is about to arrive is run here before, on nothing, while it still runs elsewhere.

Spark compiles the code of a plan when its first batch runs, and the Java machine loads what that needs: seconds, which
would be seconds without output if they began when the fragment's state is here. What is compiled is kept under the text
of the code, and that is the same when the fragment itself starts. It will go on from a checkpoint, of which reading is
half of what there is to load: so does the rehearsal, from its own. A checkpoint that has come from elsewhere has a
snapshot of the state, and the first that an engine reads took up to a second: so the rehearsal's first start leaves one
with each batch, where others write only what has changed. And a Java machine that has just started compiles
what it runs often: a start takes seconds the first time, and half a second the tenth. So it is started again and again,
as long as that makes it faster. One start that is no faster says little on a busy host; two in a row do.

What a start does with a large state (all of its files are opened) nothing but such a state can rehearse. So if a copy
of it is here, the last starts are from that.
"""

from __future__ import annotations

import logging
import shutil
import threading
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import msgspec
from pyspark.sql import SparkSession

from sbon.engine_messages import Instantiate, Rehearse
from sbon.errors import SbonError
from spark_bridge.fragment_runner import FragmentRunner, RunnerSettings
from spark_bridge.moved_state import become_another_query
from spark_bridge.session import CHANGELOGS

_log = logging.getLogger(__name__)

_WITHIN_S = 60.0
#: The first load what is needed. They are over when the last of them were no faster than those before.
_LEAST_STARTS = 2
_NO_FASTER_STARTS = 2
_MOST_STARTS = 12
_MORE_WITHIN_S = 20.0
_STILL_FASTER = 0.95
_POLL_S = 0.02
#: Starts from a copy of the state.
_ON_STATE = 2
#: As many plans as Spark keeps the compiled code of (``spark.sql.codegen.cache.maxEntries``), or fewer.
_MOST_REMEMBERED = 100


class Rehearsals:
    """All that one engine has rehearsed, by what its plans look like."""

    def __init__(self, spark: SparkSession, settings: RunnerSettings) -> None:
        self._spark = spark
        self._with_snapshots: SparkSession | None = None
        self._settings = settings
        #: How long each start took, by the signature of what was started, the newest last.
        self._taken_s: defaultdict[str, list[float]] = defaultdict(list)
        #: Those that go on, by fragment; set: it is wanted no longer.
        self._under_way: dict[str, threading.Event] = {}

    def rehearse(self, command: Rehearse) -> bool:
        """Run the first batches of the fragment in ``command.folder``, and go on from there as after a move, until that
        takes no less time than before; then from the copy of its state, if there is one. The folders are deleted, the
        first before, too. One at a time for each fragment.

        Returns whether the fragment is still to come. Raises SbonError if it cannot run here. On a busy host the
        rehearsal is left after a while, and goes on when the next one of its kind is asked for.
        """
        shutil.rmtree(command.folder, ignore_errors=True)
        has_come = self._under_way[command.fragment_id] = threading.Event()
        try:
            self._rehearse_on_nothing(command, has_come)
            if command.state is not None and not has_come.is_set():
                self._rehearse_on_state(command, Path(command.state), has_come)
        finally:
            del self._under_way[command.fragment_id]
            for folder in (command.folder, command.state):
                if folder is not None:
                    shutil.rmtree(folder, ignore_errors=True)
        return not has_come.is_set()

    def _rehearse_on_nothing(self, command: Rehearse, has_come: threading.Event) -> None:
        start = _start(command, command.folder)
        taken_s = self._taken_s[command.spec.signature()]
        for oldest in list(self._taken_s)[:-_MOST_REMEMBERED]:
            self._taken_s.pop(oldest, None)
        now_s: list[float] = []
        began_s = time.monotonic()
        while not is_over(taken_s, sum(now_s)):
            started_s = time.monotonic()
            spark = self._spark if now_s else self._leaving_snapshots()
            _run(spark, start, self._settings, began_s + _WITHIN_S, has_come)
            if has_come.is_set():
                break
            now_s.append(time.monotonic() - started_s)
            taken_s.append(now_s[-1])
        if now_s:
            _log.info("rehearsed %s: %s", command.fragment_id, _in_seconds(now_s))

    def _rehearse_on_state(self, command: Rehearse, state: Path, has_come: threading.Event) -> None:
        """It may be older than what is about to come, and not fit any more: that it does not run decides nothing."""
        if any(port.switch is not None for port in command.spec.ports):
            return
        now_s: list[float] = []
        try:
            become_another_query(state / "checkpoint")
            while len(now_s) < _ON_STATE and not has_come.is_set():
                began_s = time.monotonic()
                _run(self._spark, _start(command, str(state)), self._settings, began_s + _WITHIN_S, has_come)
                now_s.append(time.monotonic() - began_s)
        except (SbonError, OSError, ValueError) as error:
            _log.info("%s does not run on a copy of its state: %s", command.fragment_id, error)
        if now_s:
            _log.info("rehearsed %s on its state: %s", command.fragment_id, _in_seconds(now_s))

    def _leaving_snapshots(self) -> SparkSession:
        """Settings of its own: other fragments start meanwhile."""
        if self._with_snapshots is None:
            self._with_snapshots = self._spark.newSession()
            self._with_snapshots.conf.set(CHANGELOGS, "false")
        return self._with_snapshots

    def leave(self, fragment_id: str) -> None:
        """The fragment itself has come: it does not wait until its rehearsal, for its replica say, is over."""
        if under_way := self._under_way.get(fragment_id):
            under_way.set()


def _start(command: Rehearse, folder: str) -> Instantiate:
    spec = msgspec.structs.replace(command.spec, fragment_id=f"{command.fragment_id}-rehearsal")
    return Instantiate(spec.fragment_id, command.generation, command.owner, spec, folder, command.port_schemas)


def _in_seconds(times_s: Sequence[float]) -> str:
    return ", ".join(f"{one_s:.2f}" for one_s in times_s) + " s"


def is_over(taken_s: Sequence[float], spent_s: float) -> bool:
    """Whether one more start is not worth its time. ``taken_s``: of all starts so far on this engine; ``spent_s``: on
    those of this rehearsal."""
    if spent_s > _WITHIN_S or len(taken_s) >= _MOST_STARTS:
        return True
    if len(taken_s) < _LEAST_STARTS:
        return False
    if spent_s > _MORE_WITHIN_S:
        return True
    before_s, last_s = taken_s[:-_NO_FASTER_STARTS], taken_s[-_NO_FASTER_STARTS:]
    return bool(before_s) and min(last_s) > _STILL_FASTER * min(before_s)


def _run(
    spark: SparkSession, start: Instantiate, settings: RunnerSettings, deadline_s: float, has_come: threading.Event
) -> None:
    """Start it from its folder, and stop it once it has run a batch; of a new stateful one the second, too, which has
    no input and drops what the watermark has passed."""
    runner = FragmentRunner(
        spark, start, replace(settings, trigger_ms=0), lambda *_: None, lambda _: None, lambda: None
    )
    until_batch = max(runner.newest_batch + 1, 1 if start.spec.stateful else 0)
    try:
        runner.feed_nothing()
        while runner.newest_batch < until_batch and time.monotonic() < deadline_s:
            if not runner.runs():
                raise SbonError(runner.status().error or f"{start.fragment_id} does not run here")
            if has_come.wait(_POLL_S):
                return
        if runner.newest_batch < until_batch:
            _log.warning("%s gets no further than batch %d", start.fragment_id, runner.newest_batch)
    finally:
        runner.stop()
