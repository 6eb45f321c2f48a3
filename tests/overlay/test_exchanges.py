"""Whom a node asks for those whom it should know, and how often."""

from __future__ import annotations

import msgspec
import pytest

from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.messages import Exchange, ExchangeReply
from overlay.neighbourhood import AFTER_NEAREST, ASK_NEAREST_INTERVAL_S
from overlay.node import Overlay
from overlay.packing import pack
from overlay.pointers import NEAREST
from overlay.records import NodeRecord
from tests import truth
from tests.overlay.fake_network import FakeNetwork, fake_record, full_mesh, id_of

#: One neighbour is enough: not everybody is welcome.
FEW = OverlayConfig(near_links=1, far_links=1, few_links=1, max_links=6, probe_interval_s=100.0)
STRANGER = 100


def stranger(node: Overlay, index: int, away_ms: float) -> NodeRecord:
    """Nobody's neighbour, that much to one side of ``node``."""
    here = node.record.coordinate
    place = msgspec.structs.replace(here, vector_ms=(here.vector_ms[0] + away_ms, *here.vector_ms[1:]))
    return msgspec.structs.replace(fake_record(index), coordinate=place)


@pytest.fixture
def network() -> FakeNetwork:
    return full_mesh(truth.cloud_regions(4), FEW)


@pytest.fixture
def asked(network: FakeNetwork, monkeypatch: pytest.MonkeyPatch) -> list[NodeId]:
    """Whom the first node asks, from now on."""
    node, asked = network.nodes[0], list[NodeId]()

    def note(node_id: NodeId, body: object) -> None:
        if isinstance(body, Exchange):
            asked.append(node_id)

    monkeypatch.setattr(node, "_send", lambda node_id, body, *_: note(node_id, body))
    monkeypatch.setattr(node, "_say", lambda record, body, *_: note(record.node_id, body))
    return asked


def test_a_neighbour_and_one_of_the_nearest_are_asked_by_turns(network: FakeNetwork, asked: list[NodeId]) -> None:
    node = network.nodes[0]
    neighbours = set(node._links.table)
    others = [stranger(node, STRANGER + number, 1.0 + number) for number in range(2)]
    for record in others:
        node._point_to(record, pack(record), network.now)
    node._asks_nearest = False
    for turn in range(8):
        node._exchange(network.now + turn * ASK_NEAREST_INTERVAL_S)
    nearest = {record.node_id for record in others} | (node._pointers.table.keys() - neighbours)
    assert all(one in neighbours for one in asked[1::2])
    assert all(one in nearest for one in asked[0::2])
    assert len(asked) == 8


def test_the_nearest_are_not_asked_all_the_time(network: FakeNetwork, asked: list[NodeId]) -> None:
    """Each takes a handshake, and hubs are the nearest of many."""
    node = network.nodes[0]
    node._asks_nearest = False
    record = stranger(node, STRANGER, 1.0)
    node._point_to(record, pack(record), network.now)
    for turn in range(int(2 * ASK_NEAREST_INTERVAL_S)):
        node._exchange(network.now + turn)
    assert sum(one not in node._links.table for one in asked) == 2


def test_after_an_answer_that_names_one_of_the_nearest_the_next_question_comes_soon(
    network: FakeNetwork, monkeypatch: pytest.MonkeyPatch
) -> None:
    node, teller = network.nodes[0], network.nodes[1].record.node_id
    monkeypatch.setattr(node, "_ask_to_link", lambda *_: False)  # a reason to ask again of its own
    assert not node._links.are_few
    most_s = FEW.max_exchange_interval_s

    def told(record: NodeRecord) -> tuple[float, float]:
        node._exchange_interval_s, node._exchange_at = most_s, network.now + most_s
        node._asked_about[teller] = []
        node._take_exchange_reply(teller, ExchangeReply((pack(record),), bytes(1)), network.now)
        return node._exchange_interval_s, node._exchange_at - network.now

    near = stranger(node, STRANGER, 1.0)
    assert told(near) == (AFTER_NEAREST * most_s, AFTER_NEAREST * most_s)
    assert told(near) == (most_s, most_s)  # known already
    for index in range(1, NEAREST):
        record = stranger(node, STRANGER + index, 1.0 + 0.01 * index)
        node._point_to(record, pack(record), network.now)
    far = stranger(node, STRANGER + NEAREST, 300.0)
    assert told(far) == (most_s, most_s)
    assert id_of(STRANGER + NEAREST) in node._pointers.table
