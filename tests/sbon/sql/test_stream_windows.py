"""Windows in brackets, and the papers' queries with them."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sbon.fragment import FragmentKind
from sbon.sql.catalog import Catalog
from sbon.sql.durations import duration_text, parse_duration_us
from sbon.sql.joined_windows import Windowed, joined_in_time
from sbon.sql.parameters import bind
from sbon.sql.plan import plan_query
from sbon.sql.stream_windows import StreamWindow
from sbon.sql.time_bounds import conjunct_bounds
from sbon.streams import SinkSpec, StreamSpec

AIRLINE = {
    "FLIGHTS": "ts TIMESTAMP, NUM INT, GATE STRING, DEST STRING, TERMINAL STRING, CARRIER_CODE STRING, STATUS STRING",
    "CHECKINS": "ts TIMESTAMP, FLIGHT INT, STATUS STRING, VACANT_SEATS INT",
    "BAGGAGE": "ts TIMESTAMP, FLIGHT INT, STATUS STRING, AREA STRING",
    "WEATHER": "ts TIMESTAMP, CITY STRING, FORECAST STRING",
    "Sensor1": "ts TIMESTAMP, carID STRING, type STRING, MPH INT",
    "Sensor2": "ts TIMESTAMP, carID STRING, type STRING, MPH INT",
}
CATALOG = Catalog(
    {name: (StreamSpec(name, "replay", schema, "ts"), f"node-of-{name}") for name, schema in AIRLINE.items()},
    {"DISPLAY": (SinkSpec("DISPLAY", "console"), "terminal")},
)
# Seshadri et al., TPDS'09, section 4.1.1; CHECK-INS is CHECKINS here, which needs no quotes.
GATE_AGENT = """
    INSERT INTO DISPLAY
    SELECT FL.GATE, BG.STATUS, CI.STATUS
    FROM FLIGHTS FL [RANGE 5 MINUTES], BAGGAGE BG
    [RANGE 1 MINUTE], CHECKINS CI [RANGE 1 MINUTE]
    WHERE FL.NUM = CI.FLIGHT AND FL.NUM =
    BG.FLIGHT AND FL.NUM = ?;"""
TERMINAL = """
    INSERT INTO DISPLAY
    SELECT FL.NUM, FL.GATE, BG.AREA, CI.STATUS, WR.FORECAST
    FROM FLIGHTS FL [RANGE 5 MINUTES SLIDE 1 MINUTE], WEATHER WR
    [RANGE 5 MINUTES SLIDE 1 MINUTE], CHECKINS CI [RANGE 1 MINUTE SLIDE 1 MINUTE], BAGGAGE BG
    [RANGE 1 MINUTE SLIDE 1 MINUTE]
    WHERE FL.DEST = WR.CITY AND FL.NUM = CI.FLIGHT
    AND FL.NUM = BG.FLIGHT AND FL.TERMINAL = :terminal
    AND FL.CARRIER_CODE = 'DL';"""


# Seshadri et al., ICWS'08, figure 1's Q1 and Q2; columns with a blank in their names have an underscore here.
OVERHEAD = """
    INSERT INTO DISPLAY
    SELECT FLIGHTS.NUM, FLIGHTS.GATE, BAGGAGE.AREA, CHECKINS.STATUS, WEATHER.FORECAST FROM FLIGHTS [RANGE 5 MIN],
    WEATHER [RANGE 5 MIN], CHECKINS [RANGE 1 MIN], BAGGAGE [RANGE 1 MIN] WHERE FLIGHTS.DEST = WEATHER.CITY AND
    FLIGHTS.NUM = CHECKINS.FLIGHT AND FLIGHTS.NUM = BAGGAGE.FLIGHT AND FLIGHTS.TERMINAL = 'TERMINAL A' AND
    FLIGHTS.CARRIER_CODE = 'DL';"""
VACANT = """
    INSERT INTO DISPLAY
    SELECT FLIGHTS.NUM, CHECKINS.STATUS, CHECKINS.VACANT_SEATS FROM FLIGHTS [RANGE 5 MIN], CHECKINS [RANGE 5 MIN]
    WHERE FLIGHTS.NUM = CHECKINS.FLIGHT AND FLIGHTS.CARRIER_CODE IN ('DL','CO');"""


# T. Sutherland, D-CAPE, 2004, section 3.1; "Sensor 1" is Sensor1 here.
LEFT_TURN = """
    INSERT INTO DISPLAY
    SELECT R1.carID, R1.MPH
    FROM Sensor2 as R2 [Range 2min], Sensor1 as R1 [Range 2min]
    WHERE R1.carID = R2.carID AND R1.type = "Car";"""


@pytest.mark.parametrize(("text", "joins"), [(OVERHEAD, 3), (VACANT, 1), (LEFT_TURN, 1)])
def test_queries_of_other_papers_are_planned(text: str, joins: int) -> None:
    plan = plan_query(text, "q", CATALOG)
    assert [spec.kind for spec in plan.fragments].count(FragmentKind.JOIN) == joins
    assert any(re.search("INTERVAL '[25]' MINUTE", spec.sql) for spec in plan.fragments)


def test_the_gate_agents_query_is_planned() -> None:
    plan = plan_query(bind(GATE_AGENT, ["1234"], {}), "q", CATALOG)
    assert [spec.kind for spec in plan.fragments].count(FragmentKind.JOIN) == 2
    assert any("NUM = 1234" in spec.sql for spec in plan.fragments if spec.kind is FragmentKind.SOURCE)
    last_join = [spec for spec in plan.fragments if spec.kind is FragmentKind.JOIN][-1]
    assert "AS BG_STATUS" in last_join.sql
    assert "AS CI_STATUS" in last_join.sql
    assert plan.fragments[-1].output_interval_ms == 0


def test_the_terminals_query_is_planned_and_writes_once_a_minute() -> None:
    plan = plan_query(bind(TERMINAL, [], {"terminal": "S"}), "q", CATALOG)
    assert [spec.kind for spec in plan.fragments].count(FragmentKind.JOIN) == 3
    assert plan.fragments[-1].output_interval_ms == 60_000
    assert all(spec.output_interval_ms == 0 for spec in plan.fragments[:-1])


@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=4),
    st.lists(st.integers(0, 12), min_size=4, max_size=4),
)
def test_rows_join_if_they_are_in_their_windows_at_one_time(ranges: list[int], times: list[int]) -> None:
    """CQL (Arasu et al. 2006): at time t the window of a stream has its rows with event times in [t - r, t]."""
    sources = [
        Windowed(f"s{i}", StreamWindow(range_us, None, ""), (f"t{i}", "ts")) for i, range_us in enumerate(ranges)
    ]
    conditions = [part for i, source in enumerate(sources) for part in joined_in_time(sources[:i], source)]
    at = {f"t{i}": times[i] for i in range(len(ranges))}
    bounds = [(pair, least) for part in conditions for pair, least in conjunct_bounds(part).items()]
    assert len(bounds) == len(ranges) * (len(ranges) - 1)
    joins = all(at[a] - at[b] >= least for (a, b), least in bounds)
    together = any(
        all(t - range_us <= moment <= t for range_us, moment in zip(ranges, at.values(), strict=True))
        for t in range(20)
    )
    assert joins == together


@pytest.mark.parametrize("text", ["5 minutes", "1 hour", "90 seconds", "1 week", "250 milliseconds"])
def test_lengths_are_written_as_they_are_read(text: str) -> None:
    length_us = parse_duration_us(text)
    assert length_us is not None
    assert duration_text(length_us) == text
