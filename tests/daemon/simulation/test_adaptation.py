"""``sbon simulate adaptation``: few queries over a small network; docs/placement.md has the figures of large ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from daemon.cli.main import main
from daemon.simulation.adaptation.changing import routes_changed


def simulated(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["simulate", "adaptation", "--queries", "8", "--look-s", "120", "--json", *words]) == 0
    report: dict[str, Any] = json.loads(capsys.readouterr().out)
    for time_figure in ("seconds", "milliseconds_per_look"):
        report.pop(time_figure)
    return report


def test_most_of_what_an_omniscient_saves_is_saved_with_few_moves(capsys: pytest.CaptureFixture[str]) -> None:
    report = simulated(capsys, "--hours", "2", "--route-changes", "0.5", "--seed", "2")
    assert report["omniscient_usage_saved"] > 0.02
    assert report["recovered"] >= 0.95
    assert 0.0 < report["moves_per_query"] <= 4.0
    assert report["queries_that_gain"] > 0.0
    assert report["queries_that_lose"] == 0.0


#: From where our own strategy places them, an omniscient saves less than what a move has to save.
@pytest.mark.parametrize(("first", "recovered"), [("sbon", 0.0), ("relaxation", 0.95)])
def test_nothing_moves_on_a_network_that_merely_trembles(
    capsys: pytest.CaptureFixture[str], first: str, recovered: float
) -> None:
    report = simulated(capsys, "--hours", "3", "--jitter", "0.1", "--first", first)
    assert report["recovered"] >= recovered, "what is better is found within the hour"
    assert report["moves_after_convergence"] == 0
    assert report["searches_per_query_hour"] > 0.0


def test_what_was_placed_badly_at_first_is_moved(capsys: pytest.CaptureFixture[str]) -> None:
    report = simulated(capsys, "--hours", "0.5", "--first", "random")
    assert report["first"] == "random"
    assert report["omniscient_usage_saved"] > 0.2
    assert report["queries_that_gain"] == 1.0


def test_slices_are_played_in_order(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    at = rng.uniform(0.0, 100.0, (2, 30, 2))  # everybody is elsewhere in the second half
    rtt_ms = np.linalg.norm(at[:, :, None] - at[:, None], axis=-1) + 10.0 * (1.0 - np.eye(30))
    np.savez(tmp_path / "moving.npz", rtt=rtt_ms)
    reports = [simulated(capsys, "--rtt", str(tmp_path / "moving.npz"), "--hours", "1") for _ in range(2)]
    assert reports[0] == reports[1]
    report = reports[0]
    assert report["omniscient_usage_saved"] > 0.05
    assert report["recovered"] >= 0.5  # nobody knows where they are for a while
    assert report["delay_saved"] > 0.0


def test_routes_change_for_the_given_share_of_hosts_and_for_good() -> None:
    rtt_ms = np.full((20, 20), 50.0)
    after = routes_changed(rtt_ms, 0.25, 10, 1)
    changed = 0
    before = np.ones((20, 20))
    for step in range(10):
        factors = after(step).copy()
        assert (factors >= before).all()
        assert (factors == factors.T).all()
        changed += int((factors > before).sum(axis=1).max() > 1)
        before = factors
    assert (before.diagonal() == 1.0).all()
    assert 1 <= changed <= 5
    assert (before > 1.0).any(axis=1).sum() > 5
