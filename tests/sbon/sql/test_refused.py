"""What is not supported is refused in one line that names it, its place and the remedy."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sbon.errors import QueryError
from sbon.sql.catalog import Catalog
from sbon.sql.plan import plan_query
from tests.sbon.sql.fixtures import blocks
from tests.sbon.sql.streams import CATALOG


@pytest.mark.parametrize(("query", "message"), blocks("refused.txt"))
def test_refused(query: str, message: str) -> None:
    with pytest.raises(QueryError) as refusal:
        plan_query(query, "q", CATALOG)
    assert str(refusal.value) == message


@pytest.mark.parametrize("query", ["", " ;; ", "-- nothing"])
def test_empty(query: str) -> None:
    with pytest.raises(QueryError, match="the query is empty; write INSERT INTO sink SELECT"):
        plan_query(query, "q", CATALOG)


def test_places_count_lines() -> None:
    with pytest.raises(QueryError, match="unknown column 'orign' at line 3, column 5; did you mean 'origin'"):
        plan_query("INSERT INTO result\nSELECT\n    orign\nFROM flights", "q", CATALOG)


def test_an_empty_catalog_says_what_to_declare() -> None:
    with pytest.raises(
        QueryError, match=r"unknown stream 'flights'.*; no stream is known here; declare one in \[\[stream\]\]"
    ):
        plan_query("INSERT INTO result SELECT a FROM flights", "q", Catalog({}, CATALOG.sinks))


@pytest.mark.parametrize(
    "query",
    [
        "INSERT INTO result SELECT " + "(" * 3000 + "1" + ")" * 3000 + " AS a FROM flights",
        "INSERT INTO result SELECT origin FROM flights WHERE " + " OR ".join(["seats = 1"] * 9000),
    ],
    ids=["parentheses", "too many characters"],
)
def test_oversized_queries(query: str) -> None:
    with pytest.raises(QueryError, match=r"nested too deeply|characters"):
        plan_query(query, "q", CATALOG)


_PIECES = r"""
    INSERT INTO result SELECT origin , ts f . * FROM flights weather AS JOIN ON = < AND BETWEEN WHERE ( ) GROUP BY '1
    window '1hour' count HAVING UNION ALL INTERVAL 1 HOUR CASE WHEN END NOT NULL IN `x` ` " -- [ ] : + - rand"""
_WORDS = st.sampled_from(_PIECES.split())


def test_line_breaks_in_names_stay_out_of_messages() -> None:
    with pytest.raises(QueryError, match="unknown stream 'fl ights'"):
        plan_query("INSERT INTO result SELECT origin FROM `fl\nights`", "q", CATALOG)


@settings(deadline=None)
@given(st.one_of(st.text(max_size=40), st.lists(_WORDS, max_size=25).map(" ".join)), st.booleans())
def test_any_text_is_planned_or_refused_in_one_line(text: str, select: bool) -> None:
    refusal = ""
    try:
        plan_query(f"INSERT INTO result SELECT origin FROM flights f {text}" if select else text, "q", CATALOG)
    except QueryError as error:
        refusal = str(error)
    assert "\n" not in refusal
