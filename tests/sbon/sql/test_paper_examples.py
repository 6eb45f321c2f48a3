"""The seismic and the intrusion example; test_cut_equals_uncut runs them."""

from __future__ import annotations

from sbon.fragment import FragmentKind
from sbon.sql.plan import plan_query
from tests.sbon.sql.paper_examples import CATALOG, EXAMPLES
from tests.sbon.sql.reading import offers, plan_viewing


def test_they_have_the_operators_of_the_figure() -> None:
    kinds = {
        sink: [spec.kind for spec in plan_query(f"INSERT INTO {sink} {select}", "q", CATALOG).fragments]
        for sink, select in EXAMPLES.items()
    }
    source, sink = FragmentKind.SOURCE, FragmentKind.SINK
    assert kinds["guards"] == [source, source, FragmentKind.JOIN, sink]
    assert kinds["agency"] == [source, source, source, FragmentKind.UNION, FragmentKind.AGGREGATE, sink]


def test_consumers_of_the_same_seismic_data_share_its_operators() -> None:
    plan = plan_viewing(EXAMPLES["press"], CATALOG, offers(EXAMPLES["agency"], CATALOG)[1], {})
    assert plan is not None
    assert [spec.kind for spec in plan.fragments] == [FragmentKind.SINK]
    assert plan.fragments[0].ports[0].producers == ("q1-aggregate1",)
