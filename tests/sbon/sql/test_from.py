"""Queries that are only about what happens from some event time on."""

from __future__ import annotations

from sbon.fragment import FragmentSpec
from sbon.sql.plan import prepare_query
from tests.sbon.sql.streams import CATALOG

FROM_MS = 3_600_000
SINCE = "TIMESTAMP_MILLIS(3600000)"
NEAR = "f.origin = w.origin AND f.ts BETWEEN w.ts AND w.ts + INTERVAL 59 MINUTES"


def cut(select: str, from_ms: int | None = FROM_MS) -> dict[str, FragmentSpec]:
    plan = prepare_query(f"INSERT INTO result {select}", CATALOG, from_ms).cut("q")
    return {spec.fragment_id.removeprefix("q-"): spec for spec in plan.fragments}


def test_streams_begin_then_and_windows_that_are_whole() -> None:
    window = "SELECT window.end AS e, count(*) AS n FROM {} GROUP BY window(f.ts, '1 hour')"
    alone = cut(window.format("flights f"))
    assert alone["source1"].sql == f"SELECT ts AS f__ts FROM source WHERE ts >= {SINCE}"
    assert alone["aggregate1"].sql.endswith(f"HAVING window.start >= {SINCE}")
    joined = cut(window.format(f"flights f JOIN weather w ON {NEAR}"))
    assert [SINCE in joined[source].sql for source in ("source1", "source2")] == [True, True]
    # Flights of the first 59 minutes lack the weather before.
    assert joined["aggregate1"].sql.endswith("HAVING window.start >= TIMESTAMP_MILLIS(7140000)")


def test_it_is_no_part_of_what_is_computed_but_others_are_told() -> None:
    select = f"SELECT f.ts, f.origin FROM flights f JOIN weather w ON {NEAR}"
    begun, whole = cut(select)["join1"].computes, cut(select, None)["join1"].computes
    assert begun is not None
    assert whole is not None
    assert (begun.body, begun.filters, begun.columns) == (whole.body, whole.filters, whole.columns)
    assert (begun.from_ms, whole.from_ms) == (7_140_000, None)


def test_rates_are_those_of_what_goes_on() -> None:
    assert (
        cut("SELECT ts FROM flights")["source1"].selectivity
        == cut("SELECT ts FROM flights", None)["source1"].selectivity
    )
