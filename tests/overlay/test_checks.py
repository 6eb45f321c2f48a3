"""How many pings a check takes, and what is known about losses."""

from __future__ import annotations

import random

import pytest

from overlay.checks import (
    FALSE_REMOVAL_RATE,
    LINK_GAIN,
    RELAY_EVERY,
    Checks,
    OwnLoss,
    pings_needed,
)
from overlay.config import OverlayConfig
from overlay.identity import NodeId
from overlay.probing import PATIENCE_S, Prober

OTHER = "0" * 31 + "2"
HELPER = "0" * 31 + "3"


def straight_pings(pings: int) -> int:
    """Those of a check that do not go through a helper."""
    checks = Checks(OverlayConfig())
    checks.start(OTHER, pings, 50.0, 20, 0.0)
    straight = 0
    while OTHER in checks.table:
        sent, _ = checks.due(checks.next_timer())
        straight += sum(not relayed for _, relayed in sent)
    return straight


def between(own_in: float, own_out: float, other_in: float, other_out: float) -> float:
    """How many pings get lost between two accesses, beside the 5 % of each direction."""
    return 1.0 - 0.95**2 * (1.0 - own_in) * (1.0 - own_out) * (1.0 - other_in) * (1.0 - other_out)


@pytest.mark.parametrize(
    ("own", "other"),
    [
        ((0.0, 0.0), (0.5, 0.0)),
        ((0.5, 0.0), (0.0, 0.0)),
        ((0.0, 0.5), (0.5, 0.0)),
        ((0.5, 0.0), (0.5, 0.0)),
    ],
)
def test_a_living_node_answers_a_check_however_lossy_the_two_accesses_are(
    own: tuple[float, float], other: tuple[float, float]
) -> None:
    own_loss = between(*own, 0.0, 0.0)  # what probes to everybody tell; nothing is known about the link
    pings = straight_pings(pings_needed(0.0, own_loss))
    assert between(*own, *other) ** pings <= FALSE_REMOVAL_RATE


def test_a_link_worse_than_both_accesses_is_checked_for_longer() -> None:
    assert 0.8 ** straight_pings(pings_needed(0.8, 0.1)) <= FALSE_REMOVAL_RATE
    assert pings_needed(0.8, 0.1) > pings_needed(0.5, 0.1)


def test_without_losses_a_check_takes_as_long_as_it_is_set() -> None:
    config = OverlayConfig()
    checks = Checks(config)
    checks.start(OTHER, pings_needed(0.0, 0.1), 100.0, 20, 10.0)
    assert checks.table[OTHER].deadline == pytest.approx(10.0 + config.check_s + 0.2 + 0.15)


def test_one_of_so_many_pings_goes_through_a_helper() -> None:
    checks = Checks(OverlayConfig())
    checks.start(OTHER, 40, 50.0, 20, 0.0)
    relayed = [checks.due(checks.next_timer())[0][0][1] for _ in range(12)]
    assert relayed == [number % RELAY_EVERY == RELAY_EVERY - 1 for number in range(12)]


def test_own_losses_are_found_within_a_minute_and_doubted_at_first() -> None:
    rng = random.Random(1)
    for truly in (0.1, 0.55):
        own = OwnLoss()
        assert own.value > 0.1
        values = []
        for _ in range(600):
            own.note(answered=rng.random() >= truly)
            values.append(own.value)
        assert sum(values[60:]) / 540 == pytest.approx(truly, abs=0.05)
        assert all(abs(value - truly) < 0.25 for value in values[60:])


class Outcomes:
    """A prober, and the average of a link as Liveness keeps it."""

    def __init__(self) -> None:
        self.prober = Prober(random.Random(1))
        self.prober.on_outcome = self._note
        self.seen: list[tuple[NodeId, bool, bool]] = []

    def _note(self, node_id: NodeId, is_probe: bool, answered: bool) -> None:
        self.seen.append((node_id, is_probe, answered))


def test_each_ping_is_answered_or_lost_once_and_those_through_helpers_do_not_count() -> None:
    outcomes = Outcomes()
    prober = outcomes.prober
    answered = prober.sent(OTHER, 0.0, is_probe=True)
    prober.sent(OTHER, 0.1, is_probe=False)
    relayed = prober.sent(OTHER, 0.2, is_probe=False, helper=HELPER)
    prober.sent(OTHER, 0.3, is_probe=False, helper=HELPER)
    prober.answered(answered, OTHER, 0.0, 0.5)
    prober.answered(answered, OTHER, 0.0, 0.6)
    assert prober.relayed(relayed, HELPER) == OTHER
    prober.sent(OTHER, 1.0 + PATIENCE_S, is_probe=True)
    assert outcomes.seen == [(OTHER, True, True), (OTHER, False, False)]


def test_an_average_over_pings_knows_the_loss_although_checks_end_with_an_answer() -> None:
    rng, loss, values = random.Random(1), 0.0, []
    for _ in range(2000):
        answered = False
        while not answered:
            answered = rng.random() >= 0.55
            loss += LINK_GAIN * ((not answered) - loss)
            values.append(loss)
    assert sum(values) / len(values) == pytest.approx(0.55, abs=0.03)
