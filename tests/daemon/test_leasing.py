from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest
import trio
from trio.testing import MockClock

from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment, HostingRecord, Phase
from daemon.fragments.leasing import ATTEMPTS, RENEWALS, Leasing
from daemon.peering.keeper_messages import LeasesRenewed
from daemon.peering.peers import Peers
from daemon.peering.query_messages import Assignment, KeptBy
from sbon.errors import UnavailableError
from tests.daemon.full_disk import full_disk
from tests.daemon.test_hosted_fragment import SPEC, assigned

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


async def test_a_grant_does_not_count_as_long_as_its_keepers_cannot_be_written_down(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    """They are told with it, and who grants may be none of them any more."""

    class Telling(FakeKeeper):
        async def ask(self, *arguments: Any) -> LeasesRenewed:
            return msgspec.structs.replace(await super().ask(*arguments), kept_by={"q1": KeptBy(("k",), 1)})

    store = FragmentStore(tmp_path, "me")
    fragment = store.create(assigned())
    store.write(fragment, Phase.RUNNING)
    fragment.count_among(("k",), LEASE_S)
    leasing = Leasing(cast("Peers", Telling(busy=0)), LEASE_S)
    leasing.on_kept_by = store.learn_keepers
    with pytest.MonkeyPatch.context() as patch, full_disk(patch):
        assert not await leasing.acquire(fragment)
    assert await leasing.acquire(fragment)
    assert fragment.record.assignment.keeper_changes == 1


async def test_nobody_waits_for_an_engine_that_is_slow_with_another_fragment(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    class GrantsAll(FakeKeeper):
        async def ask(self, keeper: str, message: Any, *_: Any) -> LeasesRenewed:
            return LeasesRenewed(tuple(holding.fragment_id for holding in message.holdings if keeper == "k"), {})

    leasing = Leasing(cast("Peers", GrantsAll(busy=0)), LEASE_S, trio.current_time)
    fragments = []
    for name, keeper in (("slow", "k"), ("lost", "nobody"), ("fast", "k")):
        assignment = Assignment(msgspec.structs.replace(SPEC, fragment_id=name), 1, (keeper,))
        fragment = HostedFragment(HostingRecord("me", assignment), tmp_path)
        fragment.up = True
        fragment.count_among((keeper,), LEASE_S)
        fragments.append(fragment)
    told, suspended = Counter[str](), Counter[str]()

    async def tell(fragment: HostedFragment) -> None:
        told[fragment.fragment_id] += 1
        if fragment.fragment_id == "slow":
            await trio.sleep(10 * LEASE_S)

    async def suspend(fragment: HostedFragment) -> None:
        suspended[fragment.fragment_id] += 1
        await trio.sleep(10 * LEASE_S)

    with trio.move_on_after(4.9 * LEASE_S):
        await leasing.run(lambda: fragments, tell, suspend)
    assert suspended == {"lost": 1}
    assert told == {"slow": 1, "fast": 5 * RENEWALS}
