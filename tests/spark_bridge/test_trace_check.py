"""The check of traces finds what the model would not do; real traces are checked in test_engine.py."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.spark_bridge.trace_check import TraceCheck, read_traces

Line = dict[str, Any]


def line(fragment: str, event: str, **fields: object) -> Line:
    return {"fragment": fragment, "event": event, **fields}


def pulled(batch: int, *, is_new: bool = True) -> Line:
    return line("sink", "pulled", port="in0", producer="source", batch=batch, is_new=is_new)


def started(next_batch: int, newest: int) -> Line:
    return line("sink", "started", due={"in0": {"source": next_batch}}, newest=newest, consumers=[], is_sink=True)


#: A source says three batches, of which a sink reads one, and, after a start from its folder, all of them.
TRACE = [
    line("source", "started", due={}, newest=-1, consumers=["sink:in0"], is_sink=False),
    started(0, -1),
    line("source", "put", batch=0, ends={}, rows=5),
    pulled(0),
    line("source", "put", batch=1, ends={}, rows=0),
    line("sink", "put", batch=0, ends={"in0": 1}, rows=None),
    pulled(1),
    line("sink", "forgot", port="in0", end=1),
    line("source", "acknowledged", consumer="sink:in0", batch=0, oldest=0),
    line("sink", "put", batch=1, ends={"in0": 2}, rows=None),
    pulled(2),  # killed before it was there
    started(2, -1),
    line("source", "put", batch=2, ends={}, rows=3),
    line("sink", "put", batch=1, ends={"in0": 2}, rows=None),  # again
    pulled(1, is_new=False),
    pulled(2),
    line("sink", "put", batch=2, ends={"in0": 3}, rows=None),
    line("source", "acknowledged", consumer="sink:in0", batch=2, oldest=1),
]
TRACE.insert(10, TRACE.pop(12))  # what is pulled has been said


def check_all(trace: list[Line]) -> TraceCheck:
    check = TraceCheck()
    check.check(trace)
    assert check.delivered("sink") == {"source": 8}
    return check


def test_what_an_engine_may_do_is_what_the_model_does() -> None:
    assert check_all(TRACE).fragments["sink"].starts == 2


def without(number: int) -> Callable[[list[Line]], None]:
    def change(trace: list[Line]) -> None:
        del trace[number]

    return change


def with_other(number: int, **fields: object) -> Callable[[list[Line]], None]:
    def change(trace: list[Line]) -> None:
        trace[number] = {**trace[number], **fields}

    return change


@pytest.mark.parametrize(
    "change",
    [
        pytest.param(without(3), id="a segment is read that was not pulled"),
        pytest.param(with_other(3, batch=1), id="a segment is left out"),
        pytest.param(with_other(9, ends={"in0": 3}), id="a batch reads more than there is"),
        pytest.param(with_other(9, batch=2), id="a batch is left out"),
        pytest.param(with_other(13, ends={"in0": 1}), id="a batch reads something else when it is said again"),
        pytest.param(with_other(14, is_new=True), id="a segment is taken in twice"),
        pytest.param(with_other(7, end=2), id="an entry is forgotten before it is read"),
        pytest.param(with_other(8, batch=1), id="what was not read is acknowledged"),
        pytest.param(with_other(8, oldest=2), id="what was not acknowledged is trimmed"),
        pytest.param(with_other(12, due={"in0": {"source": 1}}), id="a start forgets what was there"),
        pytest.param(with_other(16, ends={"in0": 2}), id="a row is lost"),
    ],
)
def test_a_divergence_is_found(change: Callable[[list[Line]], None]) -> None:
    trace = list(TRACE)
    change(trace)
    with pytest.raises(AssertionError):  # a divergence, a row that the model misses, or rows that have not come
        check_all(trace)


def test_traces_of_several_engines_are_read_in_order_and_a_line_that_a_kill_cut_off_is_left_out(tmp_path: Path) -> None:
    for name, times in (("a", (1, 4)), ("b", (2, 3))):
        lines = [json.dumps({"at_ns": at_ns}) for at_ns in times]
        (tmp_path / name).write_text("\n".join([*lines, '{"at_n']))
    assert [event["at_ns"] for event in read_traces([tmp_path / "a", tmp_path / "b"])] == [1, 2, 3, 4]
