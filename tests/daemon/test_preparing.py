"""What a host tries before a fragment arrives. Peers, engine and book are fakes; the replica is a real one."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
import trio
import trio.testing

from daemon.events import Events
from daemon.fragments.preparing import MOST_TRIED, OWNER_SETTLES_S, Preparing
from daemon.fragments.replica_store import Digests, ReplicaStore
from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.host_messages import PrepareEngine
from daemon.peering.keeper_messages import StoreReplica
from daemon.peering.query_messages import Assignment
from sbon.engine_messages import FlightAddress, Hello, Rehearse
from sbon.fragment import FragmentKind, FragmentSpec, PortSpec

_JOIN = FragmentSpec(
    "q-join1", "q", FragmentKind.JOIN, "SELECT * FROM in0", (PortSpec("in0", ("q-a",)),), stateful=True
)
_COMING = PrepareEngine("q", Assignment(_JOIN, 2, ("keeper",)), 10, "4.3.0")


class _FakeEngine:
    """Takes down what it is to rehearse, and of which state."""

    def __init__(self) -> None:
        self.hello = Hello(7, 1, FlightAddress("here", 1), "4.3.0", "25")
        self.states: list[str | None] = []

    async def prepare(self) -> Hello:
        return self.hello

    async def call(self, command: Rehearse, _timeout_s: float) -> None:
        state = None if command.state is None else Path(command.state)
        self.states.append(None if state is None else (state / "checkpoint" / "metadata").read_text())


def _preparing(folder: Path, *, warm: bool = False) -> tuple[Preparing, _FakeEngine, ReplicaStore]:
    peers = SimpleNamespace(
        handle=lambda *_: None, node_id="here", overlay=SimpleNamespace(record=SimpleNamespace(name="here"))
    )
    engine, replicas = _FakeEngine(), ReplicaStore(folder / "replicas")
    book = SimpleNamespace(commit=lambda _: None)
    scratch = folder / "rehearsals"
    preparing = Preparing(
        cast(Any, peers), cast(Any, engine), cast(Any, book), replicas, Events("here", lambda: 0.0), scratch, warm=warm
    )
    return preparing, engine, replicas


def _keep_a_replica(replicas: ReplicaStore, folder: Path, batch_id: int = 5, metadata: str = "of the query") -> None:
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "checkpoint" / "metadata").write_text(metadata)
    assert _COMING.coming is not None
    assignment = msgspec.structs.replace(_COMING.coming, generation=1)
    digests = Digests().of(folder)
    replicas.store(StoreReplica(assignment, batch_id, digests, "4.3.0"), ReceivedFolder(folder, digests))


async def test_a_fragment_is_rehearsed_on_its_state_once_on_each_engine(tmp_path: Path) -> None:
    preparing, engine, replicas = _preparing(tmp_path)
    _keep_a_replica(replicas, tmp_path / "received")
    for _ in range(2):
        await preparing._prepare(_COMING, "source")
    assert engine.states == ["of the query", None]
    engine.hello = msgspec.structs.replace(engine.hello, pid=2)
    await preparing._prepare(_COMING, "source")
    assert engine.states == ["of the query", None, "of the query"]


async def test_one_that_comes_back_is_not_rehearsed_on_the_state_that_it_ran_on_here(tmp_path: Path) -> None:
    preparing, engine, replicas = _preparing(tmp_path)
    assert _COMING.coming is not None
    preparing.has_run(_COMING.coming.fragment_id, state_bytes=1_000)
    _keep_a_replica(replicas, tmp_path / "received")
    await preparing._prepare(_COMING, "source")
    assert engine.states == [None]
    engine.hello = msgspec.structs.replace(engine.hello, pid=2)
    await preparing._prepare(_COMING, "source")
    assert engine.states == [None, "of the query"], "another engine has not run it"


async def test_the_replica_that_a_fragment_leaves_behind_is_rehearsed_once_on_each_engine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has run on its state here, but perhaps started only once, long ago."""
    monkeypatch.setattr("daemon.fragments.preparing.LOOK_PERIOD_S", 0.01)
    monkeypatch.setattr("daemon.fragments.preparing.OWNER_SETTLES_S", 0.0)
    preparing, engine, replicas = _preparing(tmp_path, warm=True)
    assert _COMING.coming is not None
    fragment_id = _COMING.coming.fragment_id
    preparing.has_run(fragment_id, state_bytes=1_000)

    async def keep_a_replica(folder: str, rehearsals: int) -> None:
        _keep_a_replica(replicas, tmp_path / folder)
        with trio.fail_after(20.0):
            while len(engine.states) < rehearsals:
                await trio.sleep(0.01)
        await trio.sleep(0.1)  # it is looked at again

    async with trio.open_nursery() as nursery:
        nursery.start_soon(preparing.stand_by)
        await keep_a_replica("left", 1)
        replicas.drop(fragment_id)
        await trio.sleep(0.1)  # that is looked at, too
        await keep_a_replica("left-again", 1)
        assert engine.states == [None]
        engine.hello = msgspec.structs.replace(engine.hello, pid=2)
        await keep_a_replica("of-another-engine", 2)
        nursery.cancel_scope.cancel()
    assert engine.states == [None, "of the query"]


