"""Whole overlays in virtual time, over round trips of real cloud regions."""

from __future__ import annotations

import random
import statistics

import msgspec
import pytest

import overlay.node
from overlay.config import (
    LEAST_HEARSAY,
    MAX_CANDIDATES,
    MAX_POINTERS,
    MAX_REMEMBERED,
    MAX_SAMPLES,
    OverlayConfig,
)
from overlay.events import (
    Joined,
    JoinFailed,
    MemberFailed,
    MemberJoined,
    MemberSuspected,
    PathChanged,
)
from overlay.neighbourhood import Lost
from overlay.node import LOOKUP_S, MAX_LOOKUP_S, Overlay
from overlay.packing import pack
from overlay.records import MAX_NAME_BYTES
from sbon import coordinate_estimator, update_filter
from sbon.coordinate import MAX_DIMENSIONS, MAX_ERROR, Coordinate
from sbon.errors import UnavailableError
from sbon.update_filter import FOUND_ERROR, LOST_PROBES
from tests import truth
from tests.overlay.fake_network import FAST, FakeNetwork, fake_overlay, fake_record, full_mesh, id_of

FIVE = truth.cloud_regions(5)
SLOW = OverlayConfig(probe_interval_s=100.0)


# --- joining


def test_five_nodes_join_and_know_each_other_within_a_second() -> None:
    network = FakeNetwork(FIVE)
    for index in range(5):
        network.start(index)
    for index in range(1, 5):
        network.join(index, 0)
    network.run(1.0)
    assert network.is_complete()
    for index in range(1, 5):
        (joined,) = network.happened(index, Joined)
        assert (joined.address, joined.record.name) == (("10.0.0.1", 7000), "n0")
        assert len(network.happened(index, MemberJoined)) == 4
    found = network.nodes[1].find("n3")
    assert found is not None
    assert found == network.nodes[1].find(found.node_id) == network.nodes[1].known(found.node_id)
    assert network.nodes[1].find("n1") == network.nodes[1].record
    assert network.nodes[1].find("nobody") is None
    assert network.nodes[1].remembered() == 4


@pytest.mark.parametrize("count", [12, 18])
@pytest.mark.parametrize("config", [FAST, OverlayConfig()], ids=["fast", "default"])
@pytest.mark.parametrize("seed", range(3))
def test_a_small_overlay_is_a_full_mesh_within_ten_seconds_and_stays_one(
    count: int, config: OverlayConfig, seed: int
) -> None:
    matrix = [row[:count] for row in truth.grid(5)[:count]]
    network = FakeNetwork(matrix, seed)
    for index in range(count):
        network.start(index, config)
    for index in range(1, count):
        network.join(index, 0)
    network.run_until(network.is_complete, 10.0)
    network.run(30.0)
    assert network.is_complete()
    assert not any(network.happened(index, MemberSuspected) for index in network.nodes)
    assert all(len(network.happened(index, MemberJoined)) == count - 1 for index in network.nodes), "nobody was dropped"


def test_a_newcomer_is_known_to_everybody_soon() -> None:
    matrix = [row[:18] for row in truth.grid(5)[:18]]
    network = full_mesh([row[:17] for row in matrix[:17]], OverlayConfig())
    network.rtt_ms = matrix
    network.run(60.0)  # by now they exchange rarely
    assert network.is_complete()
    network.start(17, OverlayConfig())
    network.join(17, 5)
    network.run_until(network.is_complete, 10.0)


def test_pointers_have_the_places_that_others_leave() -> None:
    config = OverlayConfig(near_links=4, far_links=2, few_links=6, max_links=10, max_strangers=4)
    network = full_mesh(truth.grid(8), config)
    network.run(30.0)
    most = max(node.remembered() for node in network.nodes.values())
    assert 10 + 4 + MAX_SAMPLES + LEAST_HEARSAY < most <= MAX_REMEMBERED


