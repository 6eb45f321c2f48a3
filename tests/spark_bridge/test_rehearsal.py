"""When a rehearsal is over, and what is left of those that were for nothing. That a join's runs: test_engine.py."""

from __future__ import annotations

import json
import logging
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from pyspark.sql import SparkSession

from sbon.engine_messages import Instantiate, Rehearse
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec, WatermarkSteps
from spark_bridge import engine, rehearsal
from spark_bridge.engine import Fragments
from spark_bridge.fragment_runner import RunnerSettings
from spark_bridge.rehearsal import Rehearsals, is_over
from spark_bridge.session import CHANGELOGS

DAY_MS = 24 * 3600 * 1000


@pytest.mark.parametrize(
    ("before_s", "now_s", "over"),
    [
        ([], [], False),
        ([], [4.0], False),
        ([], [4.0, 4.0], False),
        ([], [4.0, 4.0, 4.0], True),  # no faster twice: nothing is left to be learned
        ([], [4.0, 1.5, 1.0, 0.98], False),  # no faster once: that may be chance
        ([], [4.0, 1.5, 1.0, 2.0, 0.9], False),
        ([], [4.0, 1.5, 1.0, 0.98, 1.1], True),
        ([], [15.0, 8.0], True),  # a busy host: the move is waiting
        ([15.0, 8.0], [], False),  # and goes on when it comes again
        ([15.0, 8.0], [2.0], False),
        ([4.0, 1.0], [1.0, 1.0], True),
        ([4.0, 1.0, 1.0, 1.0], [], True),
        ([], [61.0], True),
        ([], [4.0 * 0.8**number for number in range(12)], True),
    ],
)
def test_it_goes_on_as_long_as_that_makes_it_faster(before_s: list[float], now_s: list[float], over: bool) -> None:
    assert is_over([*before_s, *now_s], sum(now_s)) is over


class FakeSession:
    """Of Spark's, with nothing but its settings."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}
        self.conf = SimpleNamespace(set=self.settings.__setitem__)

    def newSession(self) -> FakeSession:  # noqa: N802
        return FakeSession()


def test_the_first_start_leaves_snapshots_for_those_after_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[FakeSession] = []
    monkeypatch.setattr(rehearsal, "_run", lambda spark, *_: started.append(spark))
    monkeypatch.setattr(rehearsal, "is_over", lambda taken_s, _: len(taken_s) == 4)
    spark = FakeSession()
    spec = FragmentSpec("q-join1", "q", FragmentKind.JOIN, "SELECT 1", (PortSpec("in0", ("q-a",)),))
    rehearsals = Rehearsals(cast(SparkSession, spark), RunnerSettings())
    assert rehearsals.rehearse(Rehearse("q-join1", 1, "n", spec, str(tmp_path / "rehearsal"), ("{}",)))
    assert started[0].settings == {CHANGELOGS: "false"}
    assert started[1:] == [spark] * 3
    assert not spark.settings, "other fragments start in that session meanwhile"


def test_only_so_many_plans_are_remembered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    started: list[str] = []
    monkeypatch.setattr(rehearsal, "_run", lambda _spark, start, *_: started.append(start.spec.sql))
    monkeypatch.setattr(rehearsal, "is_over", lambda taken_s, _: len(taken_s) == 1)
    monkeypatch.setattr(rehearsal, "_MOST_REMEMBERED", 2)
    rehearsals = Rehearsals(cast(SparkSession, FakeSession()), RunnerSettings())
    for number in (1, 2, 2, 1, 3, 3, 1):
        spec = FragmentSpec("q-filter1", "q", FragmentKind.FILTER, f"SELECT {number}", (PortSpec("in0", ("q-a",)),))
        rehearsals.rehearse(Rehearse("q-filter1", 1, "n", spec, str(tmp_path / "rehearsal"), ("{}",)))
    assert started == [f"SELECT {number}" for number in (1, 2, 3, 1)], "the oldest is a new one again"
    assert len(rehearsals._taken_s) == 2


def test_who_has_come_does_not_wait_for_its_rehearsal(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A replica may be rehearsed when its fragment comes, by a move or because its host is lost."""
    rehearsed, began = threading.Event(), threading.Event()

    def run(*arguments: object) -> None:
        began.set()
        assert isinstance(arguments[-1], threading.Event)
        if arguments[-1].wait(60.0):
            rehearsed.set()

    def make(*_: object) -> SimpleNamespace:
        return SimpleNamespace(output_schema="", newest_batch=-1)

    monkeypatch.setattr(rehearsal, "_run", run)
    monkeypatch.setattr(engine, "FragmentRunner", make)
    monkeypatch.setattr(engine, "FragmentInput", lambda *_: pytest.fail("it is here already"))
    fragments = Fragments(cast(SparkSession, FakeSession()), RunnerSettings(), lambda _: None, lambda: None)
    spec = FragmentSpec("q-join1", "q", FragmentKind.JOIN, "SELECT 1", (PortSpec("in0", ("q-a",)),))
    rehearse = Rehearse("q-join1", 1, "n", spec, str(tmp_path / "rehearsal"), ("{}",))
    thread = threading.Thread(target=fragments.carry_out, args=(0, rehearse))
    thread.start()
    assert began.wait(60.0)
    reply = fragments.carry_out(1, Instantiate("q-join1", 1, "n", spec, str(tmp_path / "it"), ("{}",)))
    assert reply.error is None
    thread.join(60.0)
    assert rehearsed.is_set()


