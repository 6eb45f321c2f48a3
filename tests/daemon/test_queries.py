"""Queries over whole daemons with real sockets, and engines of the fake kind: placed, moved, interrupted, ended."""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon.config import CapacityConfig, Config, EmulationConfig, EngineConfig, FailoverConfig, PlacementConfig
from daemon.control.client import ControlClient
from daemon.control.messages import (
    Cancel,
    Explain,
    Explanation,
    Join,
    Migrate,
    OperatorInfo,
    Operators,
    Queries,
    QueryInfo,
    Submit,
)
from daemon.fragments.hosted_fragment import HostingRecord, Phase
from daemon.peering.move_messages import AcceptFragment
from daemon.process import Daemon
from sbon.errors import QueryError, SbonError, UnavailableError
from sbon.streams import SinkSpec, StreamSpec
from tests.daemon.fake_engine import FROZEN_BYTES
from tests.daemon.real_daemons import PATIENCE_S, make_config
from tests.daemon.run_with_fake_engine import FAKE_ENGINE

SQL = "INSERT INTO out SELECT ts, k FROM lefts UNION ALL SELECT ts, k FROM rights"
#: Nobody is taken for lost.
WAIT = FailoverConfig(replicas=0, lease_s=PATIENCE_S)
STAY = PlacementConfig(period_s=1000.0, minimum_migration_saving=0.99)


@dataclass
class Cluster:
    """Nodes by name: ``left`` and ``right`` own streams and take no operators, ``sink`` and ``hub`` do."""

    folder: Path
    configs: dict[str, Config]
    nursery: trio.Nursery
    daemons: dict[str, Daemon] = field(default_factory=dict)
    scopes: dict[str, trio.CancelScope] = field(default_factory=dict)
    ended: dict[str, trio.Event] = field(default_factory=dict)

    async def start(self, name: str) -> None:
        await self.nursery.start(self._run, name)

    async def _run(self, name: str, task_status: trio.TaskStatus[None]) -> None:
        self.scopes[name], self.ended[name] = trio.CancelScope(), trio.Event()
        with self.scopes[name]:
            self.daemons[name] = Daemon(self.configs[name], engine_command=FAKE_ENGINE)
            await self.daemons[name].run(task_status=task_status)
        self.ended[name].set()

    async def stop(self, name: str) -> None:
        self.scopes[name].cancel()
        await self.ended[name].wait()

    async def form(self) -> None:
        first, *others = self.configs.values()
        for config in others:
            async with ControlClient.open(config.node.socket) as client:
                await client.request(Join(first.node.listen))
        await eventually(self._all_measured)

    async def _all_measured(self) -> bool:
        return all(
            len(daemon.overlay.members()) == len(self.daemons) - 1
            and all(daemon.overlay.measured_rtt_ms(m.node_id) is not None for m in daemon.overlay.members())
            for daemon in self.daemons.values()
        )

    def client(self, name: str) -> AbstractAsyncContextManager[ControlClient]:
        return ControlClient.open(self.configs[name].node.socket)

    async def submit(self, sql: str = SQL, at: str = "left") -> str:
        async with self.client(at) as client:
            return (await client.request(Submit(sql))).query_id

    async def operators(self, at: str = "sink") -> dict[str, OperatorInfo]:
        async with self.client(at) as client:
            return {operator.kind: operator for operator in (await client.request(Operators())).operators}

    async def union(self) -> OperatorInfo:
        return (await self.operators())["union"]

    async def query(self, query_id: str, at: str = "sink") -> QueryInfo:
        async with self.client(at) as client:
            return next(q for q in (await client.request(Queries())).queries if q.query_id == query_id)

    async def migrate(self, fragment: str, node: str, at: str = "left") -> str:
        async with self.client(at) as client:
            return (await client.request(Migrate(fragment, node))).message

    async def all_running(self) -> bool:
        async with self.client("sink") as client:
            operators = (await client.request(Operators())).operators
        return len(operators) == 4 and all(operator.state == "running" for operator in operators)

    def steer(self, name: str, **steering: object) -> None:
        state = self.configs[name].node.state_dir
        state.mkdir(parents=True, exist_ok=True)
        new = state / "fake.new"
        new.write_text(json.dumps(steering))
        new.replace(state / "fake.json")

    def folders(self) -> dict[str, list[str]]:
        found = {name: self.configs[name].node.state_dir / "fragments" for name in self.configs}
        return {name: sorted(path.name for path in folder.iterdir()) for name, folder in found.items()}

    def folder_of(self, name: str, fragment_id: str) -> Path:
        return self.configs[name].node.state_dir / "fragments" / fragment_id

    def events(self, name: str) -> Counter[str]:
        return Counter(event.kind for event in self.daemons[name].events.history())


