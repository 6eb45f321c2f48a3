"""State on its way to a host that stores it for real; only the network is a fake."""

from __future__ import annotations

import shutil
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from daemon.fragments import state_copies
from daemon.fragments.replica_store import Digests, ReplicaStore
from daemon.fragments.state_copies import StateCopies
from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.keeper_messages import DescribeReplica, ReplicaFiles, StoreAhead, StoreReplica
from daemon.peering.move_messages import AcceptFragment
from daemon.peering.query_messages import Assignment
from sbon.engine_messages import SnapshotTaken
from sbon.errors import SbonError
from sbon.fragment import FragmentKind, FragmentSpec

ASSIGNMENT = Assignment(FragmentSpec("q1-join1", "q1", FragmentKind.JOIN, "SELECT 1"), 1, ("k",))
STORE = "checkpoint/state/0/0"


class Host:
    """Both :class:`Peers` and :class:`Parcels` of the sender, and the one host that there is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = ReplicaStore(folder / "replicas")
        self.refuses = False
        self.parcels: list[set[str]] = []
        self.meanwhile: Callable[[], Awaitable[None]] | None = None

    async def ask(self, _host: str, message: DescribeReplica, _reply: type[ReplicaFiles]) -> ReplicaFiles:
        if self.meanwhile is not None:
            await self.meanwhile()
        replica = self.store.find(message.fragment_id)
        return ReplicaFiles({} if replica is None else replica.record.files)

    async def send(
        self,
        _host: str,
        message: msgspec.Struct,
        folder: Path,
        files: Mapping[str, str],
        known: Mapping[str, str],
        _timeout_s: float,
    ) -> int:
        received = self.folder / "received"
        shutil.rmtree(received, ignore_errors=True)
        received.mkdir(parents=True)
        lacking = {name for name, digest in files.items() if known.get(name) != digest}
        for name in lacking:
            (received / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(folder / name, received / name)
        if self.refuses:
            raise SbonError("no room")
        self.parcels.append(lacking)
        parcel = ReceivedFolder(received, Digests().of(received))
        match message:
            case StoreReplica():
                self.store.store(message, parcel)
            case StoreAhead():
                self.store.store_ahead("q1-join1", message.files, parcel)
            case AcceptFragment():
                self.store.complete(message, parcel)
        return sum((folder / name).stat().st_size for name in lacking)

    @property
    def digests(self) -> set[str]:
        replica = self.store.find("q1-join1")
        assert replica is not None
        return set(replica.record.files.values())

    @property
    def state(self) -> set[str]:
        replica = self.store.find("q1-join1")
        assert replica is not None
        return set(replica.record.files)


class Owner:
    def __init__(self, folder: Path, host: Host) -> None:
        self.folder, self.host, self.copies = folder, host, StateCopies()
        self.parcels: Any = host

    async def send(self, batch_id: int, *names: str, to: str = "there") -> None:
        """The state after that batch has files of these names, all others are gone."""
        shutil.rmtree(self.folder, ignore_errors=True)
        for name in names:
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).write_text(f"content of {name}")
        taken = SnapshotTaken("q1-join1", 1, batch_id, str(self.folder))
        await self.copies.send(self.parcels, self.parcels, to, ASSIGNMENT, taken, "4.3.0", 1.0)

    async def follow(self) -> int:
        return await self.copies.follow(self.parcels, "there", ASSIGNMENT, 1.0)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(state_copies, "LATER_BYTES", 1)
    return Host(tmp_path / "host")


@pytest.fixture
def owner(tmp_path: Path, host: Host) -> Owner:
    return Owner(tmp_path / "owner", host)


def changes(*versions: int) -> set[str]:
    return {f"{STORE}/{version}.changelog" for version in versions}


def snapshot(version: int) -> set[str]:
    return {f"{STORE}/{version}.zip", f"{STORE}/SSTs/{version}.sst"}


async def test_no_batch_waits_for_a_snapshot(owner: Owner, host: Host) -> None:
    await owner.send(0, *changes(1))
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    assert host.state == changes(1, 2, 3)
    assert owner.copies.lacks("there")
    assert await owner.follow() > 0
    assert not owner.copies.lacks("there")
    assert host.state == changes(1, 2, 3), "the replica is what it was"
    await owner.send(3, *changes(3, 4), *snapshot(2))
    assert host.state == changes(3, 4) | snapshot(2)
    assert host.parcels[-2:] == [snapshot(2), changes(4)], "each file has travelled once"
    contents = host.folder / "replicas" / "q1-join1" / "files"
    assert {path.name for path in contents.iterdir()} == host.digests, "what is not needed any more is deleted"
    assert await owner.follow() == 0


async def test_what_is_to_follow_is_what_there_is_now(owner: Owner, host: Host) -> None:
    await owner.send(0, *changes(1))
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    await owner.follow()
    host.refuses = True
    with pytest.raises(SbonError, match="no room"):
        await owner.send(4, *changes(3, 4, 5), *snapshot(2), *snapshot(4))
    host.refuses = False
    await owner.send(4, *changes(3, 4, 5), *snapshot(2), *snapshot(4))
    assert host.state == changes(1, 2, 3, 4, 5), "nobody knows for sure what has come ahead"
    await owner.follow()
    await owner.send(5, *changes(5, 6), *snapshot(4))
    assert host.state == changes(5, 6) | snapshot(4)


async def test_one_that_takes_over_has_what_came_ahead(owner: Owner, host: Host) -> None:
    await owner.send(0, *changes(1))
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    await owner.follow()
    await owner.copies.hand_over(owner.parcels, "there", ASSIGNMENT, owner.folder, frozenset(), 1.0)
    assert host.parcels[-1] == set()
    whole = host.folder / "whole"
    assert {path.name for path in whole.rglob("*.sst")} == {"2.sst"}


async def test_one_that_takes_over_does_without_a_snapshot_of_the_last_moment(owner: Owner, host: Host) -> None:
    await owner.send(0, *changes(1), *snapshot(1))
    await owner.follow()
    for name in changes(2, 3) | snapshot(3):
        (owner.folder / name).write_text(f"content of {name}")
    for name in snapshot(1):
        (owner.folder / name).unlink()
    await owner.copies.hand_over(owner.parcels, "there", ASSIGNMENT, owner.folder, frozenset(), 1.0)
    assert host.parcels[-1] == changes(2, 3)
    whole = host.folder / "whole"
    state = {path.relative_to(whole).as_posix() for path in whole.rglob("*") if path.is_file()}
    assert state == changes(1, 2, 3) | snapshot(1), "it goes on from the one before"


async def test_a_small_snapshot_does_not_follow(owner: Owner, host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state_copies, "LATER_BYTES", 1_000_000)
    await owner.send(0, *changes(1))
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    assert host.state == changes(1, 2, 3) | snapshot(2)
    assert not owner.copies.lacks("there")


async def test_two_hosts_get_different_snapshots_at_the_same_time(owner: Owner, host: Host, tmp_path: Path) -> None:
    """A replica goes on growing while the state is copied ahead to where it is about to move."""
    target = Owner(tmp_path / "newer", Host(tmp_path / "target"))
    target.copies = owner.copies
    await owner.send(0, *changes(1))
    host.refuses = True
    with pytest.raises(SbonError, match="no room"):
        await owner.send(1, *changes(1, 2))
    host.refuses = False
    host.meanwhile = lambda: target.send(3, *changes(3, 4), to="target")
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    assert target.host.state == changes(3, 4)
    assert host.state == changes(1, 2, 3)
    assert await owner.follow() > 0


async def test_where_it_has_gone_meanwhile_nothing_follows(owner: Owner, host: Host) -> None:
    await owner.send(0, *changes(1))
    await owner.send(2, *changes(1, 2, 3), *snapshot(2))
    shutil.rmtree(owner.folder)
    with pytest.raises(FileNotFoundError):
        await owner.follow()
    assert owner.copies.lacks("there")