def test_a_pointer_that_is_a_candidate_too_is_forgotten_as_both_or_not_at_all() -> None:
    """Where there is no place to spare, a candidate whose pointer was dropped was still remembered: one too many."""
    node = full_mesh(truth.grid(2), OverlayConfig()).nodes[0]
    crowd = [fake_record(index) for index in range(100, 100 + MAX_POINTERS)]
    for record in crowd:
        node._point_to(record, pack(record), 0.0)
    for record in sorted(crowd, key=lambda record: record.node_id)[-MAX_CANDIDATES:]:
        node._links.refused(record, pack(record), 0.0)
    others = len(node._links) + len(node._strangers) + MAX_SAMPLES
    for index in range(MAX_REMEMBERED - others - 10):
        node._lost[f"lost{index}"] = Lost(fake_record(500 + index), 0.0)
    node._bound_hearsay()
    assert len(node._pointers.table.keys() | node._links.candidates.keys()) <= 10


def test_a_large_overlay_stays_within_its_bounds() -> None:
    config = OverlayConfig(near_links=4, far_links=2, few_links=10, max_links=14, max_strangers=8)
    network = full_mesh(truth.grid(6), config)
    network.run(30.0)
    for node in network.nodes.values():
        assert 3 <= len(node.members()) <= 14
        assert node.remembered() <= 14 + 8 + 6 + 8 + 2
    reached, front = {0}, {0}
    while front:
        names = {name for index in front for name in network.names_seen_by(index)}
        front = {int(name[1:]) for name in names} - reached
        reached |= front
    assert reached == set(range(36)), "it is in one piece"


def test_nobody_there_means_a_failed_join() -> None:
    network = FakeNetwork(FIVE)
    node = network.start(0)
    node.join(("10.0.0.1", 9999), network.now)
    network.settle(0)
    network.run(4.9)
    assert network.events[0] == []
    network.run(0.2)
    (failed,) = network.happened(0, JoinFailed)
    assert failed.address == ("10.0.0.1", 9999)
    assert "listening" in failed.reason
    assert "\n" not in failed.reason
    assert node.counters["sent.handshake"] >= 5
    network.run(10.0)
    assert node.next_timer() is None, "nothing is left to be done"


def test_nodes_of_the_longest_names_and_places_are_let_in() -> None:
    """A welcome with all that it names was longer than a datagram may be, and the one who said it fell."""
    config = OverlayConfig(dimensions=MAX_DIMENSIONS)
    network = FakeNetwork(truth.grid(4))
    for index in range(14):
        network.start(index, config, name=f"{index:0{MAX_NAME_BYTES}}")
    for index in range(1, 14):
        network.join(index, 0)
        network.run(1.0)
    network.run(10.0)
    assert [len(node.members()) for node in network.nodes.values()] == [13] * 14


def test_whoever_has_left_looks_for_nobody_until_it_comes_again() -> None:
    network = full_mesh(FIVE)
    node = network.nodes[0]
    node._lookup_at, node._lookup_interval_s = network.now + 1.0, MAX_LOOKUP_S
    network.leave(0)
    network.run(30.0)
    assert node._looked_up_at < network.now - 20.0
    network.join(0, 0)
    assert node.has_left, "its own address is nobody's"
    network.join(0, 1)
    assert node._lookup_at <= network.now + LOOKUP_S
    network.run(2.0 * LOOKUP_S)
    assert node._looked_up_at > network.now - 2.0 * LOOKUP_S
    assert len(node.members()) == 4


def test_a_node_does_not_join_itself() -> None:
    network = FakeNetwork(FIVE)
    node = network.start(0)
    network.join(0, 0)
    (failed,) = network.happened(0, JoinFailed)
    assert "own address" in failed.reason
    # By another of its addresses, too: the handshake comes back to it, and so does the refusal.
    node.join(("127.0.0.1", 7000), 0.0)
    ((hello, _),) = node.datagrams_to_send(0.0)
    node.receive(hello, ("10.0.0.1", 7000), 0.0)
    for data, _ in node.datagrams_to_send(0.0):
        node.receive(data, ("127.0.0.1", 7000), 0.0)
    network.settle(0)
    network.run(6.0)
    assert len(network.happened(0, JoinFailed)) == 2
    assert node.members() == []


