"""Pings and what their answers tell about paths."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from overlay.probing import (
    JUMP_FROM_MS,
    JUMP_RATIO,
    KNOWS_ITS_PLACE,
    MAX_PENDING,
    MAX_PROBE_PEERS,
    ODD_FROM_MS,
    ODD_JUMPS,
    ODD_RATIO,
    PATH_CHANGE_SAMPLES,
    PATIENCE_S,
    Prober,
)
from sbon.coordinate import Coordinate
from sbon.errors import RemoteProtocolError
from tests.overlay.fake_network import id_of


def prober() -> Prober:
    return Prober(random.Random(1))


def probe(prober: Prober, index: int, now: float, rtt_ms: float, held_ms: float = 0.0) -> None:
    nonce = prober.sent(id_of(index), now, is_probe=True)
    prober.answered(nonce, id_of(index), held_ms, now + (rtt_ms + held_ms) / 1000.0)
    prober.validate()


def test_the_time_in_the_answering_process_is_no_part_of_a_round_trip() -> None:
    paths = prober()
    probe(paths, 1, 0.0, rtt_ms=20.0, held_ms=300.0)
    assert paths.measured_rtt_ms(id_of(1)) == pytest.approx(20.0)
    assert paths.samples(id_of(1)) == 1
    assert paths.measured_rtt_ms(id_of(2)) is None


def test_only_a_probe_is_a_sample() -> None:
    paths = prober()
    nonce = paths.sent(id_of(1), 0.0, is_probe=False)
    assert paths.answered(nonce, id_of(1), 0.0, 0.1) is None
    assert paths.measured_rtt_ms(id_of(1)) is None


@pytest.mark.parametrize(
    ("sender", "held_ms"), [(2, 0.0), (1, -1.0), (1, 101.0), (1, float("nan"))], ids=["stranger", "-", "longer", "NaN"]
)
def test_an_answer_that_cannot_be_true_is_refused_and_the_true_one_still_counts(sender: int, held_ms: float) -> None:
    paths = prober()
    nonce = paths.sent(id_of(1), 0.0, is_probe=True)
    with pytest.raises(RemoteProtocolError):
        paths.answered(nonce, id_of(sender), held_ms, 0.1)
    assert paths.answered(nonce, id_of(1), 0.0, 0.1) is not None
    assert paths.answered(nonce, id_of(1), 0.0, 0.1) is None, "a second answer is of no effect"


def test_neighbours_and_strangers_take_turns_the_longest_unprobed_first() -> None:
    paths = prober()
    chosen = []
    for second in range(8):
        choice = paths.choose([id_of(1), id_of(2)], [id_of(3), id_of(4)])
        assert choice is not None
        chosen.append(int(choice, 16) - 1)
        probe(paths, chosen[-1], float(second + 1), rtt_ms=10.0)
    assert chosen == [3, 1, 4, 2, 3, 1, 4, 2]
    assert paths.choose([], [id_of(3)]) == id_of(3)
    assert paths.choose([id_of(1)], []) == id_of(1)
    assert paths.choose([], []) is None


def test_whoever_was_asked_for_is_probed_once_out_of_turn() -> None:
    paths = prober()
    assert not paths.wants_to_probe
    paths.probe_soon(id_of(2))
    paths.probe_soon(id_of(1))
    paths.probe_soon(id_of(2))
    assert paths.wants_to_probe
    assert paths.asked_for() == [id_of(2), id_of(1)]
    assert not paths.wants_to_probe


def test_the_path_probed_longest_ago_makes_room() -> None:
    paths = prober()
    for index in range(MAX_PROBE_PEERS + 1):
        probe(paths, index, float(index), rtt_ms=10.0)
    assert set(paths.peers()) == {id_of(index) for index in range(1, MAX_PROBE_PEERS + 1)}


def test_a_node_that_is_forgotten_leaves_nothing_behind() -> None:
    paths = prober()
    probe(paths, 1, 0.0, rtt_ms=10.0)
    nonce = paths.sent(id_of(1), 1.0, is_probe=True)
    paths.probe_soon(id_of(1))
    paths.forget(id_of(1))
    assert not paths.peers()
    assert not paths.wants_to_probe
    assert paths.answered(nonce, id_of(1), 0.0, 1.1) is None


def test_a_path_has_changed_when_it_did_by_enough_both_ways_of_counting() -> None:
    paths = prober()

    def change_after(*rtts_ms: float) -> tuple[float, float] | None:
        changes = []
        for rtt_ms in rtts_ms:
            nonce = paths.sent(id_of(1), 0.0, is_probe=True)
            path = paths.answered(nonce, id_of(1), 0.0, rtt_ms / 1000.0)
            assert path is not None
            changes.append(paths.has_changed(path, 5.0, 0.2))
        return next((change for change in changes if change is not None), None)

    assert change_after(*[100.0] * PATH_CHANGE_SAMPLES) is None
    assert change_after(*[90.0] * 10) is None, "less than a fifth"
    assert change_after(*[79.0] * 10) == pytest.approx((100.0, 79.0))
    assert change_after(*[79.0] * 10) is None, "told once"


def test_a_peer_is_at_odds_with_its_path_if_it_cannot_be_where_it_says() -> None:
    paths = prober()
    here = Coordinate((0.0, 0.0), 0.0, 0.1)
    assert not paths.contradicts(id_of(1), here), "nothing was measured"
    nonce = paths.sent(id_of(1), 0.0, is_probe=True)
    path = paths.answered(nonce, id_of(1), 0.0, 0.1)
    assert path is not None
    for away_ms, is_odd in ((100.0, False), (240.0, False), (260.0, True), (45.0, False), (35.0, True)):
        path.place = Coordinate((away_ms, 0.0), 0.0, 0.1)
        assert paths.contradicts(id_of(1), here) is is_odd, away_ms
    lost = Coordinate((0.0, 0.0), 0.0, 2.0 * KNOWS_ITS_PLACE)
    assert not paths.contradicts(id_of(1), lost), "who does not know its own place cannot tell"


def test_near_ones_are_at_odds_with_nobody_for_some_milliseconds() -> None:
    paths = prober()
    nonce = paths.sent(id_of(1), 0.0, is_probe=True)
    path = paths.answered(nonce, id_of(1), 0.0, 0.001)
    assert path is not None
    path.place = Coordinate((0.8 * ODD_RATIO * ODD_FROM_MS, 0.0), 0.0, 0.1)
    assert not paths.contradicts(id_of(1), Coordinate((0.0, 0.0), 0.0, 0.1))


def test_the_helper_that_was_asked_tells_of_an_answer_once_and_nobody_else() -> None:
    paths = prober()
    nonce = paths.sent(id_of(1), 0.0, is_probe=False, helper=id_of(9))
    assert paths.relayed(nonce, id_of(8)) is None
    assert paths.relayed(nonce, id_of(9)) == id_of(1)
    assert paths.relayed(nonce, id_of(9)) is None
    straight = paths.sent(id_of(1), 0.0, is_probe=False)
    assert paths.relayed(straight, id_of(9)) is None
    assert paths.awaits(straight)


def test_what_became_of_a_ping_is_told_unless_a_helper_sent_it() -> None:
    paths = prober()
    outcomes: list[tuple[str, bool, bool]] = []
    paths.on_outcome = lambda node_id, is_probe, answered: outcomes.append((node_id, is_probe, answered))
    probe(paths, 1, 0.0, rtt_ms=10.0)
    paths.sent(id_of(2), 0.0, is_probe=False)
    paths.sent(id_of(3), 0.0, is_probe=False, helper=id_of(9))
    paths.sent(id_of(4), PATIENCE_S + 1.0, is_probe=True)  # the others are looked at when the next one leaves
    assert outcomes == [(id_of(1), True, True), (id_of(2), False, False)]


@given(st.lists(st.tuples(st.integers(0, 60), st.booleans(), st.floats(0.0, 0.01)), max_size=2 * MAX_PENDING))
def test_pings_that_nobody_answers_take_no_more_than_their_room(pings: list[tuple[int, bool, float]]) -> None:
    paths, now = prober(), 0.0
    for index, is_probe, pause_s in pings:
        now += pause_s
        paths.sent(id_of(index), now, is_probe=is_probe)
        paths.validate()


def place(x_ms: float, error: float) -> Coordinate:
    return Coordinate((x_ms, 0.0), 0.1, error)


def told(paths: Prober, places: list[Coordinate], said: Coordinate | None = None, rtt_ms: float = 20.0) -> list[bool]:
    """Probes, each answered from one of these places: whether each can be."""
    can_be = []
    for now, where in enumerate(places):
        nonce = paths.sent(id_of(1), float(now), is_probe=True, said=said)
        path = paths.answered(nonce, id_of(1), 0.0, now + rtt_ms / 1000.0)
        assert path is not None
        can_be.append(paths.is_at(path, where))
    return can_be


def test_a_place_that_jumps_is_no_sample_and_whoever_goes_on_so_is_at_odds() -> None:
    paths, here = prober(), place(0.0, 0.05)
    assert told(paths, [place(20.0, 0.05), place(400.0, 0.02)]) == [True, False]
    assert not paths.contradicts(id_of(1), place(400.0, 0.05)), "once may be a mistake"
    more = [place(400.0 * (-1) ** number, 0.02) for number in range(1, ODD_JUMPS)]
    assert told(paths, more) == [False] * len(more)
    assert paths.contradicts(id_of(1), place(paths.measured()[0][1].vector_ms[0] + 20.0, 0.9)), "wherever we are"
    assert told(paths, [place(-400.0, 0.05)]) == [True], "one who stays where it is counts again"
    assert paths.contradicts(id_of(1), here), "but it is not at a place 400 ms away"


def test_what_a_node_says_first_is_compared_with_what_is_known_of_it() -> None:
    assert told(prober(), [place(400.0, 0.02)], said=place(20.0, 0.05)) == [False]
    assert told(prober(), [place(400.0, 0.02)], said=None) == [True]


def test_who_does_not_know_its_place_yet_may_find_another() -> None:
    assert told(prober(), [place(400.0, 0.05)], said=place(20.0, 1.0), rtt_ms=100.0) == [True]


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0), st.floats(0.1, 1000.0), st.floats(0.0, JUMP_RATIO))
def test_a_step_within_what_errors_leave_open_is_none(before: float, after: float, rtt_ms: float, part: float) -> None:
    step_ms = part * (before + after) * max(rtt_ms, JUMP_FROM_MS)
    assert told(prober(), [place(0.0, before), place(step_ms, after)], rtt_ms=rtt_ms) == [True, True]


def test_who_tells_its_place_all_the_time_is_heard_as_often_as_the_others() -> None:
    paths = prober()
    assert paths.heard_rtt_ms(id_of(1), 0.0, 0.5) is None, "nothing was measured"
    probe(paths, 1, 0.0, rtt_ms=20.0)
    heard = [paths.heard_rtt_ms(id_of(1), 0.125 * tick, 0.5) is not None for tick in range(12)]
    assert heard == 3 * [True, False, False, False]
    probe(paths, 2, 0.0, rtt_ms=30.0)
    assert paths.heard_rtt_ms(id_of(2), 1.5, 0.5) == pytest.approx(30.0), "others are heard as before"
