from __future__ import annotations

import msgspec
import pytest

from daemon.cli import tables
from daemon.control.messages import (
    Candidate,
    Event,
    Explanation,
    LatencyReply,
    LinkInfo,
    LinksReply,
    NodeInfo,
    NodesReply,
    OperatorExplanation,
    OperatorInfo,
    OperatorsReply,
    QueriesReply,
    QueryInfo,
    StatusReply,
)
from sbon.coordinate import Coordinate

HERE = Coordinate((1.0, -2.5), 0.5, 0.07)


def test_status(capsys: pytest.CaptureFixture[str]) -> None:
    reply = StatusReply("a", "0" * 32, "127.0.0.1:1", "0.1", HERE, 0.25, True, (), ("q-join1",), "stopped", 3700, {})
    tables.show_status(reply)
    text = capsys.readouterr().out
    for expected in ("(1.0, -2.5) + 0.5 ms, error 7%", "0.25", "q-join1", "1h01m", "sbon join --help"):
        assert expected in text


def test_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_nodes(NodesReply((NodeInfo("b", "0", "127.0.0.1:1", "suspect", HERE, 0.0, False, 12.34, None),)))
    assert "b     127.0.0.1:1  suspect         -    12.3 ms     7%  0.00  refuses" in capsys.readouterr().out


@pytest.mark.parametrize(("measured", "expected"), [(None, "never measured"), (20.0, "measured 20.0 ms (9 samples)")])
def test_latency(capsys: pytest.CaptureFixture[str], measured: float | None, expected: str) -> None:
    tables.show_latency(LatencyReply("a", "b", 21.0, measured, 9, 0.1))
    assert f"round trip a - b: {expected}, predicted 21.0 ms (error 10%)" in capsys.readouterr().out


def test_queries_and_operators_with_their_errors_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    error = "[bold]cannot read [/data]: see the log"
    tables.show_queries(QueriesReply((QueryInfo("q1", "failed", "a", 3, 0.0, "SELECT\n 1", error, 1500.0, 2.5e6),)))
    operator = OperatorInfo("q1-join1", "q1", "join", "b", 2, "failed", 1234.0, output_rows=7, error=error)
    tables.show_operators(OperatorsReply((operator,)))
    text = capsys.readouterr().out
    for expected in (f"failed: {error}", "SELECT 1", "1.5 kB", "2.5 MB", "q1-join1", "1.2 kB"):
        assert expected in text


def test_nothing_there(capsys: pytest.CaptureFixture[str]) -> None:
    tables.show_queries(QueriesReply(()))
    tables.show_operators(OperatorsReply(()))
    assert capsys.readouterr().out.count("sbon submit --help") == 2


def test_explanation(capsys: pytest.CaptureFixture[str]) -> None:
    candidates = (Candidate("b", 0.0, 10.0, 12.0, True), Candidate("c", 0.5, 11.0, 15.0, False))
    chosen = OperatorExplanation(
        "q1-join1", "join", "b", False, "SELECT *", "least cost", (1.0, 2.0), candidates, 12.0, "c", 15.0
    )
    pinned = OperatorExplanation("q1-source1", "source", "a", True, "SELECT ts", "pinned: a owns its source")
    tables.show_explanation(Explanation("q1", "INSERT INTO s SELECT 1", (pinned, chosen), 12.0, 40.0))
    text = capsys.readouterr().out
    for expected in (
        "network usage 12 B in transit; with everything at the consumer 40 B",
        "q1-source1 (source) at a: pinned: a owns its source",
        "virtual point (1.0, 2.0) ms",
        "cost 12 B; the runner-up, c: 15 B",
        "in part predicted",
    ):
        assert expected in text


def test_links_say_what_placement_goes_by(capsys: pytest.CaptureFixture[str]) -> None:
    estimated = LinkInfo("q1", "q1-source1", "a", "q1-join1", "b", 1500.0, None, None, 20.0, False, 15.0)
    tables.show_links(LinksReply((estimated,)))
    assert capsys.readouterr().out.split()[-9:] == ["1.5", "kB/s", "-", "-", "20.0", "ms", "15", "B", "estimated"]
    measured = msgspec.structs.replace(estimated, bytes_per_s=7.0, rows_per_s=0.5, is_measured=True)
    tables.show_links(LinksReply((measured,)))
    assert capsys.readouterr().out.split()[-8:] == ["7", "B/s", "0.5", "20.0", "ms", "15", "B", "measured"]


def test_events() -> None:
    line = tables.event_line(
        Event(0, 1.5, "a", "migrated", {"target": "b", "reason": "it is near", "downtime_ms": 1.5})
    )
    assert line.endswith('.500 a migrated target=b reason="it is near" downtime_ms=1.5')