def test_other_dimensions_are_refused_with_the_reason() -> None:
    network = FakeNetwork(FIVE)
    network.start(0)
    network.start(1, msgspec.structs.replace(FAST, dimensions=3))
    network.join(1, 0)
    network.run(2.0)
    (failed,) = network.happened(1, JoinFailed)
    assert "dimensions" in failed.reason
    network.run(60.0)
    assert network.names_seen_by(0) == network.names_seen_by(1) == []


def test_too_many_joins_at_once_are_refused() -> None:
    network = FakeNetwork(FIVE)
    node = network.start(0)
    for port in range(20):
        node.join(("10.0.0.1", 9000 + port), 0.0)
    network.settle(0)
    assert len(network.happened(0, JoinFailed)) == 4
    network.run(6.0)
    assert len(network.happened(0, JoinFailed)) == 20


@pytest.mark.parametrize("seed", range(4))
def test_a_join_survives_loss(seed: int) -> None:
    network = FakeNetwork(FIVE, seed, loss=0.3)
    for index in range(5):
        # By chance one in a hundred has no answer within the usual five seconds, and is told so.
        network.start(index, OverlayConfig(join_timeout_s=20.0))
    for index in range(1, 5):
        network.join(index, 0)
    network.run_until(network.is_complete, 40.0)
    network.run(120.0)
    assert not any(network.happened(index, MemberFailed) for index in range(5)), "loss kills nobody"
    assert network.is_complete()


# --- latencies


@pytest.mark.parametrize("seed", range(3))
def test_latencies_are_measured_and_predicted_after_twenty_seconds(seed: int) -> None:
    network = full_mesh(FIVE, seed=seed)
    network.run(10.0)
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


def test_a_changed_path_is_followed_within_fifteen_probes_of_it() -> None:
    network = full_mesh(FIVE)
    network.run(10.0)
    link_interval_s = 4 * FAST.probe_interval_s  # four peers in turn
    network.rtt_ms[0][1] = network.rtt_ms[1][0] = FIVE[0][1] + 250.0
    network.run(15 * link_interval_s)
    assert network.nodes[0].measured_rtt_ms(id_of(1)) == pytest.approx(FIVE[0][1] + 250.0, abs=0.01)
    assert network.nodes[0].measured_rtt_ms(id_of(2)) == pytest.approx(FIVE[0][2], abs=0.01)
    (changed,) = network.happened(0, PathChanged)
    assert changed.record.node_id == id_of(1)
    assert changed.after_ms - changed.before_ms == pytest.approx(250.0, abs=0.01)
    assert not network.happened(0, MemberSuspected)


def test_time_spent_in_our_own_processes_is_not_the_paths() -> None:
    network = FakeNetwork([[0.0, 0.0], [0.0, 0.0]])
    a, b = network.start(0, SLOW), network.start(1, SLOW)
    network.join(1, 0)
    network.run(5.0)
    a._prober.forget(b.record.node_id)  # what was measured without delays
    now = network.now
    a.probe_soon(b.record.node_id, now)
    a.handle_timer(now)
    now += 0.200  # a takes its time to send ...
    to_b = a.datagrams_to_send(now)
    now += 0.030
    for data, _ in to_b:
        b.receive(data, a.record.address, now)
    now += 0.500  # ... and b to answer
    for data, _ in b.datagrams_to_send(now):
        a.receive(data, b.record.address, now + 0.030)
    assert a.measured_rtt_ms(b.record.node_id) == pytest.approx(60.0, abs=0.01)


def test_probe_soon_measures_out_of_turn() -> None:
    network = full_mesh(FIVE, SLOW)
    before = network.nodes[0].latency(id_of(0), id_of(1)).samples
    network.nodes[0].probe_soon(id_of(1), network.now)
    network.nodes[0].probe_soon("f" * 32, network.now)
    network.settle(0)
    network.run(1.0)
    assert network.nodes[0].latency(id_of(0), id_of(1)).samples == before + 1


