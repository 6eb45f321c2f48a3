"""Who is still there: deaths, goodbyes, restarts, bad paths, processes that stood still."""

from __future__ import annotations

import pytest

from overlay.config import OverlayConfig
from overlay.events import (
    JoinFailed,
    Left,
    MemberFailed,
    MemberLeft,
    MemberRecovered,
    MemberRestarted,
    MemberSuspected,
)
from overlay.neighbourhood import NEWS_INTERVAL_S
from overlay.records import Status
from tests import truth
from tests.overlay.fake_network import FAST, FakeNetwork, full_mesh, id_of

FIVE = truth.cloud_regions(5)
#: What passes at most between the last that was heard of a node and its removal, in a healthy overlay.
FOUND_DEAD_S = FAST.silence_s + FAST.check_s + 1.0


def first(network: FakeNetwork, index: int, kind: type) -> float:
    """When it first happened."""
    return next(at for at, event in network.timed_events[index] if isinstance(event, kind))


# --- going and coming


def test_a_killed_node_is_found_dead() -> None:
    network = full_mesh(FIVE)
    network.kill(3)
    network.run(2.0)
    assert not network.happened(0, MemberFailed), "not rashly"
    network.run(FOUND_DEAD_S - 2.0)
    assert network.is_complete({0, 1, 2, 4})
    for index in (0, 1, 2, 4):
        (suspected,) = network.happened(index, MemberSuspected)
        (failed,) = network.happened(index, MemberFailed)
        assert suspected.record.status is Status.SUSPECT
        assert failed.record.status is Status.DEAD
        assert suspected.record.node_id == failed.record.node_id == id_of(3)
        assert network.nodes[index].measured_rtt_ms(id_of(3)) is None
        (lost,) = network.nodes[index].lost()
        assert (lost.node_id, lost.status) == (id_of(3), Status.DEAD)
        assert network.nodes[index].find("n3") is None
    network.run(60.0)
    assert network.is_complete({0, 1, 2, 4})


@pytest.mark.parametrize("seed", range(4))
def test_deaths_are_found_in_time_whenever_they_come(seed: int) -> None:
    network = FakeNetwork([row[:12] for row in truth.cloud_regions(12)], seed, jitter_ms=2.0)
    for index in range(12):
        network.start(index, OverlayConfig())
    for index in range(1, 12):
        network.join(index, 0)
    network.run(30.0 + network.rng.random() * 5.0)
    network.kill(7)
    died_at = network.now
    network.run(12.0)
    for index in network.nodes:
        assert died_at + 1.0 < first(network, index, MemberFailed) <= died_at + FOUND_DEAD_S


def test_many_deaths_at_once_are_found_too() -> None:
    network = full_mesh([row[:12] for row in truth.cloud_regions(12)])
    for index in range(4, 12):
        network.kill(index)
    network.run(4.0 + 4.0 * 3.0 + 1.0)  # local health: at most four times as long
    assert network.is_complete({0, 1, 2, 3})


def test_a_restarted_node_is_the_same_member_at_its_new_address_at_once() -> None:
    network = full_mesh(FIVE)
    network.kill(3)
    network.run(0.5)
    network.start(3, boot_id=2, port=8003)
    network.join(3, 0)
    network.run(3.0)
    assert network.is_complete()
    for index in (0, 1, 2, 4):
        (restarted,) = network.happened(index, MemberRestarted)
        assert (restarted.record.port, restarted.previous.port) == (8003, 7003)
        assert not network.happened(index, MemberFailed)
        record = network.nodes[index].find("n3")
        assert record is not None
        assert (record.node_id, record.boot_id, record.address) == (id_of(3), 2, ("10.0.0.1", 8003))
    network.run(20.0)
    before = network.nodes[3].record.version
    network.run(NEWS_INTERVAL_S + FAST.probe_interval_s)
    assert network.is_complete()
    for index in (0, 1, 2, 4):
        known = network.nodes[index].known(id_of(3))
        assert known is not None
        assert known.address == ("10.0.0.1", 8003)
        assert before <= known.version <= network.nodes[3].record.version, "news are told in time"
        assert network.nodes[index].measured_rtt_ms(id_of(3)) == pytest.approx(FIVE[index][3], abs=0.01)


@pytest.mark.parametrize("down_s", [4.5, 5.5, 6.0, 6.5, 7.0])
def test_one_that_is_back_while_its_predecessor_is_checked_is_not_given_up(down_s: float) -> None:
    network = full_mesh(FIVE, OverlayConfig())
    network.kill(3)
    network.run(down_s)
    network.start(3, OverlayConfig(), boot_id=2)
    network.join(3, 0)
    network.run(20.0)
    for index in (0, 1, 2, 4):
        assert not [event for event in network.happened(index, MemberFailed) if event.record.boot_id == 2]
    assert network.is_complete()


