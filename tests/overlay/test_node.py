"""Whole overlays in virtual time, over round trips of real cloud regions."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

from overlay.config import OverlayConfig
from overlay.events import (
    Joined,
    JoinFailed,
    Left,
    MemberFailed,
    MemberJoined,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
    PathChanged,
)
from overlay.messages import Gossip, Join, Ping, Pong
from overlay.node import Overlay
from overlay.records import Status
from overlay.wire import decode, encode
from sbon.coordinate import Coordinate
from sbon.errors import UnavailableError
from tests import truth
from tests.overlay.fake_network import FAST, FakeNetwork, fake_record, full_mesh

FIVE = truth.cloud_regions(5)
NAMES = [f"n{index}" for index in range(5)]


def others(index: int) -> list[str]:
    return [name for name in NAMES if name != f"n{index}"]


def id_of(index: int) -> str:
    return fake_record(index).node_id


def everybody_sees(network: FakeNetwork, expected: set[int]) -> bool:
    return all(set(network.names_seen_by(index)) == {f"n{other}" for other in expected - {index}} for index in expected)


def test_five_nodes_join_and_know_each_other_within_a_second() -> None:
    network = full_mesh(FIVE)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    for index in range(1, 5):
        (joined,) = network.happened(index, Joined)
        assert isinstance(joined, Joined)
        assert (joined.address, joined.record.name) == (("10.0.0.1", 7000), "n0")
    found = network.nodes[1].find("n3")
    assert found is not None
    assert found == network.nodes[1].find(found.node_id)
    assert network.nodes[1].find("n1") == network.nodes[1].record
    assert network.nodes[1].find("nobody") is None


@pytest.mark.parametrize("seed", range(3))
def test_latencies_are_measured_and_predicted_after_fifteen_seconds(seed: int) -> None:
    network = full_mesh(FIVE, seed=seed)
    network.run(14.0)
    errors = []
    for i in range(5):
        for j in range(5):
            estimate = network.nodes[i].latency(id_of(i), id_of(j))
            if i == j:
                assert (estimate.predicted_rtt_ms, estimate.measured_rtt_ms) == (0.0, 0.0)
                continue
            assert estimate.measured_rtt_ms == pytest.approx(FIVE[i][j], abs=0.01)
            assert estimate.samples >= 8
            errors.append(abs(estimate.predicted_rtt_ms - FIVE[i][j]) / FIVE[i][j])
    assert statistics.median(errors) < 0.2
    between_others = network.nodes[0].latency(id_of(1), id_of(2))
    assert (between_others.measured_rtt_ms, between_others.samples) == (None, 0)
    assert between_others.predicted_rtt_ms == pytest.approx(FIVE[1][2], rel=0.9)
    with pytest.raises(UnavailableError, match="sbon nodes"):
        network.nodes[0].latency(id_of(1), "f" * 32)


def test_nobody_there_means_a_failed_join() -> None:
    network = FakeNetwork(FIVE)
    node = network.start(0)
    node.join(("10.0.0.1", 9999), network.now)
    network.settle(0)
    network.run(4.9)
    assert network.events[0] == []
    network.run(0.2)
    (failed,) = network.events[0]
    assert isinstance(failed, JoinFailed)
    assert failed.address == ("10.0.0.1", 9999)
    assert "listening" in failed.reason
    assert node.counters["sent.join"] == 10
    assert node.next_timer() is None


def test_a_node_does_not_join_itself() -> None:
    network = FakeNetwork(FIVE)
    node = network.start(0)
    network.join(0, 0)
    (failed,) = network.events[0]
    assert isinstance(failed, JoinFailed)
    # By another of its addresses, too: the join comes back to it.
    node.join(("127.0.0.1", 7000), 0.0)
    ((data, _),) = node.datagrams_to_send(0.0)
    node.receive(data, ("10.0.0.1", 7000), 0.0)
    assert [type(event) for event in node.events()] == [JoinFailed]


def test_other_dimensions_are_refused_with_the_reason() -> None:
    network = FakeNetwork(FIVE)
    network.start(0)
    network.start(1, msgspec.structs.replace(FAST, dimensions=3))
    network.join(1, 0)
    network.run(2.0)
    (failed,) = network.events[1]
    assert isinstance(failed, JoinFailed)
    assert "dimensions" in failed.reason
    assert network.names_seen_by(0) == network.names_seen_by(1) == []


def test_a_join_survives_loss() -> None:
    network = FakeNetwork(FIVE, seed=3, loss=0.3)
    for index in range(5):
        network.start(index)
    for index in range(1, 5):
        network.join(index, 0)
    network.run(8.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    network.run(120.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4}), "a third of all datagrams lost kills nobody for good"


def test_a_killed_node_is_found_dead() -> None:
    network = full_mesh(FIVE)
    network.run(10.0)
    network.kill(3)
    network.run(2.0)
    assert not network.happened(0, MemberFailed), "not rashly"
    network.run(8.0)
    assert everybody_sees(network, {0, 1, 2, 4})
    for index in (0, 1, 2, 4):
        (failed,) = network.happened(index, MemberFailed)
        assert isinstance(failed, MemberFailed)
        assert failed.record.node_id == id_of(3)
        assert network.nodes[index].measured_rtt_ms(id_of(3)) is None


def test_a_restarted_node_is_the_same_member_at_its_new_address_at_once() -> None:
    network = full_mesh(FIVE)
    network.run(10.0)
    network.kill(3)
    network.run(0.5)
    network.start(3, boot_id=2, port=8003)
    network.join(3, 0)
    network.run(1.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    for index in (0, 1, 2, 4):
        (restarted,) = network.happened(index, MemberRestarted)
        assert isinstance(restarted, MemberRestarted)
        assert (restarted.record.port, restarted.previous.port) == (8003, 7003)
        assert not network.happened(index, MemberFailed)
        record = network.nodes[index].find("n3")
        assert record is not None
        assert (record.node_id, record.boot_id, record.address) == (id_of(3), 2, ("10.0.0.1", 8003))
    network.run(20.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})


def test_a_node_restarted_after_its_death_comes_back_without_being_told_where_to_join() -> None:
    network = full_mesh(FIVE)
    network.kill(3)
    network.run(15.0)
    assert everybody_sees(network, {0, 1, 2, 4})
    network.start(3, boot_id=2)
    network.run(10.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})


def test_a_host_whose_clock_went_back_is_taken_in_after_a_restart() -> None:
    network = full_mesh(FIVE)
    network.kill(3)
    network.run(0.5)
    network.start(3, boot_id=0)
    network.join(3, 0)
    network.run(3.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    assert network.nodes[3].record.boot_id > 1


def test_a_node_that_leaves_goes_at_once_and_may_come_back() -> None:
    network = full_mesh(FIVE)
    network.run(5.0)
    network.nodes[2].leave(network.now)
    network.settle(2)
    network.run(0.2)
    assert everybody_sees(network, {0, 1, 3, 4})
    assert all(len(network.happened(index, MemberLeft)) == 1 for index in (0, 1, 3, 4))
    assert network.happened(2, Left)
    assert network.nodes[2].members() == []
    network.run(30.0)
    assert everybody_sees(network, {0, 1, 3, 4})
    assert network.nodes[2].next_timer() is None
    network.join(2, 4)
    network.run(1.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})


def test_a_goodbye_that_is_lost_is_said_again() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((2, other)) for other in (0, 1, 3, 4)}
    network.nodes[2].leave(network.now)
    network.settle(2)
    network.run(0.5)
    network.cut = set()
    network.run(2.0)
    assert everybody_sees(network, {0, 1, 3, 4})
    assert not network.happened(0, MemberFailed)


def test_one_bad_path_kills_nobody() -> None:
    network = full_mesh(FIVE)
    network.run(5.0)
    network.cut = {frozenset((0, 1))}
    network.run(30.0)
    pings = network.nodes[0].counters["sent.ping"]
    suspicions = len(network.happened(0, MemberSuspected))
    network.run(30.0)
    assert network.nodes[0].counters["sent.ping"] - pings < 1.5 * 30.0 / FAST.probe_interval_s, "no storm of probes"
    assert len(network.happened(0, MemberSuspected)) - suspicions <= 4, "suspicion backs off"
    network.cut = set()
    network.run(10.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    assert network.happened(0, MemberSuspected)
    assert network.happened(0, MemberRecovered)


def test_a_partition_heals() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((a, b)) for a in (0, 1, 2) for b in (3, 4)}
    network.run(30.0)
    assert everybody_sees(network, {0, 1, 2})
    assert everybody_sees(network, {3, 4})
    network.cut = set()
    network.run(30.0)
    assert everybody_sees(network, {0, 1, 2, 3, 4})
    assert network.happened(0, MemberJoined)


def test_a_changed_path_is_followed_within_fifteen_probes_of_it() -> None:
    network = full_mesh(FIVE)
    network.run(14.0)
    link_interval_s = 4 * FAST.probe_interval_s  # four peers in turn
    network.rtt_ms[0][1] = network.rtt_ms[1][0] = FIVE[0][1] + 250.0
    network.run(15 * link_interval_s)
    assert network.nodes[0].measured_rtt_ms(id_of(1)) == pytest.approx(FIVE[0][1] + 250.0, abs=0.01)
    assert network.nodes[0].measured_rtt_ms(id_of(2)) == pytest.approx(FIVE[0][2], abs=0.01)
    (changed,) = network.happened(0, PathChanged)
    assert isinstance(changed, PathChanged)
    assert changed.record.node_id == id_of(1)
    assert changed.after_ms - changed.before_ms == pytest.approx(250.0, abs=0.01)
    assert not network.happened(0, MemberSuspected)


def test_the_same_seed_gives_the_same_run() -> None:
    def story(seed: int) -> list[str]:
        network = FakeNetwork(FIVE, seed, loss=0.1, jitter_ms=5.0)
        for index in range(5):
            network.start(index)
        for index in range(1, 5):
            network.join(index, 0)
        network.run(20.0)
        return [repr(network.events), repr([node.record for node in network.nodes.values()])]

    assert story(11) == story(11)
    assert story(11) != story(12)


def test_time_spent_in_our_own_processes_is_not_the_paths() -> None:
    a, b = Overlay(fake_record(0), FAST, random.Random(1), 0.0), Overlay(fake_record(1), FAST, random.Random(2), 0.0)
    a.join(b.record.address, 0.0)
    ((join, _),) = a.datagrams_to_send(0.0)
    b.receive(join, a.record.address, 0.0)
    for data, _ in b.datagrams_to_send(0.0):
        a.receive(data, b.record.address, 0.0)
    now = 1.0
    a.probe_soon(b.record.node_id, now)
    a.handle_timer(now)
    now += 0.200  # a takes its time to send ...
    pings = [data for data, _ in a.datagrams_to_send(now) if isinstance(decode(data)[1], Ping)]
    assert pings
    now += 0.030
    for data in pings:
        b.receive(data, a.record.address, now)
    now += 0.500  # ... and b to answer
    for data, _ in b.datagrams_to_send(now):
        if isinstance(decode(data)[1], Pong):
            a.receive(data, b.record.address, now + 0.030)
    assert a.measured_rtt_ms(b.record.node_id) == pytest.approx(60.0, abs=0.01)


def test_a_process_that_stood_still_blames_nobody() -> None:
    network = full_mesh(FIVE)
    network.run(5.0)
    node = network.nodes[0]
    node.next_timer()
    network.now += 30.0  # stopped, swapped out, or its host slept
    node.handle_timer(network.now)
    assert node.counters["stalls"] == 1
    assert not [event for event in node.events() if isinstance(event, MemberSuspected | MemberFailed)]


def test_probe_soon_measures_out_of_turn() -> None:
    slow = OverlayConfig(probe_interval_s=100.0, gossip_interval_s=100.0)
    network = full_mesh(FIVE, slow)
    network.run(5.0)
    before = network.nodes[0].latency(id_of(0), id_of(1)).samples
    network.nodes[0].probe_soon(id_of(1), network.now)
    network.nodes[0].probe_soon("f" * 32, network.now)
    network.settle(0)
    network.run(1.0)
    assert network.nodes[0].latency(id_of(0), id_of(1)).samples == before + 1


def test_search_finds_the_least_of_the_living_and_ourselves() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[1]
    by_port = node.search(lambda record: float(record.port), 3)
    assert [record.name for record in by_port] == ["n0", "n1", "n2"]
    assert node.search(lambda record: float("inf"), 3) == []
    network.nodes[1].record.check(6)
    picky = node.search(lambda record: 0.0 if record.name != "n1" else float("nan"), 10)
    assert [record.name for record in picky] == others(1)


def test_load_is_advertised_when_it_really_changed() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[0]
    before = node.record.incarnation
    node.set_load(0.05, network.now)
    assert (node.record.load, node.record.incarnation) == (0.0, before)
    node.set_load(1.5, network.now)
    network.settle(0)
    network.run(3.0)
    seen = network.nodes[4].find("n0")
    assert seen is not None
    assert seen.load == 1.5
    node.set_load(1e9, network.now)
    node.validate()
    with pytest.raises(ValueError, match="load"):
        node.set_load(float("nan"), network.now)


def test_a_steady_coordinate_is_not_advertised_again() -> None:
    network = full_mesh(truth.line(3, 20.0))
    network.run(60.0)
    versions = [node.record.incarnation for node in network.nodes.values()]
    network.run(60.0)
    assert sum(node.record.incarnation for node in network.nodes.values()) - sum(versions) <= 3


def test_a_suspicion_about_a_live_node_is_refuted() -> None:
    network = full_mesh(FIVE)
    record = network.nodes[3].record
    suspicion = Gossip((msgspec.structs.replace(record, status=Status.SUSPECT),))
    network.nodes[0].receive(encode(id_of(4), 1, suspicion), ("10.0.0.1", 7004), network.now)
    network.settle(0)
    network.run(2.0)
    seen = network.nodes[0].find("n3")
    assert seen is not None
    assert seen.status is Status.ALIVE
    assert network.happened(0, MemberSuspected)
    assert network.happened(0, MemberRecovered)
    network.run(10.0)
    assert not network.happened(0, MemberFailed)


def test_what_cannot_be_true_is_counted_and_changes_nothing() -> None:
    network = full_mesh(FIVE)
    node, stranger = network.nodes[0], fake_record(9)
    far = msgspec.structs.replace(stranger, coordinate=Coordinate((float("nan"),) * 6, 0.0, 0.5))
    lies = [
        encode(id_of(1), 1, Ping(1, stranger)),  # introduces itself as another
        encode(stranger.node_id, 2, Ping(1, stranger)),  # of another boot
        encode(stranger.node_id, 1, Ping(1, far)),
        encode(stranger.node_id, 1, Gossip((far,))),
        encode(id_of(0), 1, Ping(1, fake_record(0))),  # claims to be us
        encode(id_of(1), 1, Pong(12345, network.nodes[1].record, far.coordinate, 0.0)),
        b"",
        b"\x00" * 2000,
    ]
    before = node.members()
    for data in lies:
        node.receive(data, ("10.0.0.1", 7009), network.now)
    assert node.counters["dropped.malformed"] == len(lies)
    assert node.members() == before
    node.receive(encode(id_of(1), 1, Join(1, network.nodes[1].record))[:40], ("10.0.0.1", 7001), network.now)
    node.validate()


def test_a_pong_from_another_or_held_too_long_is_no_sample() -> None:
    slow = OverlayConfig(probe_interval_s=100.0)
    network = full_mesh(FIVE, slow)
    node = network.nodes[0]
    network.run(5.0)
    node.probe_soon(id_of(1), network.now)
    node.handle_timer(network.now)
    sent = [decode(data)[1] for data, _ in node.datagrams_to_send(network.now)]
    (ping,) = [body for body in sent if isinstance(body, Ping)]
    samples = node.latency(id_of(0), id_of(1)).samples
    for sender, held_ms in ((2, 0.0), (1, 500.0), (1, -1.0), (1, float("nan"))):
        record = network.nodes[sender].record
        pong = Pong(ping.nonce, record, record.coordinate, held_ms)
        node.receive(encode(record.node_id, 1, pong), record.address, network.now + 0.1)
    assert node.counters["dropped.malformed"] == 4
    assert node.latency(id_of(0), id_of(1)).samples == samples


@pytest.mark.parametrize(
    "config",
    [
        OverlayConfig(dimensions=9),
        OverlayConfig(probe_interval_s=0.0),
        OverlayConfig(gossip_fanout=0),
        OverlayConfig(min_probe_timeout_s=5.0),
    ],
)
def test_settings_that_cannot_work_are_refused(config: OverlayConfig) -> None:
    with pytest.raises(ValueError, match=r"dimensions|probe_interval_s|gossip_fanout|max_probe_timeout_s"):
        Overlay(fake_record(0), config, random.Random(1), 0.0)


def test_an_address_nobody_can_reach_is_refused() -> None:
    record = msgspec.structs.replace(fake_record(0), host="0.0.0.0")
    with pytest.raises(ValueError, match="advertised"):
        Overlay(record, FAST, random.Random(1), 0.0)


def test_twenty_nodes_find_together_from_one_seed_node() -> None:
    side = truth.grid(5)
    network = full_mesh([row[:20] for row in side[:20]])
    network.run(10.0)
    assert everybody_sees(network, set(range(20)))