def test_a_steady_coordinate_is_not_advertised_again() -> None:
    network = full_mesh(truth.line(3, 20.0))
    network.run(50.0)
    versions = [node.record.incarnation for node in network.nodes.values()]
    network.run(60.0)
    assert sum(node.record.incarnation for node in network.nodes.values()) - sum(versions) <= 3


def test_a_node_is_for_itself_where_it_is_for_all_others() -> None:
    network = full_mesh(FIVE)
    network.run(30.0)
    compared = 0
    for node in network.nodes.values():
        for other in network.nodes.values():
            seen = other.find(node.record.name)
            assert seen is not None
            if seen.version == node.record.version:
                assert seen.coordinate == node.record.coordinate
                compared += other is not node
    assert compared > 0


def test_a_place_from_before_a_restart_is_tried_and_not_claimed() -> None:
    place = Coordinate((30.0, -20.0, 10.0, 5.0), 2.0, 0.05, (1.0, 0.5, -1.0))
    node = fake_overlay(msgspec.structs.replace(fake_record(0), coordinate=place))
    assert node.record.coordinate == msgspec.structs.replace(place, error=1.0)
    assert node.settled_coordinate is None
    assert fake_overlay(fake_record(0)).record.coordinate.vector_ms == (0.0,) * 4


# --- the rest


def test_the_same_seed_gives_the_same_run() -> None:
    def story(seed: int) -> list[str]:
        network = FakeNetwork(FIVE, seed, loss=0.1, jitter_ms=5.0)
        for index in range(5):
            network.start(index)
        for index in range(1, 5):
            network.join(index, 0)
        network.run(20.0)
        return [repr(network.timed_events), repr([node.record for node in network.nodes.values()])]

    assert story(11) == story(11)
    assert story(11) != story(12)


def test_at_rest_little_is_sent() -> None:
    network = full_mesh([row[:12] for row in truth.cloud_regions(12)], OverlayConfig())
    network.run(60.0)
    datagrams, size = network.sent_by.total(), _sent_bytes(network)
    network.run(60.0)
    per_node_s = 12 * 60.0
    datagrams, size = network.sent_by.total() - datagrams, _sent_bytes(network) - size
    assert datagrams / per_node_s < 10.0
    assert (size + 28 * datagrams) / per_node_s < 2000.0


def _sent_bytes(network: FakeNetwork) -> int:
    return sum(node.counters["sent_bytes"] for node in network.nodes.values())


@pytest.mark.parametrize(
    ("config", "named"),
    [
        (OverlayConfig(dimensions=9), "dimensions"),
        (OverlayConfig(probe_interval_s=0.0), "probe_interval_s"),
        (OverlayConfig(check_s=float("nan")), "check_s"),
        (OverlayConfig(far_links=0), "far_links"),
        (OverlayConfig(max_links=10), "max_links"),
        (OverlayConfig(max_strangers=40), "max_strangers"),
        (OverlayConfig(silence_s=2.0), "silence_s"),
        (OverlayConfig(advertise_load=float("nan")), "advertise_load"),
        (OverlayConfig(path_change_ms=-1.0), "path_change_ms"),
        (OverlayConfig(max_exchange_interval_s=0.5), "max_exchange_interval_s"),
    ],
)
def test_settings_that_cannot_work_are_refused(config: OverlayConfig, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        fake_overlay(fake_record(0), config)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "host.example", "n\n"])
def test_an_address_nobody_can_reach_is_refused(host: str) -> None:
    with pytest.raises(ValueError, match=r"advertised|numeric"):
        fake_overlay(msgspec.structs.replace(fake_record(0), host=host))


def test_an_early_wake_up_does_no_harm() -> None:
    network = full_mesh(FIVE, SLOW)
    node = network.nodes[0]
    for _ in range(10):
        node.handle_timer(network.now)
    assert node.datagrams_to_send(network.now) == []
    assert node.events() == []


