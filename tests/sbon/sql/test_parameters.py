from __future__ import annotations

import pytest

from sbon.errors import QueryError
from sbon.sql.parameters import bind


def test_values_are_written_into_the_text() -> None:
    text = "INSERT INTO r SELECT a -- is it ?\nFROM s WHERE a = ? AND b = :who AND c = '?:who' AND d = ? AND e = :who"
    bound = bind(text, ["12.5", "O'Hare\\"], {"who": "true"})
    assert bound == (
        "INSERT INTO r SELECT a -- is it ?\nFROM s WHERE a = 12.5 AND b = true AND c = '?:who' "
        "AND d = 'O\\'Hare\\\\' AND e = true"
    )


@pytest.mark.parametrize(
    ("text", "values", "named", "message"),
    [
        ("SELECT ?", [], {"a": "1"}, "the parameter \\? at line 1, column 8 has no value; give it with --param VALUE"),
        ("SELECT ?", ["1", "2"], {}, "2 values for 1 parameters"),
        ("SELECT :a", ["1"], {}, "the parameter :a at line 1, column 8 has no value; give --param a=VALUE"),
        ("SELECT :a", [], {"a": "1", "b": "2"}, "the query has no parameter :b; correct --param b=..."),
        ("SELECT 'a", ["1"], {}, "not closed"),
        ("SELECT doc:a", [], {"a": "1"}, "the query has no parameter :a"),
    ],
)
def test_what_does_not_fit_is_refused(text: str, values: list[str], named: dict[str, str], message: str) -> None:
    with pytest.raises(QueryError, match=message):
        bind(text, values, named)
