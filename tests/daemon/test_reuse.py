"""Queries with the same join over whole daemons, engines of the fake kind: one join runs, while one query needs it."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config import FailoverConfig
from daemon.control.messages import Cancel, Explain, Explanation, OperatorInfo, Operators, StreamInfo, Streams, Submit
from daemon.fragments.hosted_fragment import HostingRecord
from daemon.queries.lifetimes import end_in_time
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec
from tests.daemon.test_failover import FAILOVER
from tests.daemon.test_queries import STAY, Cluster, eventually, running_cluster

JOIN = "lefts {0} JOIN rights {1} ON {0}.k = {1}.k AND {0}.ts BETWEEN {1}.ts AND {1}.ts + INTERVAL 1 HOUR"
FIRST = f"INSERT INTO out SELECT l.ts, l.k FROM {JOIN.format('l', 'r')}"
#: So far ahead that no machine is too slow.
LIFETIME_S = 36000.0
SECOND = (
    "INSERT INTO out SELECT window.start AS s, count(*) AS n "
    f"FROM {JOIN.format('a', 'b')} WHERE a.k <> 'x' GROUP BY window(a.ts, '1 hour')"
)

THIRD = (
    "INSERT INTO out SELECT count(1) AS many, window.start AS since "
    f"FROM {JOIN.format('c', 'd')} WHERE 'x' <> c.k GROUP BY window(c.ts, '60 minutes')"
)


async def operators(cluster: Cluster, query_id: str) -> dict[str, OperatorInfo]:
    async with cluster.client("left") as client:
        found = (await client.request(Operators())).operators
    return {operator.kind: operator for operator in found if operator.query_id == query_id}


async def explained(cluster: Cluster, query_id: str) -> Explanation:
    async with cluster.client("right") as client:
        return await client.request(Explain(query_id))


async def streams(cluster: Cluster) -> dict[str, StreamInfo]:
    async with cluster.client("right") as client:
        return {stream.name: stream for stream in (await client.request(Streams())).streams}


async def cancel(cluster: Cluster, query_id: str) -> None:
    async with cluster.client("left") as client:
        await client.request(Cancel(query_id))


def spec(cluster: Cluster, node: str, fragment_id: str) -> FragmentSpec:
    path = cluster.folder_of(node, fragment_id) / "hosting.msgpack"
    return msgspec.msgpack.decode(path.read_bytes(), type=HostingRecord).assignment.spec


def consumers(cluster: Cluster, node: str, fragment_id: str) -> tuple[str, ...]:
    path = cluster.folder_of(node, fragment_id) / "hosting.msgpack"
    return msgspec.msgpack.decode(path.read_bytes(), type=HostingRecord).assignment.consumers


async def submit_first(cluster: Cluster) -> tuple[str, OperatorInfo]:
    """Its id and its join, once that is known to run."""
    first = await cluster.submit(FIRST)

    await eventually(lambda: offers(cluster, f"{first}-join1"))
    return first, (await operators(cluster, first))["join"]


async def test_the_second_query_reads_the_join_of_the_first_and_keeps_it_alive(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        first, join = await submit_first(cluster)
        # One that cannot be started leaves no trace.
        for name in ("hub", "sink"):
            cluster.steer(name, refuse="aggregate")
        with pytest.raises(SbonError, match="Spark refuses this"):
            await cluster.submit(SECOND)
        for name in ("hub", "sink"):
            cluster.steer(name)

        async def has_no_other_reader() -> bool:
            return consumers(cluster, join.node, join.fragment_id) == (f"{first}-sink1:in0",)

        await eventually(has_no_other_reader)

        async with cluster.client("left") as client:
            with pytest.raises(SbonError, match="over before it begins"):
                await client.request(Submit(SECOND, time.time() - 1.0))
            second = (await client.request(Submit(SECOND, time.time() + LIFETIME_S))).query_id
        reading = await operators(cluster, second)
        assert reading.keys() == {"aggregate", "sink"}
        aggregate = spec(cluster, reading["aggregate"].node, reading["aggregate"].fragment_id)
        assert aggregate.ports[0].producers == (join.fragment_id,)
        assert aggregate.ports[0].first_batches[join.fragment_id] > 0
        # What it begins with is in its text: whole windows, of rows that are all still to come.
        assert aggregate.sql.count("TIMESTAMP_MILLIS(1000)") == 2
        assert "(SELECT ts AS a__ts FROM in0 WHERE k <> 'x' AND ts >= TIMESTAMP_MILLIS(1000)) AS in0" in aggregate.sql

        said = await explained(cluster, second)
        assert [(each.fragment_id, each.query_id, each.node, each.from_ms) for each in said.reused] == [
            (join.fragment_id, first, join.node, 1000)
        ]
        await eventually(lambda: is_read_by(cluster, first, second))
        cursors = {f"{first}-sink1:in0", f"{second}-aggregate1:in0"}
        assert set(consumers(cluster, join.node, join.fragment_id)) == cursors

        await cancel(cluster, first)

        async def only_the_join_is_left() -> bool:
            left = await operators(cluster, first)
            return left.keys() == {"join", "source"} and consumers(cluster, join.node, join.fragment_id) == (
                f"{second}-aggregate1:in0",
            )

        await eventually(only_the_join_is_left)
        assert (await cluster.query(second)).state == "running"

        # It moves as before, and whoever reads it is told.
        target = "sink" if join.node == "hub" else "hub"
        await cluster.migrate(join.fragment_id, target)
        moved = (await operators(cluster, first))["join"]
        assert (moved.node, moved.generation) == (target, 2)
        await eventually(lambda: connected(cluster, reading["aggregate"].node, join.fragment_id, target))
        await eventually(lambda: reads_from(cluster, second, target))
        assert consumers(cluster, target, join.fragment_id) == (f"{second}-aggregate1:in0",)

        # Its time comes, by a clock that is ahead, and nobody needs anything any more.
        service = cluster.daemons["sink"].query_service
        assert 0.0 < ((await service.view(second)).remaining_s or 0.0) <= LIFETIME_S
        async with trio.open_nursery() as nursery:
            nursery.start_soon(end_in_time, service._keeping, service.keeper, lambda: time.time() + LIFETIME_S)

            async def nothing_is_left() -> bool:
                return (await cluster.query(second)).state == "finished" and not any(cluster.folders().values())

            await eventually(nothing_is_left)
            nursery.cancel_scope.cancel()


async def test_a_query_reads_one_that_is_still_being_deployed_and_goes_on_when_that_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        keeper = cluster.daemons["sink"].query_service.keeper
        set_running, fails = keeper.set_running, trio.Event()
        begun: list[str] = []

        async def held_up(query_id: str) -> None:
            begun.append(query_id)
            if query_id == begun[0]:
                await fails.wait()
                raise SbonError("the deployment has failed")
            await set_running(query_id)

        monkeypatch.setattr(keeper, "set_running", held_up)
        async with trio.open_nursery() as nursery:

            async def submit_first() -> None:
                with pytest.raises(SbonError, match="the deployment has failed"):
                    await cluster.submit(FIRST)

            nursery.start_soon(submit_first)
            await eventually(lambda: all_started(begun))
            first = begun[0]
            await eventually(lambda: offers(cluster, f"{first}-join1"))
            second = await cluster.submit(SECOND)
            fails.set()
        assert (await operators(cluster, second)).keys() == {"aggregate", "sink"}

        async def only_what_is_read_is_left() -> bool:
            return (await operators(cluster, first)).keys() == {"join", "source"}

        await eventually(only_what_is_read_is_left)
        await eventually(lambda: is_read_by(cluster, first, second))
        await cancel(cluster, second)

        async def nothing_is_left() -> bool:
            return not any(cluster.folders().values())

        await eventually(nothing_is_left)


async def all_started(begun: list[str]) -> bool:
    return bool(begun)


async def test_an_aggregate_that_itself_reads_others_is_read_and_keeps_all_of_it_alive(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        first, join = await submit_first(cluster)
        second = await cluster.submit(SECOND)
        aggregate = f"{second}-aggregate1"
        await eventually(lambda: offers(cluster, aggregate))
        third = await cluster.submit(THIRD)
        assert (await operators(cluster, third)).keys() == {"sink"}
        said = await explained(cluster, third)
        assert [(each.fragment_id, each.query_id) for each in said.reused] == [(aggregate, second)]
        # It is whole from the first window on that begins when the join does, which ends an hour later.
        assert said.reused[0].from_ms == 1000
        sink = spec(cluster, "sink", f"{third}-sink1")
        assert "WHERE s >= TIMESTAMP_MILLIS(1000)" in sink.sql
        for query_id in (first, second):
            await cancel(cluster, query_id)

        async def only_what_is_needed_is_left() -> bool:
            kept = (await operators(cluster, first)).keys() | (await operators(cluster, second)).keys()
            return kept == {"source", "join", "aggregate"} and consumers(cluster, join.node, join.fragment_id) == (
                f"{aggregate}:in0",
            )

        await eventually(only_what_is_needed_is_left)
        assert (await cluster.query(third)).state == "running"
        await cancel(cluster, third)

        async def nothing_is_left() -> bool:
            return not any(cluster.folders().values())

        await eventually(nothing_is_left)


async def test_a_join_that_two_queries_read_is_taken_over_and_both_go_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        first, join = await submit_first(cluster)
        second = await cluster.submit(SECOND)
        aggregate = (await operators(cluster, second))["aggregate"]
        for operator, node in ((join, "hub"), (aggregate, "sink")):
            if operator.node != node:
                await cluster.migrate(operator.fragment_id, node)
        owner = (await operators(cluster, first))["join"]
        cursors = {f"{first}-sink1:in0", f"{second}-aggregate1:in0"}

        async def is_replicated_at_sink() -> bool:
            folder = cluster.configs["sink"].node.state_dir / "replicas" / join.fragment_id
            return (folder / "replica.msgpack").exists()

        await eventually(is_replicated_at_sink)

        # It goes from hub to sink once: what reads it there for the first query relays it to the second one.
        await eventually(lambda: reads_through(cluster, second, "sink"))
        service = cluster.daemons["sink"].query_service
        reader, hello = service.hosting.find(aggregate.fragment_id), service.supervisor.hello
        assert reader is not None
        assert hello is not None
        assert reader.relays[join.fragment_id].flight_address[1:] == hello.flight_address[1:]

        async def costs_the_first_nothing() -> bool:
            return not any(aggregate.fragment_id in flow.target for flow in (await service.view(first)).flows)

        await eventually(costs_the_first_nothing)
        await cluster.stop("hub")

        async def goes_on_at_sink() -> bool:
            now = (await operators(cluster, first)).get("join")
            return (
                now is not None and (now.node, now.state) == ("sink", "running") and now.generation > owner.generation
            )

        await eventually(goes_on_at_sink)
        # What either of them has not acknowledged is kept for it there, and both are told where that is.
        assert set(consumers(cluster, "sink", join.fragment_id)) == cursors

        async def both_read_it_there() -> bool:
            connected = {
                event.fields["fragment"]
                for event in cluster.daemons["sink"].events.history()
                if event.kind == "link-connected"
                and (event.fields["producer"], event.fields["node"]) == (join.fragment_id, "sink")
            }
            return connected == {f"{first}-sink1", f"{second}-aggregate1"}

        await eventually(both_read_it_there)
        await eventually(lambda: reads_from(cluster, second, "sink"))
        await eventually(lambda: reads_through(cluster, second, None))
        await cluster.start("hub")  # it has had it, and has to let it go

        async def has_let_it_go() -> bool:
            return join.fragment_id not in cluster.folders()["hub"]

        await eventually(has_let_it_go)
        for query_id in (first, second):
            assert (await cluster.query(query_id)).state == "running"
        history = (cluster.folder_of("sink", join.fragment_id) / "history").read_text().split("\n")
        started = [int(line.split()[1]) for line in history if line.startswith("start")]
        assert started[0] == owner.generation, "it went on from what hub had shipped"
        assert started == sorted(set(started))


async def offers(cluster: Cluster, fragment_id: str) -> bool:
    return fragment_id in await streams(cluster)


# Not every keeper hears of everything at once, and any of them may be asked.


async def is_read_by(cluster: Cluster, query_id: str, reader: str) -> bool:
    return {each.query_id for each in (await explained(cluster, query_id)).readers} == {reader}


async def reads_from(cluster: Cluster, query_id: str, node: str) -> bool:
    return [each.node for each in (await explained(cluster, query_id)).reused] == [node]


async def reads_through(cluster: Cluster, query_id: str, node: str | None) -> bool:
    return [each.through for each in (await explained(cluster, query_id)).reused] == [node]


async def connected(cluster: Cluster, reader: str, fragment_id: str, node: str) -> bool:
    return any(
        event.kind == "link-connected" and event.fields["producer"] == fragment_id and event.fields["node"] == node
        for event in cluster.daemons[reader].events.history()
    )


async def test_who_has_nothing_to_read_any_more_fails_and_says_why(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, STAY, FailoverConfig(replicas=0, lease_s=2.0)) as cluster:
        first, join = await submit_first(cluster)
        second = await cluster.submit(SECOND)
        # The join's host finds that it cannot go on: so neither can the other query, and it says why.
        cluster.steer(join.node, fail="join")

        async def has_failed() -> bool:  # not every keeper hears of it at once
            return (await cluster.query(first)).state == "failed"

        async def says_why() -> bool:
            error = (await cluster.query(second)).error
            return error is not None and f"{join.fragment_id}, which it reads, is gone" in error

        await eventually(has_failed)
        await eventually(says_why)

        async def nothing_is_left() -> bool:
            return not any(cluster.folders().values())

        await eventually(nothing_is_left)


async def test_who_reads_follows_when_the_keepers_of_what_it_reads_are_replaced(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        first, join = await submit_first(cluster)
        second = await cluster.submit(SECOND)
        at_sink = cluster.daemons["sink"].query_service
        record = at_sink._keeping.find(first)
        assert record is not None
        await at_sink._fellows._replace(record, record.keepers[:2])  # and a third one comes again, sooner or later

        async def is_known() -> bool:
            at_sink._subscriptions._look_soon()
            read, reader = at_sink._keeping.find(first), at_sink._keeping.find(second)
            assert read is not None
            assert reader is not None
            known = reader.reused[join.fragment_id]
            return known.keeper_changes > 0 and (known.keepers, known.keeper_changes) == (
                read.keepers,
                read.keeper_changes,
            )

        await eventually(is_known)
        assert await reads_from(cluster, second, join.node)
        assert {(await cluster.query(each)).state for each in (first, second)} == {"running"}
