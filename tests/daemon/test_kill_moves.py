"""A shorter run of tests/benchmarks/kill_moves.py, with engines of the fake kind."""

from __future__ import annotations

from pathlib import Path

from tests.benchmarks.kill_moves import STEPS, VICTIMS, kill_moves


async def test_whatever_is_killed_at_whatever_step_the_fragment_goes_on_at_one_place(tmp_path: Path) -> None:
    # It raises if anything is lost, doubled, or stands.
    killing = await kill_moves(len(STEPS), 3, tmp_path, real_spark=False)
    assert {key.partition(": ")[0] for key in killing.kills} == set(STEPS)
    assert {key.partition(": ")[2] for key in killing.kills} == set(VICTIMS)
    assert killing.outcomes["moved"] >= 1, killing
