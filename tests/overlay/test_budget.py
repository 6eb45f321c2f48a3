from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from overlay.bucket import Bucket
from overlay.budget import BURST_S, BYTES_PER_S, TRAFFIC_OF, Budget
from overlay.events import MemberFailed
from overlay.messages import KIND_OF, Ping, SearchReply, Unlink
from overlay.speech import CLOSE, MAX_QUEUED
from tests import truth
from tests.overlay.fake_network import FakeNetwork, full_mesh, id_of


def test_every_kind_of_message_has_a_budget() -> None:
    assert set(TRAFFIC_OF) == set(KIND_OF)
    assert set(TRAFFIC_OF.values()) == set(BYTES_PER_S)


@given(st.lists(st.tuples(st.floats(0, 5), st.integers(1, 1200)), max_size=200))
def test_no_more_is_sent_than_was_saved(steps: list[tuple[float, int]]) -> None:
    bucket, now, sent = Bucket(1000.0, 1000.0 * BURST_S, 0.0), 0.0, 0
    for wait_s, size in steps:
        now += wait_s
        if bucket.take(size, now):
            sent += size
        assert sent <= 1000.0 * (BURST_S + now) + 1e-6


def test_what_rests_may_be_sent_again() -> None:
    bucket = Bucket(100.0, 100.0 * BURST_S, 0.0)
    assert bucket.take(int(100 * BURST_S), 0.0)
    assert not bucket.take(100, 0.5)
    assert bucket.take(100, 1.0)
    assert not bucket.take(1, 1.0)


def test_searches_take_nothing_from_probes() -> None:
    budget = Budget(0.0)
    while budget.take(SearchReply, 1000, 0.0):
        pass
    assert budget.take(Ping, 1000, 0.0)


def test_a_flood_of_questions_is_not_answered_by_a_flood() -> None:
    network = full_mesh(truth.line(3, 20.0))
    victim = network.nodes[1]
    before = victim.counters["sent_bytes.probing"]
    for _ in range(1900):
        network.nodes[0]._send(id_of(1), Ping(7, wants_sample=True))
    network.settle(0)
    network.run(1.0)
    assert victim.counters["received.ping"] > 1900
    assert victim.counters["dropped.over_budget"] > 0
    assert victim.counters["sent_bytes.probing"] - before <= BYTES_PER_S["probing"] * (BURST_S + 1.0)
    network.run(20.0)
    assert network.is_complete()
    assert not any(network.happened(index, MemberFailed) for index in range(3))


def test_sessions_end_though_the_last_word_is_over_the_budget() -> None:
    """Whoever is met by a crowd has no bytes left to say goodbye with, and remembers no more of them than else."""
    network = FakeNetwork([[20.0] * 40] * 40)
    victim = network.start(0)
    while victim._budget.take(Unlink, 1, 0.0):
        pass
    for index in range(1, 40):
        network.start(index)._say(victim.record, Ping(0), network.now)
        network.settle(index)
    network.run(0.5)
    assert victim.counters["dropped.over_budget"] > 0
    assert set(victim._sessions.peers()) == victim._strangers.keys() | victim._links.table.keys()
    assert len(victim._sessions.peers()) == victim._config.max_strangers


def test_sessions_end_though_the_last_word_was_pushed_out_of_the_queue() -> None:
    network = full_mesh(truth.line(3, 20.0))
    node = network.nodes[1]
    node._remove_link(id_of(0))
    node._send(id_of(0), Unlink(surplus=True), CLOSE)
    for _ in range(MAX_QUEUED):
        node._send(id_of(2), Ping(7))
    assert node.counters["dropped.queue_full"] == 1
    assert set(node._sessions.peers()) == {id_of(2)}
