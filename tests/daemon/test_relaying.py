"""Who reads through whom; whole daemons that do so are in test_reuse."""

from __future__ import annotations

from daemon.peering.subscription_messages import Fellow
from daemon.queries.relaying import choose
from overlay.records import NodeRecord
from sbon.coordinate import origin
from sbon.engine_messages import FlightAddress
from sbon.placement.problem import CostView

ADDRESS = FlightAddress("host", 1)
#: Round trips: one producer, two near each other beyond the sea, the latter a bit farther from it, and one half-way.
RTT_MS = {
    ("producer", "east"): 100.0,
    ("producer", "farther"): 105.0,
    ("producer", "halfway"): 50.0,
    ("east", "farther"): 8.0,
    ("east", "halfway"): 70.0,
    ("farther", "halfway"): 60.0,
}
VIEW = CostView(lambda _: origin(3), lambda a, b: RTT_MS.get((a, b)), lambda _: 0.0)


def fellow(node_id: str, consumer: str, *, is_own: bool = False) -> Fellow:
    record = NodeRecord(node_id=node_id, name=node_id, host="h", port=1, boot_id=1, coordinate=origin(3))
    return Fellow("f", f"{consumer}:in0", record, ADDRESS, is_own)


def through(host: str, consumer: str, *fellows: Fellow, present: str | None = None) -> str | None:
    chosen = choose(host, consumer, "producer", fellows, present, VIEW)
    return None if chosen is None else chosen.record.node_id


def test_who_is_farther_reads_through_who_is_nearer_and_never_the_other_way_round() -> None:
    assert through("farther", "b", fellow("east", "a"), fellow("halfway", "c")) == "east"
    assert through("east", "a", fellow("farther", "b"), fellow("halfway", "c")) is None, "that is no saving"
    assert through("east", "a", fellow("farther", "b", is_own=True)) == "farther", "who never reads through others"
    assert through("producer", "a", fellow("producer", "b")) is None


def test_of_two_on_one_node_one_reads_for_both() -> None:
    assert through("east", "b", fellow("east", "a")) == "east"
    assert through("east", "a", fellow("east", "b")) is None
    assert through("east", "a", fellow("east", "b", is_own=True)) == "east"


def test_a_relay_is_kept_as_long_as_it_is_nearer_at_all() -> None:
    assert through("farther", "b", fellow("halfway", "c"), present="halfway") == "halfway"
    assert through("farther", "b", fellow("halfway", "c")) is None
    assert through("farther", "b", fellow("halfway", "c"), fellow("east", "a"), present="halfway") == "east"
