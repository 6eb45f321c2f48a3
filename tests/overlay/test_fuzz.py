from __future__ import annotations

from tests.overlay.fuzzing import fuzz


def test_nothing_raises_and_nothing_is_accepted_without_the_key() -> None:
    """A million of them: `python -m tests.overlay.fuzzing`."""
    outcomes = fuzz(20_000, seed=1)
    assert outcomes.total() == 20_000
    assert outcomes["datagram: refused"] > 1000