def test_a_node_restarted_after_its_death_comes_back_without_being_told_where_to_join() -> None:
    network = full_mesh(FIVE)
    network.kill(3)
    network.run(15.0)
    assert network.is_complete({0, 1, 2, 4})
    network.start(3, boot_id=2)
    network.run(15.0)
    assert network.is_complete()


@pytest.mark.parametrize("seed", [1, 4, 10])
def test_a_host_whose_clock_went_back_is_taken_in_once_its_old_process_is_found_dead(seed: int) -> None:
    network = full_mesh(FIVE, seed=seed)  # with these seeds, somebody asks a helper that talks with the new process
    network.kill(3)
    network.run(0.5)
    network.start(3, boot_id=0)
    network.join(3, 0)
    network.run(3.0)
    (failed,) = network.happened(3, JoinFailed)
    assert "clock" in failed.reason
    network.run(FOUND_DEAD_S)
    network.join(3, 0)
    network.run(10.0)
    assert network.is_complete()


def test_a_node_that_leaves_goes_at_once_and_may_come_back() -> None:
    network = full_mesh(FIVE)
    network.leave(2)
    network.run(0.2)
    assert network.is_complete({0, 1, 3, 4})
    assert all(len(network.happened(index, MemberLeft)) == 1 for index in (0, 1, 3, 4))
    assert network.happened(0, MemberLeft)[0].record.status is Status.LEFT
    assert network.happened(2, Left)
    assert network.nodes[2].members() == []
    assert network.nodes[2].has_left
    network.leave(2)
    assert len(network.happened(2, Left)) == 1
    network.run(40.0)
    assert network.is_complete({0, 1, 3, 4})
    assert all(not node.lost() for node in network.nodes.values())
    sent = network.sent_by[2]
    network.run(30.0)
    assert network.sent_by[2] == sent, "one that has left is silent"
    network.join(2, 4)
    network.run(3.0)
    assert network.is_complete()
    assert not network.nodes[2].has_left


def test_a_goodbye_that_is_lost_is_said_again() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((2, other)) for other in (0, 1, 3, 4)}
    network.leave(2)
    network.run(0.5)
    network.cut = set()
    network.run(4.0)
    assert network.is_complete({0, 1, 3, 4})
    assert not network.happened(0, MemberFailed)


def test_one_that_is_expelled_is_gone_at_once() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[0]
    node.expel(id_of(3), network.now)
    network.settle(0)
    assert network.names_seen_by(0) == ["n1", "n2", "n4"]
    assert not node._sessions.is_open(id_of(3))
    node.expel(id_of(3), network.now)
    node.expel("f" * 32, network.now)
    assert len(network.happened(0, MemberLeft)) == 1


# --- bad paths


def test_one_bad_path_costs_its_two_ends_each_other_and_nobody_else() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((0, 1))}
    network.run(60.0)
    assert network.names_seen_by(0) == ["n2", "n3", "n4"]
    assert network.names_seen_by(1) == ["n2", "n3", "n4"]
    for index in (2, 3, 4):
        assert not network.happened(index, MemberSuspected)
    sent = network.sent_by[0]
    network.run(30.0)
    assert network.sent_by[0] - sent < 30.0 * (2 / FAST.probe_interval_s + 4 / 3.0 + 2), "no storm of pings"
    network.cut = set()
    network.run(15.0)
    assert network.is_complete()
    assert len(network.happened(0, MemberFailed)) == 1


def test_a_short_cut_is_bridged_by_helpers() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((0, 1))}
    network.run(12.0)
    network.cut = set()
    network.run(5.0)
    assert network.is_complete()
    assert network.happened(0, MemberRecovered)
    assert not network.happened(0, MemberFailed)


@pytest.mark.parametrize("deaf", [(0, 1), (1, 0)])
def test_a_one_way_link_is_given_up_by_both_ends_and_comes_back(deaf: tuple[int, int]) -> None:
    network = full_mesh(FIVE)
    network.deaf = {deaf}
    network.run(60.0)
    assert network.names_seen_by(0) == network.names_seen_by(1) == ["n2", "n3", "n4"]
    network.deaf = set()
    network.run(20.0)
    assert network.is_complete()


