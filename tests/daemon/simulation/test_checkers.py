"""The checkers are tested, too: each speaks when there is reason to, and not otherwise."""

from __future__ import annotations

import msgspec

from daemon.simulation.checkers import EXCUSED_FOR_S, REVIVED_AFTER_S, Checkers
from daemon.simulation.measures import DeathWatch, minutes_to_converge, relative_errors, spread
from overlay.events import MemberFailed, MemberJoined
from tests.daemon.simulation.test_world import grown


def test_a_healthy_overlay_gives_no_reason_to_speak() -> None:
    population = grown(5)
    checkers = Checkers(population)
    population.world.run(population.world.now + 30.0)
    checkers.inspect(population.world.now)
    checkers.count_peers(population.world.now)
    checkers.look_at_links()
    assert checkers.unsettled() == []
    assert checkers.violations == []
    assert checkers.peers_max == 4


def test_a_live_node_that_is_given_up_is_a_false_removal() -> None:
    population = grown(3)
    checkers = Checkers(population)
    record = population.node(1).record
    now = population.world.now
    checkers.happened(0, MemberFailed(record), now)
    assert checkers.false_removals == 1
    assert "removed n1" in checkers.violations[0]
    predecessor = msgspec.structs.replace(record, boot_id=record.boot_id - 1)
    checkers.happened(0, MemberFailed(predecessor), now)
    population.crash(1)
    checkers.happened(0, MemberFailed(record), now)
    assert checkers.false_removals == 1


def test_who_was_cut_off_is_excused_for_a_while() -> None:
    population = grown(3)
    checkers = Checkers(population)
    now = population.world.now
    checkers.excuse(1, now + 10.0)
    event = MemberFailed(population.node(1).record)
    checkers.happened(0, event, now + 10.0 + EXCUSED_FOR_S - 0.1)
    assert checkers.false_removals == 0
    checkers.happened(0, event, now + 10.0 + EXCUSED_FOR_S)
    assert checkers.false_removals == 1


def test_taking_in_the_long_dead_is_a_revival() -> None:
    population = grown(3)
    checkers = Checkers(population)
    record, died_at = population.node(1).record, population.world.now
    population.crash(1)
    checkers.happened(0, MemberJoined(record), died_at + REVIVED_AFTER_S - 1.0)
    assert checkers.violations == []
    checkers.happened(0, MemberJoined(record), died_at + REVIVED_AFTER_S + 1.0)
    assert "revived n1" in checkers.violations[0]
    assert checkers.counts["revival"] == 1


def test_an_overlay_that_is_not_whole_is_told() -> None:
    population = grown(4)
    checkers = Checkers(population)
    population.crash(3)
    assert any("holds n3, which is dead" in problem for problem in checkers.unsettled())
    lonely = population.add()
    population.start(lonely)  # and nobody has heard of it yet
    problems = checkers.unsettled()
    assert f"n{lonely} has not joined" in problems
    assert any("cut off" in problem for problem in problems)


def test_a_living_node_that_is_still_taken_for_lost_is_told() -> None:
    population = grown(3)
    checkers = Checkers(population)
    node = population.node(0)
    node._lose(population.node(1).record, population.world.now)
    assert "n0 takes n1 for lost, which lives" in checkers.unsettled()
    population.crash(1)
    assert "n0 takes n1 for lost, which lives" not in checkers.unsettled()


def test_an_overlay_in_two_halves_is_whole_again_soon_after_they_hear_each_other() -> None:
    population = grown(12)
    checkers = Checkers(population)
    world = population.world
    cut = {(a, b) for a in range(6) for b in range(6, 12)}
    world.conditions.cut |= cut | {(b, a) for a, b in cut}
    world.conditions_changed()
    world.run(world.now + 30.0)
    assert checkers.unreached() == set(range(6, 12))
    world.conditions.cut.clear()
    world.conditions_changed()
    world.run(world.now + 20.0)
    assert checkers.unreached() == set()
    world.run(world.now + 40.0)
    assert [problem for problem in checkers.unsettled() if "lost" in problem] == []


def test_a_death_is_timed_until_the_last_one_has_seen_it() -> None:
    population = grown(6)
    deaths = DeathWatch(population)
    population.crash(5)
    deaths.watch(5)
    population.world.run(population.world.now + 59.0)
    result = deaths.result()
    assert result is not None
    assert (result.crashes, result.unseen) == (1, 0)
    assert result.median is not None
    assert 1.0 < result.median < 50.0
    name = population.identities[5].name
    assert all(population.node(endpoint).find(name) is None for endpoint in range(5))


def test_errors_are_over_all_pairs_or_a_sample_that_the_seed_decides() -> None:
    population = grown(8)
    population.world.run(60.0)
    errors = relative_errors(population, 1000)
    assert len(errors) == 28
    assert relative_errors(population, 20) == relative_errors(population, 20)
    assert len(relative_errors(population, 20)) == 20
    figures = spread(errors)
    assert figures is not None
    assert figures.median <= figures.p90
    population.liars.add(0)
    assert len(relative_errors(population, 1000)) == 21


def test_converged_is_the_first_minute_from_which_on_the_median_stays() -> None:
    assert minutes_to_converge([]) is None
    assert minutes_to_converge([0.5, 0.3, 0.11, 0.1, 0.1]) == 3
    assert minutes_to_converge([0.1, 0.5, 0.1]) == 3
    assert minutes_to_converge([0.1]) == 1
