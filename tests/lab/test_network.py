from __future__ import annotations

import math
import random

from tests.lab.network import MAX_PACKETS, WideAreaNetwork

RTT_MS = [[0.0, 40.0, 100.0], [60.0, 0.0, 10.0], [100.0, 10.0, 0.0]]


def make_network() -> WideAreaNetwork:
    return WideAreaNetwork(RTT_MS, random.Random(1))


def arrivals(network: WideAreaNetwork) -> list[tuple[float, int, bytes]]:
    """(when, where, what) of all that is on its way."""
    found = []
    while (due := network.next_due()) < math.inf:
        found += [(round(due, 6), destination, packet) for destination, packet in network.arrived(due)]
    return found


def test_a_packet_takes_half_of_the_round_trip_in_its_direction() -> None:
    network = make_network()
    network.send(b"there", 0, 1, now=5.0)
    network.send(b"back", 1, 0, now=5.0)
    network.send(b"near", 1, 2, now=5.0)
    assert list(network.arrived(5.004)) == []
    assert arrivals(network) == [(5.005, 2, b"near"), (5.02, 1, b"there"), (5.03, 0, b"back")]


def test_jitter_delays_and_keeps_the_order_of_a_path() -> None:
    network = make_network()
    network.set_jitter(5.0)
    for number in range(200):
        network.send(bytes([number]), 0, 1, now=number / 1000)
    found = arrivals(network)
    assert [packet[0] for _, _, packet in found] == list(range(200))
    delays_ms = [when * 1000 - packet[0] for when, _, packet in found]
    assert min(delays_ms) >= 20.0
    assert len({round(delay_ms, 2) for delay_ms in delays_ms}) > 100


def test_loss_is_of_one_direction() -> None:
    network = make_network()
    network.set_loss(0, 1, 0.25)
    for _ in range(1000):
        network.send(b"", 0, 1, now=0.0)
        network.send(b"", 1, 0, now=0.0)
    assert 200 < network.counters["lost"] < 300
    came = [destination for _, destination, _ in arrivals(network)]
    assert came.count(0) == 1000
    assert came.count(1) == 1000 - network.counters["lost"]


def test_a_cut_stops_both_directions_until_it_is_healed_but_not_what_is_on_its_way() -> None:
    network = make_network()
    network.send(b"before", 0, 1, now=0.0)
    network.cut(1, 0)
    network.send(b"during", 0, 1, now=0.0)
    network.send(b"during", 1, 0, now=0.0)
    network.send(b"elsewhere", 0, 2, now=0.0)
    network.heal(0, 1)
    network.send(b"after", 0, 1, now=0.0)
    assert [packet for _, _, packet in arrivals(network)] == [b"before", b"after", b"elsewhere"]
    assert network.counters["cut"] == 2


def test_a_changed_round_trip_is_for_packets_to_come() -> None:
    network = make_network()
    network.send(b"old", 1, 2, now=0.0)
    network.set_rtt(2, 1, 30.0)
    network.send(b"new", 1, 2, now=0.0)
    assert arrivals(network) == [(0.005, 2, b"old"), (0.015, 2, b"new")]


def test_the_number_of_packets_on_their_way_is_bounded() -> None:
    network = make_network()
    for _ in range(MAX_PACKETS + 3):
        network.send(b"", 0, 1, now=0.0)
    assert network.counters["overflowed"] == 3


def test_lateness_of_the_driver_is_told() -> None:
    network = make_network()
    network.send(b"", 0, 1, now=0.0)
    assert len(list(network.arrived(0.023))) == 1
    assert round(network.late_s_max, 6) == 0.003
