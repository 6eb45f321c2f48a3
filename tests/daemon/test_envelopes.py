"""What members say about places, wherever in a message it is."""

from __future__ import annotations

import msgspec
import pytest

from daemon.peering.envelopes import _fields_with_places, check_places
from daemon.peering.host_messages import DerivedStream, Description
from daemon.peering.keeper_messages import AcceptRecord
from daemon.peering.query_messages import QueryViews
from daemon.peering.subscription_messages import SubscriptionsRenewed
from daemon.queries.regional_planning import PartPlanned, PlanPart
from overlay.region_messages import Elsewhere, MemberReport, Placed, Roster, Withdraw
from sbon.coordinate import origin
from sbon.errors import RemoteProtocolError
from sbon.planning.part import PlacedJoin, PlacedTree, Spot, TakenLeaf


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (MemberReport, ("member",)),
        (Placed, ("found",)),
        (Roster, ("coordinator", "standby", "members", "above")),
        (Elsewhere, ("ask",)),
        (Withdraw, ()),
        (Description, ("derived",)),
        (DerivedStream, ("records",)),
        (QueryViews, ("queries",)),
        (AcceptRecord, ()),
        (SubscriptionsRenewed, ("fellows",)),
        (PlanPart, ("part",)),
        (PartPlanned, ("tree",)),
        (PlacedJoin, ("spot", "left", "right")),
    ],
)
def test_only_what_may_have_places_in_it_is_looked_through(kind: type[msgspec.Struct], fields: tuple[str, ...]) -> None:
    assert _fields_with_places(kind) == fields


def test_a_place_is_found_however_deep_it_is() -> None:
    """Deeper than functions can call each other."""

    def plan(innermost: int) -> PartPlanned:
        tree: PlacedTree = PlacedJoin(Spot("a", origin(innermost), True), TakenLeaf(0), TakenLeaf(1))
        for number in range(10_000):
            tree = PlacedJoin(Spot("a", origin(2), True), tree, TakenLeaf(number))
        return PartPlanned(tree, 1.0, ())

    check_places(plan(2), 2)
    with pytest.raises(RemoteProtocolError, match="3 dimensions"):
        check_places(plan(3), 2)