def test_what_is_sent_is_what_the_counters_say() -> None:
    network = full_mesh(FIVE)
    for index, node in network.nodes.items():
        sent = sum(count for name, count in node.counters.items() if name.startswith("sent."))
        assert sent == network.sent_by[index]
        assert not [name for name in node.counters if name.startswith("dropped.")]


def test_nodes_of_another_kind_fit_in() -> None:
    class Quiet(Overlay):
        pass

    network = FakeNetwork(FIVE)
    network.start(0, kind=Quiet)
    assert isinstance(network.nodes[0], Quiet)
    assert random.Random(1).random() != network.nodes[0]._rng.random()


def test_a_newcomer_looks_for_its_own_nearest_once_it_has_found_its_place() -> None:
    """Until then it says that it knows nothing."""
    network = FakeNetwork(truth.grid(5))
    for index in range(24):
        network.start(index)
    for index in range(1, 24):
        network.join(index, 0)
    network.run(10.0)
    newcomer = network.start(24, OverlayConfig())
    network.join(24, 0)
    while newcomer.record.coordinate.error == MAX_ERROR:
        assert newcomer.counters["sent.search-request"] == 0
        network.run(0.25)
    assert newcomer.record.coordinate.error <= FOUND_ERROR
    assert 1 < newcomer._estimator.updates < LOST_PROBES
    network.run(1.0 + 0.1)  # news goes out within a second, and the longest path takes 71 ms
    assert newcomer.counters["sent.search-request"] > 0
    heard = [known for node in network.nodes.values() if (known := node.known(id_of(24))) is not None]
    assert all(record.coordinate.error <= FOUND_ERROR for record in heard)
    asked = newcomer.counters["sent.search-request"]
    network.run(7.0)
    assert newcomer.counters["sent.search-request"] > asked, "its place still moves"


def test_a_link_remembers_which_of_our_incarnations_was_told_by_the_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has changed since, while the answer was on its way, is news."""
    network = FakeNetwork([[0.0, 400.0], [400.0, 0.0]])
    other, asker = (network.start(index, SLOW) for index in range(2))
    for ask in ("_ask_to_link", "_ask_for_far_link"):
        monkeypatch.setattr(other, ask, lambda *_: False)
    network.join(1, 0)
    network.run_until(lambda: bool(asker._links.candidates), 10.0, 0.05)
    asker.set_load(0.5, network.now)
    network.run_until(lambda: id_of(0) in asker._links, 1.0, 0.05)
    heard = other.known(id_of(1))
    assert heard is not None
    assert asker._links.table[id_of(0)].told_incarnation == heard.incarnation < asker.record.incarnation
    network.run(2.0)
    heard = other.known(id_of(1))
    assert heard is not None
    assert heard.load == 0.5


def test_who_cannot_tell_where_it_is_goes_on_to_meet_fresh_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (coordinate_estimator, update_filter):
        monkeypatch.setattr(module, "SETTLED_PROBES", 80)
    monkeypatch.setattr(overlay.node, "LOOKUP_S", 1000.0)
    rng = random.Random(1)
    nowhere = [[0.0] * 40 for _ in range(40)]  # no places explain these round trips
    for i in range(40):
        for j in range(i):
            nowhere[i][j] = nowhere[j][i] = rng.uniform(20.0, 200.0)
    somewhere = [row[:40] for row in truth.grid(7)[:40]]
    settled, unsure = (_handshakes_of_settled_nodes(matrix) for matrix in (somewhere, nowhere))
    assert unsure > 2 * settled


def _handshakes_of_settled_nodes(matrix: list[list[float]]) -> int:
    config = OverlayConfig(probe_interval_s=0.1, fresh_peer_interval_s=100.0, unsure_fresh_peer_interval_s=0.2)
    network = full_mesh(matrix, config)
    network.run(10.0)
    before = sum(node.counters["sent.handshake"] for node in network.nodes.values())
    network.run(6.0)
    return sum(node.counters["sent.handshake"] for node in network.nodes.values()) - before
