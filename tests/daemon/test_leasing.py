from __future__ import annotations

from pathlib import Path
from typing import cast

from trio.testing import MockClock

from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment
from daemon.fragments.leasing import ATTEMPTS, Leasing
from daemon.peering.keeper_messages import LeasesRenewed
from daemon.peering.peers import Peers
from sbon.errors import UnavailableError
from tests.daemon.test_hosted_fragment import assigned

LEASE_S = 60.0


class FakeKeeper:
    """In place of all peers: a keeper that grants what it is asked for, but for the first ``busy`` times."""

    def __init__(self, busy: int) -> None:
        self._busy = busy
        self.asked = 0

    async def ask(self, _keeper: str, _message: object, _reply: type, _timeout_s: float) -> LeasesRenewed:
        self.asked += 1
        if self.asked <= self._busy:
            raise UnavailableError("busy")
        return LeasesRenewed((assigned().fragment_id,), {})


def leased(folder: Path) -> HostedFragment:
    fragment = FragmentStore(folder, "me").create(assigned())
    fragment.count_among(("k",), LEASE_S)
    return fragment


async def test_a_keeper_that_is_busy_for_a_moment_is_asked_again(tmp_path: Path, autojump_clock: MockClock) -> None:
    keeper = FakeKeeper(busy=ATTEMPTS - 1)
    assert await Leasing(cast("Peers", keeper), LEASE_S).acquire(leased(tmp_path))
    assert keeper.asked == ATTEMPTS


async def test_without_an_answer_a_fragment_does_not_run(tmp_path: Path, autojump_clock: MockClock) -> None:
    keeper = FakeKeeper(busy=1000)
    assert not await Leasing(cast("Peers", keeper), LEASE_S).acquire(leased(tmp_path))
    assert keeper.asked == ATTEMPTS