@pytest.mark.parametrize("seed", range(3))
def test_a_node_behind_a_lossy_access_is_given_up_by_nobody(seed: int) -> None:
    network = full_mesh([row[:8] for row in truth.cloud_regions(8)], OverlayConfig(), seed)
    for other in range(1, 8):
        network.path_loss[0, other] = 0.5
        network.path_loss[other, 0] = 0.05
    network.run(300.0)
    assert not [index for index in range(8) if network.happened(index, MemberFailed)]
    assert any(network.happened(index, MemberRecovered) for index in range(8)), "it was doubted now and then"
    assert network.is_complete()


def test_a_lost_one_that_is_there_after_all_and_has_no_room_is_lost_no_longer() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((0, 1))}
    network.run(60.0)
    a, b = network.nodes[0], network.nodes[1]
    assert [record.name for record in a.lost()] == ["n1"]
    network.cut = set()
    b._links.accepts = lambda *_: (False, None)  # type: ignore[method-assign]
    network.run(30.0)
    assert a.lost() == []
    assert b.lost() == []


@pytest.mark.parametrize("seed", range(3))
def test_two_nodes_behind_lossy_accesses_do_not_give_each_other_up(seed: int) -> None:
    network = full_mesh([row[:8] for row in truth.cloud_regions(8)], OverlayConfig(), seed)
    network.loss = 0.05
    for other in range(8):
        network.path_loss[0, other] = network.path_loss[1, other] = 0.5
    network.path_loss[0, 1] = network.path_loss[1, 0] = 0.5
    network.run(600.0)
    assert not [index for index in range(8) if network.happened(index, MemberFailed)]
    assert network.is_complete()


@pytest.mark.parametrize("seed", range(4))
def test_one_that_has_forgotten_its_session_and_hears_little_is_not_given_up(seed: int) -> None:
    network = full_mesh([row[:8] for row in truth.cloud_regions(8)], OverlayConfig(), seed)
    for other in range(1, 8):
        network.path_loss[other, 0] = 0.7
    network.run(120.0)
    deaf = network.nodes[0]
    for other in range(1, 8):
        # It has parted with that node, and its goodbye was lost; by itself it does not look for it again.
        deaf._remove_link(id_of(other))
        deaf._prober.forget(id_of(other))
        deaf._close(id_of(other))
    deaf._sessions.connect = lambda *_: None  # type: ignore[method-assign]
    deaf._links.accepts = lambda *_: (False, None)  # type: ignore[method-assign]
    network.run(10.0)
    given_up = [event for other in range(1, 8) for event in network.happened(other, MemberFailed)]
    assert not given_up
    assert any(network.happened(other, MemberSuspected) for other in range(1, 8)), "they doubted it"


@pytest.mark.parametrize("seed", range(3))
def test_a_partition_heals(seed: int) -> None:
    network = full_mesh(FIVE, seed=seed)
    network.cut = {frozenset((a, b)) for a in (0, 1, 2) for b in (3, 4)}
    network.run(30.0)
    assert network.is_complete({0, 1, 2})
    assert network.is_complete({3, 4})
    network.cut = set()
    network.run_until(network.is_complete, 20.0)


def test_an_overlay_cut_in_half_heals() -> None:
    network = full_mesh([row[:18] for row in truth.grid(5)[:18]], OverlayConfig())
    left, right = set(range(9)), set(range(9, 18))
    network.cut = {frozenset((a, b)) for a in left for b in right}
    network.run(60.0)
    assert network.is_complete(left)
    assert network.is_complete(right)
    network.cut = set()
    network.run_until(network.is_complete, 30.0)


def test_a_node_that_was_off_the_net_for_minutes_is_back_soon() -> None:
    network = full_mesh(FIVE)
    network.cut = {frozenset((2, other)) for other in (0, 1, 3, 4)}
    network.run(300.0)
    assert network.names_seen_by(2) == []
    network.cut = set()
    network.run_until(network.is_complete, 15.0)


# --- stalls


def test_a_process_that_stood_still_blames_nobody() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[0]
    node.next_timer()
    network.now += 30.0  # stopped, swapped out, or its host slept
    node.handle_timer(network.now)
    assert node.counters["stalls"] == 1
    assert not [event for event in node.events() if isinstance(event, MemberSuspected | MemberFailed)]


@pytest.mark.parametrize("seconds", [3.0, 6.0, 30.0])
def test_a_process_that_stood_still_is_a_member_again_soon(seconds: float) -> None:
    network = full_mesh(FIVE)
    network.freeze(0, seconds)
    network.run(15.0)
    assert network.is_complete()
    assert not network.happened(0, MemberFailed), "it blamed nobody"
    for a in range(1, 5):
        assert {event.record.node_id for event in network.happened(a, MemberFailed)} <= {id_of(0)}