async def test_fragments_that_came_and_went_are_forgotten(tmp_path: Path) -> None:
    preparing, _, _ = _preparing(tmp_path)
    for index in range(MOST_TRIED + 5):
        preparing.has_run(f"q{index}-join1", state_bytes=1)
    assert list(preparing._tried_on_state.known) == [f"q{index}-join1" for index in range(5, MOST_TRIED + 5)]


async def test_two_who_ask_at_once_do_not_copy_it_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    preparing, engine, replicas = _preparing(tmp_path)
    _keep_a_replica(replicas, tmp_path / "received")
    copies: list[Path] = []
    copy_to = replicas.copy_to

    def copy(fragment_id: str, folder: Path) -> None:
        copies.append(folder)
        copy_to(fragment_id, folder)

    monkeypatch.setattr(replicas, "copy_to", copy)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(preparing._prepare, _COMING, "source")
    assert len(copies) == 1
    assert sorted(engine.states, key=str) == [None, "of the query"]


async def test_a_replica_is_rehearsed_on_its_state_as_it_comes_and_as_it_grows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("daemon.fragments.preparing.SMALL_BYTES", 10)
    monkeypatch.setattr("daemon.fragments.preparing.LOOK_PERIOD_S", 0.01)
    monkeypatch.setattr("daemon.fragments.preparing.OWNER_SETTLES_S", 0.0)
    preparing, engine, replicas = _preparing(tmp_path, warm=True)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(preparing.stand_by)
        for batch_id, (metadata, rehearsals) in enumerate((("little", 1), ("more", 1), ("so much more" * 50, 2))):
            _keep_a_replica(replicas, tmp_path / f"received{batch_id}", batch_id, metadata)
            with trio.fail_after(20.0):
                while len(engine.states) < rehearsals:
                    await trio.sleep(0.01)
            await trio.sleep(0.1)  # it is looked at again
        nursery.cancel_scope.cancel()
    assert engine.states == ["little", "so much more" * 50]
    await preparing._prepare(_COMING, "source")
    assert engine.states[-1] is None, "nothing is left to be tried when it comes"


async def test_a_replica_of_an_owner_that_has_just_started_is_rehearsed_later(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    preparing, _, _ = _preparing(tmp_path)
    before = _COMING.coming
    assert before is not None
    assert preparing._settled([before]) == []
    await trio.sleep(OWNER_SETTLES_S)
    assert preparing._settled([before]) == [before]
    after_a_move = msgspec.structs.replace(before, generation=before.generation + 1)
    assert preparing._settled([after_a_move]) == []


async def test_without_a_replica_it_is_rehearsed_all_the_same(tmp_path: Path) -> None:
    preparing, engine, _ = _preparing(tmp_path)
    await preparing._prepare(_COMING, "source")
    assert engine.states == [None]


def test_copies_that_a_daemon_before_has_left_are_deleted(tmp_path: Path) -> None:
    left = tmp_path / "rehearsals" / "q-join1.state.rehearsal"
    left.mkdir(parents=True)
    _preparing(tmp_path)
    assert not left.exists()