def test_only_the_newest_that_are_expected_are_kept_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    ready: list[str] = []

    def make(_spark: object, spec: FragmentSpec, _schemas: object) -> SimpleNamespace:
        ready.append(spec.fragment_id)
        return SimpleNamespace(made_for=spec.fragment_id)

    monkeypatch.setattr(Rehearsals, "rehearse", lambda *_: True)
    monkeypatch.setattr(engine, "FragmentInput", make)
    fragments = Fragments(cast(SparkSession, None), RunnerSettings(), lambda _: None, lambda: None)
    for number in [*range(12), 6]:
        spec = FragmentSpec(f"q-join{number}", "q", FragmentKind.JOIN, "SELECT 1", (PortSpec("in0", ("q-a",)),))
        reply = fragments.carry_out(0, Rehearse(spec.fragment_id, 1, "n", spec, "/nowhere", ("{}",)))
        assert reply.error is None
    assert len(ready) == 13
    assert list(fragments._prepared) == [f"q-join{number}" for number in (4, 5, 7, 8, 9, 10, 11, 6)]


@pytest.mark.spark
def test_windows_of_any_length_close_in_a_rehearsal(
    spark: SparkSession, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    """It waits for the batch that closes them; who moves an aggregate waits for it."""
    monkeypatch.setattr(rehearsal, "is_over", lambda taken_s, _: len(taken_s) == 1)
    spec = FragmentSpec(
        "q-aggregate1",
        "q",
        FragmentKind.AGGREGATE,
        "SELECT window.start AS start, count(*) AS n FROM in0 GROUP BY window(ts, '365 days')",
        (PortSpec("in0", ("q-a",)),),
        event_time="start",
        watermark_lag_ms=365 * DAY_MS,
        watermark_steps=WatermarkSteps(365 * DAY_MS),
        stateful=True,
    )
    schema = spark.sql("SELECT CAST(NULL AS TIMESTAMP) ts").schema
    described = json.dumps({"schema": schema.jsonValue(), "event_time": "ts"})
    with caplog.at_level(logging.INFO):
        rehearsals = Rehearsals(spark, RunnerSettings())
        assert rehearsals.rehearse(Rehearse("q-aggregate1", 1, "n", spec, str(tmp_path / "it"), (described,)))
    told = [record.message for record in caplog.records if record.name == rehearsal.__name__]
    assert len(told) == 1
    assert told[0].startswith("rehearsed q-aggregate1: ")
