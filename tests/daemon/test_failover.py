"""Hosts that are lost, over whole daemons and engines of the fake kind: their fragments go on elsewhere, only there."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio
import trio.testing

from daemon.config import FailoverConfig
from daemon.control.messages import Cancel, OperatorInfo
from daemon.events import Events
from daemon.fragments import replicating
from daemon.fragments.migration import _Move
from daemon.fragments.preparing import Preparing
from daemon.fragments.replica_store import LEFT_BEHIND, ReplicaStore
from daemon.peering import parcels
from daemon.peering.host_messages import PrepareEngine
from daemon.peering.keeper_messages import StoreReplica
from daemon.peering.requests import Done
from daemon.queries.failover import LOOK_PERIOD_S, Failover
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError, UnavailableError
from tests.daemon import test_switching
from tests.daemon.fake_network import FakeNetwork
from tests.daemon.test_queries import Cluster, eventually, running_cluster

FAILOVER = FailoverConfig(replicas=1, lease_s=3.0)


async def begin_on_hub(cluster: Cluster) -> OperatorInfo:
    """A query that runs, its movable operator on hub: a busy machine may have measured other paths than there are."""
    await cluster.submit()
    await eventually(cluster.all_running)
    union = await cluster.union()
    if union.node != "hub":
        await cluster.migrate(union.fragment_id, "hub")
        await eventually(cluster.all_running)
    return await cluster.union()


def kept(cluster: Cluster, at: str, fragment_id: str) -> tuple[Path, StoreReplica]:
    """The folder of a replica, and what it is now. FileNotFoundError if there is none."""
    folder = cluster.configs[at].node.state_dir / "replicas" / fragment_id
    return folder, msgspec.msgpack.decode((folder / "replica.msgpack").read_bytes(), type=StoreReplica)


async def replicated(cluster: Cluster, at: str) -> None:
    async def named() -> bool:
        return cluster.events(at)["replicas-changed"] > 0

    await eventually(named)


async def runs_at(cluster: Cluster, name: str, at: str = "sink") -> None:
    async def runs() -> bool:
        union = (await cluster.operators(at)).get("union")
        return union is not None and union.node == name and union.state == "running"

    await eventually(runs)


async def released(cluster: Cluster, name: str) -> None:
    async def has_nothing() -> bool:
        return cluster.folders()[name] == []

    await eventually(has_nothing)


def count_of(folder: Path) -> int:
    return int((folder / "count").read_text())


def losing_some(link: Any) -> Any:
    """As ``link``, but every third snapshot has gone when it is to be sent: its fragment was released, say."""
    numbers = itertools.count()

    def links(*arguments: Any) -> int:
        if next(numbers) % 3 == 0:
            raise FileNotFoundError("the snapshot has gone")
        size_bytes: int = link(*arguments)
        return size_bytes

    return links


async def test_a_lost_host_is_replaced_from_its_replica_and_fenced_when_it_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(parcels, "_link", losing_some(parcels._link))
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        before = await begin_on_hub(cluster)
        fragment = before.fragment_id
        await replicated(cluster, "hub")
        _, record = kept(cluster, "sink", fragment)
        assert record.assignment.generation == before.generation
        await cluster.stop("hub")
        await runs_at(cluster, "sink")
        union = await cluster.union()
        assert union.generation > before.generation
        history = (cluster.folder_of("sink", fragment) / "history").read_text().split("\n")
        assert history[0].startswith("start 1 ")  # it went on from what hub had shipped
        assert count_of(cluster.folder_of("sink", fragment)) > 10
        await cluster.start("hub")
        await released(cluster, "hub")
        assert (await cluster.union()).node == "sink"
        assert (await cluster.query(fragment.partition("-")[0])).state == "running"


async def test_an_owner_in_the_minority_stops_before_another_one_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        before = await begin_on_hub(cluster)
        fragment = before.fragment_id
        await replicated(cluster, "hub")
        cut_off = True

        def cut(name: str) -> None:
            requests = cluster.daemons[name].requests
            exchange = requests._exchange

            async def fail_or_pass(node: Any, *arguments: Any, **options: Any) -> Any:
                if cut_off and "hub" in (name, node.name):
                    raise UnavailableError("the network is cut")
                return await exchange(node, *arguments, **options)

            monkeypatch.setattr(requests, "_exchange", fail_or_pass)

        for name in cluster.daemons:
            cut(name)
        await runs_at(cluster, "sink")

        async def has_stopped() -> bool:
            return cluster.events("hub")["lease-lost"] == 1

        await eventually(has_stopped)
        history = (cluster.folder_of("hub", fragment) / "history").read_text().strip().split("\n")
        assert history[-1].startswith(f"stop {before.generation} ")
        cut_off = False
        await released(cluster, "hub")
        assert (await cluster.union()).node == "sink"


async def test_without_a_replica_a_fragment_waits_for_its_host(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FailoverConfig(replicas=0, lease_s=1.5)) as cluster:
        before = await begin_on_hub(cluster)
        await cluster.stop("hub")

        async def is_missed() -> bool:
            keeping = cluster.daemons["sink"].query_service._keeping
            return bool(keeping.overdue())

        await eventually(is_missed)
        await cluster.start("hub")
        await eventually(cluster.all_running)
        union = await cluster.union()
        assert (union.node, union.generation) == ("hub", before.generation)


async def test_a_fragment_may_move_to_its_replica_and_finds_another_one(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        fragment = (await begin_on_hub(cluster)).fragment_id
        await replicated(cluster, "hub")
        await cluster.migrate(fragment, "sink")
        await replicated(cluster, "sink")
        await cluster.stop("sink")  # which is a keeper, too, and where results go
        await runs_at(cluster, "hub", at="left")
        await cluster.start("sink")
        await eventually(cluster.all_running)
        assert (await cluster.union()).node == "hub"


async def test_what_a_fragment_leaves_behind_becomes_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent_bytes: dict[int, int] = {}
    send = parcels.Parcels.send

    async def counted(self: Any, host: str, message: Any, *rest: Any) -> int:
        size_bytes = await send(self, host, message, *rest)
        if isinstance(message, StoreReplica):
            generation = message.assignment.generation
            sent_bytes[generation] = sent_bytes.get(generation, 0) + size_bytes
        return size_bytes

    monkeypatch.setattr(parcels.Parcels, "send", counted)
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        union = await begin_on_hub(cluster)
        (cluster.folder_of("hub", union.fragment_id) / "frozen").write_bytes(b"x" * 1_000_000)
        await replicated(cluster, "hub")
        await cluster.migrate(union.fragment_id, "sink")
        await replicated(cluster, "sink")
        _, record = kept(cluster, "hub", union.fragment_id)
    assert record.assignment.generation == union.generation + 1
    assert "frozen" in record.files
    assert sent_bytes[union.generation] > 1_000_000
    assert sent_bytes[union.generation + 1] < 1_000_000


async def test_what_a_fragment_leaves_behind_goes_if_nobody_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicating, "SWEEP_PERIOD_S", 0.2)
    monkeypatch.setattr(replicating.Replicating, "_choose", lambda *_: None)
    left: list[StoreReplica] = []
    take_over = ReplicaStore.take_over

    def noted(self: ReplicaStore, record: StoreReplica, folder: Path) -> None:
        take_over(self, record, folder)
        left.append(record)

    monkeypatch.setattr(ReplicaStore, "take_over", noted)
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        union = await begin_on_hub(cluster)
        await cluster.migrate(union.fragment_id, "sink")
        assert [record.batch_id for record in left] == [LEFT_BEHIND]

        async def is_gone() -> bool:
            return not list((cluster.configs["hub"].node.state_dir / "replicas").iterdir())

        await eventually(is_gone)
        await eventually(cluster.all_running)


async def test_replicas_grow_while_a_move_is_prepared_and_with_them_what_is_let_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparing, ready = trio.Event(), trio.Event()
    prepare = Preparing._prepare

    async def slowly(self: Preparing, message: PrepareEngine, sender: str) -> Done:
        if message.coming is not None:
            preparing.set()
            await ready.wait()
        return await prepare(self, message, sender)

    monkeypatch.setattr(Preparing, "_prepare", slowly)
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster, trio.open_nursery() as nursery:
        fragment = (await begin_on_hub(cluster)).fragment_id
        await replicated(cluster, "hub")
        nursery.start_soon(cluster.migrate, fragment, "sink")
        await preparing.wait()
        hosted = cluster.daemons["hub"].query_service.hosting.find(fragment)
        assert hosted is not None
        replication = hosted.replication
        assert replication is not None
        before = replication.safe_batch
        assert before is not None

        async def has_grown() -> bool:
            return replication.safe_batch is not None and replication.safe_batch > before + 20

        await eventually(has_grown)
        ready.set()
        await runs_at(cluster, "sink")


async def test_a_lost_keeper_is_replaced_so_that_another_one_may_be_lost(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FailoverConfig(replicas=0, lease_s=2.0)) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        ids = {name: daemon.overlay.record.node_id for name, daemon in cluster.daemons.items()}

        async def kept_by(*names: str) -> None:
            async def is_so() -> bool:
                record = cluster.daemons["sink"].query_service._keeping.find(query_id)
                return record is not None and set(record.keepers) == {ids[name] for name in names}

            await eventually(is_so)

        await kept_by("sink", "left", "right")
        await cluster.stop("right")
        await kept_by("sink", "left", "hub")
        await cluster.stop("left")
        union = await cluster.union()
        await runs_at(cluster, union.node)
        other = "sink" if union.node == "hub" else "hub"
        await cluster.migrate(union.fragment_id, other, at="sink")
        await runs_at(cluster, other)
        await cluster.start("left")
        await cluster.start("right")  # it still takes itself for a keeper
        await eventually(cluster.all_running)
        async with cluster.client("right") as client:
            await client.request(Cancel(query_id))
        for name in cluster.daemons:
            await released(cluster, name)


async def test_without_a_majority_of_its_keepers_a_query_stops_and_goes_on_when_one_is_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FailoverConfig(replicas=1, lease_s=2.0)) as cluster:
        before = await begin_on_hub(cluster)
        fragment = before.fragment_id
        await replicated(cluster, "hub")
        history = cluster.folder_of("hub", fragment) / "history"
        await cluster.stop("left")
        await cluster.stop("right")  # only sink is left of the keepers

        async def has_stopped() -> bool:
            return cluster.events("hub")["lease-lost"] > 0 and "stop" in history.read_text().strip().split("\n")[-1]

        await eventually(has_stopped)
        counted = count_of(cluster.folder_of("hub", fragment))
        assert cluster.folders()["sink"] == [f"{fragment.partition('-')[0]}-sink1"]
        await cluster.start("left")

        async def goes_on() -> bool:
            node = (await cluster.union()).node
            folder = cluster.folder_of(node, fragment)
            return (folder / "count").exists() and count_of(folder) > counted

        await eventually(goes_on)
        await cluster.start("right")
        await eventually(cluster.all_running)
        [node] = [name for name, fragments in cluster.folders().items() if fragment in fragments]
        assert (await cluster.union()).node == node


async def test_a_fragment_goes_on_while_its_replica_is_on_the_way_to_where_it_moves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That may be all of its state, and take seconds."""
    async with running_cluster(tmp_path) as cluster, trio.open_nursery() as nursery:
        fragment_id = (await begin_on_hub(cluster)).fragment_id
        target = cluster.daemons["sink"].overlay.record.node_id
        fragment = cluster.daemons["hub"].query_service.hosting.find(fragment_id)
        assert fragment is not None
        up: list[bool] = []

        async def send_for_long(task_status: trio.TaskStatus[None]) -> None:
            async with fragment.copies.turn(target):
                task_status.started()
                await trio.sleep(1.0)
                up.append(fragment.up)

        copy_ahead = _Move._copy_ahead

        async def then_a_replica_is_sent(move: _Move) -> None:
            await copy_ahead(move)
            await nursery.start(send_for_long)

        monkeypatch.setattr(_Move, "_copy_ahead", then_a_replica_is_sent)
        assert "moved from hub to sink" in await cluster.migrate(fragment_id, "sink")
        assert up == [True]


async def test_the_fragments_of_a_new_plan_are_not_missed_before_they_have_started(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    """Its engines may be cold, and what reads the others cannot even be told yet what they put out."""
    network, record = FakeNetwork(), test_switching.begun()
    assert record.new_plan is not None
    peers = {keeper: network.add(keeper) for keeper in record.keepers}
    keeping = {keeper: RecordKeeping(each, tmp_path / keeper, 3.0, trio.current_time) for keeper, each in peers.items()}
    first = record.keeper
    failover = Failover(peers[first], keeping[first], Events(first, lambda: 0.0))
    new = record.new_plan.fragments[-1]
    with pytest.raises(SbonError, match="has not started yet"):
        record.assignment(new)
    async with trio.open_nursery() as nursery:
        for each in keeping.values():
            await nursery.start(each.run)
        await keeping[first].change(record.query_id, record.keepers, lambda _: record)
        nursery.start_soon(failover.run)
        await trio.sleep(4.0 + LOOK_PERIOD_S)
        assert {fragment for _, fragment in keeping[first].overdue()} == test_switching.OLD
        await failover._rescue(record, new)  # it does no harm either
        nursery.cancel_scope.cancel()