async def eventually(condition: Callable[[], Awaitable[bool]]) -> None:
    with trio.fail_after(PATIENCE_S):
        while not await condition():
            await trio.sleep(0.05)


@asynccontextmanager
async def running_cluster(
    folder: Path,
    placement: PlacementConfig = STAY,
    failover: FailoverConfig = WAIT,
    capacity: Mapping[str, CapacityConfig] | None = None,
) -> AsyncIterator[Cluster]:
    """hub is near both streams and on the way to sink, by more than a busy machine adds to a path.

    ``capacity`` is by node; without a limit if it is not there.
    """
    rtt_ms = {
        "sink": {"left": 100.0, "right": 100.0, "hub": 25.0},
        "left": {"sink": 100.0, "right": 10.0, "hub": 5.0},
        "right": {"sink": 100.0, "left": 10.0, "hub": 5.0},
        "hub": {"sink": 25.0, "left": 5.0, "right": 5.0},
    }
    streams = {name: (StreamSpec(f"{name}s", "replay", "ts TIMESTAMP, k STRING", "ts"),) for name in ("left", "right")}
    sinks = {"sink": tuple(SinkSpec(name, "parquet", {"path": str(folder / name)}) for name in ("out", "more"))}
    configs = {}
    for name in rtt_ms:
        config = make_config(folder, name)
        configs[name] = msgspec.structs.replace(
            config,
            node=msgspec.structs.replace(config.node, accept_operators=name in ("sink", "hub")),
            capacity=(capacity or {}).get(name, CapacityConfig()),
            placement=placement,
            failover=failover,
            engine=EngineConfig(start_timeout_s=30.0),
            emulation=EmulationConfig(rtt_ms[name]),
            stream=streams.get(name, ()),
            sink=sinks.get(name, ()),
        )
    async with trio.open_nursery() as nursery:
        cluster = Cluster(folder, configs, nursery)
        for name in configs:
            await cluster.start(name)
        await cluster.form()
        yield cluster
        for name in configs:
            await cluster.stop(name)


async def test_joins_of_three_streams_are_put_into_an_order(tmp_path: Path) -> None:
    sql = (
        "INSERT INTO out SELECT a.ts, b.k FROM lefts a [RANGE 1 MINUTE], rights b [RANGE 1 MINUTE], "
        "lefts c [RANGE 1 MINUTE] WHERE a.k = b.k AND b.k = c.k AND c.k = 'x'"
    )
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit(sql)
        planned = [event for event in cluster.daemons["sink"].events.history() if event.kind == "query-planned"]
        assert [event.fields["query"] for event in planned] == [query_id]
        joins = str(planned[0].fields["joins"])
        assert (joins.count("JOIN"), joins.count("lefts"), joins.count("rights")) == (2, 2, 1)

        async def runs() -> bool:
            query = await cluster.query(query_id)
            return query.state == "running" and query.fragments == 6

        await eventually(runs)


