from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import trio
from trio.testing import MockClock

from daemon.fragments.hosted_fragment import FragmentStore, HostedFragment, Phase
from daemon.fragments.reporting import Reporting
from daemon.peering.query_messages import KeptBy, Reported
from tests.daemon.full_disk import full_disk
from tests.daemon.test_hosted_fragment import assigned


class FakeKeeper:
    """In place of all peers: a keeper that has a new fellow, and says that the fragment is not the sender's."""

    def __init__(self) -> None:
        self.overlay = SimpleNamespace(measured_rtt_ms=lambda _: None)

    async def ask_any(self, *_: Any) -> Reported:
        return Reported((assigned().fragment_id,), KeptBy(("k", "new"), 1))


async def test_who_keeps_a_query_is_learnt_once_there_is_room_to_write_it_down(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FragmentStore(tmp_path, "me")
    fragment = store.create(assigned())
    store.write(fragment, Phase.RUNNING)
    fragment.confirmed = True
    disowned: list[HostedFragment] = []
    reporting = Reporting(
        cast(Any, FakeKeeper()), cast(Any, None), lambda: [fragment], disowned.append, store.learn_keepers
    )
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reporting.run)
        with full_disk(monkeypatch):
            await trio.sleep(3.5)
        assert disowned == [fragment] * 3, "what else was said counts"
        assert fragment.record.assignment.keeper_changes == 0
        await trio.sleep(1.0)
        assert fragment.record.assignment.keepers == ("k", "new")
        nursery.cancel_scope.cancel()
