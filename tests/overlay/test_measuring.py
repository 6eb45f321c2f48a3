"""What one node makes of pings and pongs."""

from __future__ import annotations

import math

from overlay.config import OverlayConfig
from overlay.messages import Ping, Pong
from overlay.packing import pack
from overlay.wire import decode
from sbon.coordinate import Coordinate
from tests import truth
from tests.overlay.fake_network import fake_record, full_mesh, id_of

FIVE = truth.cloud_regions(5)
SLOW = OverlayConfig(probe_interval_s=100.0)


def test_a_name_in_a_pong_counts_only_if_the_pong_was_asked_for() -> None:
    node = full_mesh(FIVE, SLOW).nodes[0]
    node._samples.clear()
    place, sample = node.coordinate.to_bytes(), pack(fake_record(20))
    node._dispatch(id_of(1), Pong(12345, 0, place, True, sample), 10.0)
    assert not node._samples
    nonce = node._prober.sent(id_of(1), 10.0, is_probe=False)
    node._dispatch(id_of(1), Pong(nonce, 0, place, True, sample), 10.1)
    assert len(node._samples) == 1


def test_who_pings_all_the_time_moves_a_new_node_no_further_than_once() -> None:
    network = full_mesh(FIVE)
    node, now = network.nodes[0], network.now + 1.0
    here = node._estimator.coordinate
    elsewhere = Coordinate((here.vector_ms[0] + 50.0, *here.vector_ms[1:]), 0.0, 0.1, here.factors).to_bytes()
    node._dispatch(id_of(1), Ping(1, place=elsewhere), now)
    moved = node._estimator.coordinate
    assert moved != here
    for nonce in range(2, 30):
        node._dispatch(id_of(1), Ping(nonce, place=elsewhere), now + 0.1)
    assert node._estimator.coordinate == moved


def test_pings_and_pongs_are_what_they_say() -> None:
    network = full_mesh(FIVE, SLOW)
    a, b = network.nodes[0], network.nodes[1]
    a.probe_soon(id_of(1), network.now)
    a.handle_timer(network.now)
    ((ping, _),) = a.datagrams_to_send(network.now)
    received = b._sessions.receive(ping, a.record.address, network.now)
    assert received is not None
    assert received.sender == id_of(0)
    message = decode(received.body)
    assert isinstance(message, Ping)
    place = b.coordinate.to_bytes()
    b._moved_at = math.inf  # or it has news for all, too
    b._dispatch(id_of(0), message, network.now)
    ((pong, _),) = b.datagrams_to_send(network.now)
    received = a._sessions.receive(pong, b.record.address, network.now)
    assert received is not None
    answer = decode(received.body)
    assert isinstance(answer, Pong)
    assert (answer.nonce, answer.held_us, answer.linked) == (message.nonce, 0, True)
    assert answer.place == place
