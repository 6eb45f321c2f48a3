"""What can have no type is refused, with its place."""

from __future__ import annotations

import pytest

from sbon.errors import QueryError
from sbon.sql.plan import plan_query
from tests.sbon.sql.streams import CATALOG
from tests.sbon.sql.types_cases import ACCEPTED, REFUSED


@pytest.mark.parametrize(("select", "said"), REFUSED.items())
def test_it_is_refused(select: str, said: str) -> None:
    with pytest.raises(QueryError) as refusal:
        plan_query(f"INSERT INTO result {select}", "q", CATALOG)
    assert said in str(refusal.value)


@pytest.mark.parametrize("select", ACCEPTED)
def test_what_has_a_type_is_planned(select: str) -> None:
    plan_query(f"INSERT INTO result {select}", "q", CATALOG)
