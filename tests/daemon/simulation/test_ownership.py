"""Ownership under a mix of faults, over the daemon's own rules; and that the checker finds what it is there for."""

from __future__ import annotations

import pytest

from daemon.simulation.ownership.run import OwnershipRun
from sbon.ownership.leases import LeaseTable
from sbon.ownership.replication import Replication

SEEDS = range(8)


def _is_loss(error: str) -> bool:
    return "came where" in error or "was trimmed before" in error


def test_nothing_is_lost_or_doubled_and_nothing_runs_twice() -> None:
    outcomes = [OwnershipRun(seed).go() for seed in SEEDS]
    assert [outcome for outcome in outcomes if outcome.error is not None] == []
    # The mix of faults is one: owners are lost, and their fragments go on; keepers are lost, and replaced.
    assert sum(outcome.takeovers for outcome in outcomes) >= len(SEEDS)
    assert sum(outcome.keeper_changes for outcome in outcomes) >= 2 * len(SEEDS)
    assert all(outcome.rows > 0 and outcome.crashes > 0 and outcome.cuts > 0 for outcome in outcomes)


def test_a_seed_is_replayed() -> None:
    assert OwnershipRun(3).go() == OwnershipRun(3).go()


def test_an_owner_that_serves_before_its_replicas_have_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Replication, "safe_batch", property(lambda self: None))
    assert any(_is_loss(OwnershipRun(seed).go().error or "") for seed in SEEDS)


def test_keepers_that_do_not_wait_for_leases_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LeaseTable, "permits", lambda *_: True)
    assert any("is let out by" in (OwnershipRun(seed).go().error or "") for seed in SEEDS)