async def test_a_query_is_placed_explained_finished_and_cleared_away(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        operators = await cluster.operators()
        assert {kind: operator.node for kind, operator in operators.items()} | {"source": ""} == {
            "source": "",
            "union": "hub",
            "sink": "sink",
        }
        async with cluster.client("right") as client:
            explanation: Explanation = await client.request(Explain(query_id))
        union = next(operator for operator in explanation.operators if operator.kind == "union")
        assert union.candidates[0].node == "hub"
        assert union.candidates[0].measured
        assert union.runner_up == "sink"
        query = await cluster.query(query_id)
        assert (query.state, query.keeper, query.fragments) == ("running", "sink", 4)
        assert query.network_usage is not None
        assert query.network_usage_at_consumer is not None
        assert query.network_usage < query.network_usage_at_consumer
        cluster.steer("sink", finish=True)

        async def finished() -> bool:
            return (await cluster.query(query_id)).state == "finished"

        await eventually(finished)

        async def cleared() -> bool:
            return not any(cluster.folders().values())

        await eventually(cleared)
        assert await cluster.operators() == {}
        assert cluster.events("sink")["query-finished"] == 1


async def test_a_moved_fragment_goes_on_from_its_state_under_a_new_generation(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        message = await cluster.migrate(fragment, "sink")
        assert "moved from hub to sink" in message
        union = await cluster.union()
        assert (union.node, union.generation) == ("sink", 2)
        await eventually(cluster.all_running)
        assert not cluster.folder_of("hub", fragment).exists()
        history = (cluster.folder_of("sink", fragment) / "history").read_text().split("\n")
        assert [line.split()[:2] for line in history if line] == [["start", "1"], ["stop", "1"], ["start", "2"]]
        moved = next(event for event in cluster.daemons["hub"].events.history() if event.kind == "migrated")
        assert moved.fields["downtime_ms"] > 0
        sent = moved.fields["sent_bytes"]
        assert 0 < sent["ship"] < FROZEN_BYTES <= sent["copy"]  # after the stop, only what has changed travels
        assert await cluster.migrate(fragment, "hub")  # and back
        assert (await cluster.union()).generation == 3
        await eventually(cluster.all_running)


async def test_moves_that_cannot_be_are_refused_in_one_line(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.submit()
        operators = await cluster.operators()
        union, sink = operators["union"].fragment_id, operators["sink"].fragment_id
        for fragment, node, reason in (
            (sink, "hub", "is pinned"),
            (union, "hub", "runs there already"),
            (union, "left", "takes no operators"),
            (union, "nowhere", 'no node "nowhere" is known here'),
            ("q0-join1", "hub", "there is no fragment q0-join1"),
        ):
            with pytest.raises(SbonError, match=reason):
                await cluster.migrate(fragment, node)
        await eventually(cluster.all_running)


async def test_a_host_a_keeper_and_an_engine_may_end_and_come_back(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        for name in ("hub", "sink"):
            await cluster.stop(name)
            await cluster.start(name)
            await eventually(cluster.all_running)
        hello = cluster.daemons["hub"].query_service.supervisor.hello
        assert hello is not None
        os.kill(hello.pid, signal.SIGKILL)

        async def again() -> bool:
            now = cluster.daemons["hub"].query_service.supervisor.hello
            return now is not None and now.pid != hello.pid and await cluster.all_running()

        await eventually(again)
        union = await cluster.union()
        assert (union.fragment_id, union.node, union.generation) == (fragment, "hub", 1)
        assert (await cluster.query(query_id)).state == "running"


async def test_an_engine_that_does_not_start_fails_the_submission_and_leaves_nothing(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        cluster.steer("hub", die="no Java 17 or newer is there: install one")
        with pytest.raises(SbonError, match=r"hub: the engine does not start: .*no Java 17"):
            await cluster.submit()
        assert not any(cluster.folders().values())
        cluster.steer("hub")
        cluster.steer("sink", refuse="sink")
        with pytest.raises(SbonError, match="on sink: Spark refuses this"):
            await cluster.submit()

        async def cleared() -> bool:
            return not any(cluster.folders().values())

        await eventually(cleared)
        cluster.steer("sink")
        await cluster.submit()
        await eventually(cluster.all_running)


async def test_wrong_queries_are_refused_wherever_they_are_submitted(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        for at in ("left", "sink"):
            with pytest.raises(QueryError, match="unknown stream 'nowhere'"):
                await cluster.submit("INSERT INTO out SELECT ts FROM nowhere", at)
            with pytest.raises(QueryError, match="unknown sink"):
                await cluster.submit("INSERT INTO elsewhere SELECT ts, k FROM lefts", at)


async def test_a_cancelled_query_goes_away_everywhere_even_where_nobody_was_there(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        await cluster.stop("hub")
        async with cluster.client("left") as client:
            await client.request(Cancel(query_id))
        assert (await cluster.query(query_id)).state == "cancelled"
        assert cluster.folders()["hub"] != []
        await cluster.start("hub")

        async def cleared() -> bool:
            return not any(cluster.folders().values())

        await eventually(cleared)
        async with cluster.client("left") as client:
            with pytest.raises(SbonError, match="is cancelled already"):
                await client.request(Cancel(query_id))


async def test_a_fragment_that_fails_fails_its_query(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        cluster.steer("hub", fail="union")

        async def failed() -> bool:
            return (await cluster.query(query_id)).state == "failed"

        await eventually(failed)
        assert "union1 on hub failed: the fake one failed" in ((await cluster.query(query_id)).error or "")
        assert cluster.events("hub")["fragment-restarted"] == 2


async def test_a_fragment_that_fails_once_goes_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        cluster.steer("hub", fail_once="union")

        async def restarted() -> bool:
            return cluster.events("hub")["fragment-restarted"] == 1

        await eventually(restarted)
        await eventually(cluster.all_running)
        assert (await cluster.query(query_id)).state == "running"


async def test_a_move_that_fails_at_the_target_leaves_the_fragment_where_it_is(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        requests = cluster.daemons["sink"].requests
        folder_handler = requests._folder_handlers.pop("AcceptFragment")
        with pytest.raises(SbonError, match="stays where it is"):
            await cluster.migrate(fragment, "sink")
        await eventually(cluster.all_running)
        union = await cluster.union()
        assert (union.node, union.generation) == ("hub", 1)
        requests._folder_handlers["AcceptFragment"] = folder_handler
        await cluster.migrate(fragment, "sink")
        assert (await cluster.union()).generation == 3  # 2 was granted and revoked


async def test_a_move_of_which_only_the_answer_is_lost_is_carried_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        requests = cluster.daemons["hub"].requests
        send_folder = requests.send_folder

        async def lose_the_answer(node: Any, message: Any, *arguments: Any, **options: Any) -> None:
            await send_folder(node, message, *arguments, **options)
            if isinstance(message, AcceptFragment):
                raise UnavailableError("the connection broke")

        monkeypatch.setattr(requests, "send_folder", lose_the_answer)
        assert "moved from hub to sink" in await cluster.migrate(fragment, "sink")
        await eventually(cluster.all_running)
        union = await cluster.union()
        assert (union.node, union.generation) == ("sink", 2)
        assert not cluster.folder_of("hub", fragment).exists()


async def test_a_source_that_ends_in_the_middle_of_a_move_goes_on_when_it_is_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        under_way = trio.Event()

        requests = cluster.daemons["hub"].requests
        send_folder = requests.send_folder

        async def hang(node: Any, message: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(message, AcceptFragment):
                return await send_folder(node, message, *arguments, **options)
            under_way.set()
            return await trio.sleep_forever()

        monkeypatch.setattr(requests, "send_folder", hang)

        async def try_to_move() -> None:
            with pytest.raises(SbonError):
                await cluster.migrate(fragment, "sink")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(try_to_move)
            await under_way.wait()
            assert (await cluster.union()).state == "moving"
            await cluster.stop("hub")
            record = msgspec.msgpack.decode(
                (cluster.folder_of("hub", fragment) / "hosting.msgpack").read_bytes(), type=HostingRecord
            )
            assert record.phase is Phase.STOPPING
            await cluster.start("hub")
        await eventually(cluster.all_running)
        union = await cluster.union()
        assert (union.node, union.generation) == ("hub", 1)


async def test_a_query_that_ends_in_the_middle_of_a_move_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = await cluster.submit()
        await eventually(cluster.all_running)
        fragment = (await cluster.union()).fragment_id
        requests = cluster.daemons["hub"].requests
        send_folder = requests.send_folder

        async def cancel_first(node: Any, message: Any, *arguments: Any, **options: Any) -> Any:
            if not isinstance(message, AcceptFragment):
                return await send_folder(node, message, *arguments, **options)
            async with cluster.client("left") as client:
                await client.request(Cancel(query_id))

            async def released_elsewhere() -> bool:
                return not cluster.folders()["sink"]

            await eventually(released_elsewhere)
            return await send_folder(node, message, *arguments, **options)

        monkeypatch.setattr(requests, "send_folder", cancel_first)
        with pytest.raises(SbonError, match="its query has ended"):
            await cluster.migrate(fragment, "sink")

        async def cleared() -> bool:
            return not any(cluster.folders().values())

        await eventually(cleared)
        assert (await cluster.query(query_id)).state == "cancelled"


async def test_an_operator_leaves_by_itself_when_its_path_becomes_slow(tmp_path: Path) -> None:
    placement = PlacementConfig(period_s=0.5, rest_s=1.0)
    async with running_cluster(tmp_path, placement) as cluster:
        await cluster.submit()
        await eventually(cluster.all_running)
        assert (await cluster.union()).node == "hub"
        for a in ("left", "right"):
            for one, other in ((a, "hub"), ("hub", a)):
                emulation = cluster.daemons[one].emulation
                assert emulation is not None
                emulation.set_rtt_ms(cluster.daemons[other].record, 200.0)

        async def moved() -> bool:
            return (await cluster.union()).node == "sink"

        await eventually(moved)
        await eventually(cluster.all_running)
