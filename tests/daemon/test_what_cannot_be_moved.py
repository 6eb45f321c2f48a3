"""Receivers that cannot take a fragment, and state that is damaged: a clear error, the fragment safe where it was."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import trio

from daemon.config import FailoverConfig
from daemon.control.messages import Status
from daemon.events import Event
from daemon.peering import room
from daemon.peering.move_messages import AcceptFragment
from sbon.errors import SbonError
from tests.daemon.test_failover import begin_on_hub, count_of, kept, replicated, runs_at
from tests.daemon.test_queries import Cluster, eventually, running_cluster

FAILOVER = FailoverConfig(replicas=1, lease_s=3.0)
HERE = metadata.version("pyspark")


def of_kind(cluster: Cluster, name: str, kind: str) -> list[Event]:
    return [event for event in cluster.daemons[name].events.history() if event.kind == kind]


async def kill_engine(cluster: Cluster, name: str) -> None:
    async with cluster.client(name) as client:
        engine = (await client.request(Status())).engine
    os.kill(int(engine.rpartition(" ")[2]), signal.SIGKILL)


async def refusal(cluster: Cluster, fragment: str) -> str:
    """Of a move from hub to sink. The fragment has stayed, and runs under its first generation."""
    said = "still starting"
    while "still starting" in said:  # after the refusal before
        await trio.sleep(0.3)
        with pytest.raises(SbonError) as raised:
            await cluster.migrate(fragment, "sink")
        said = str(raised.value)
    assert "stays where it is" in said
    await eventually(cluster.all_running)
    union = await cluster.union()
    assert (union.node, union.generation) == ("hub", 1)
    return said


async def test_what_a_receiver_cannot_take_stays_where_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No room; another Spark; a file that is not what was announced."""
    async with running_cluster(tmp_path) as cluster:
        cluster.steer("sink", spark="4.2-fake")
        fragment = (await begin_on_hub(cluster)).fragment_id
        history = cluster.folder_of("hub", fragment) / "history"

        with monkeypatch.context() as full:
            full.setattr(room, "free_bytes", lambda folder: 1_000_000)
            said = await refusal(cluster, fragment)
        assert f"sink has no room for the state of {fragment}" in said
        assert "has 1.0 MB left on the disk of" in said
        said = await refusal(cluster, fragment)
        assert f"sink has Spark 4.2-fake, and the state of {fragment} is of Spark {HERE}: install the same" in said
        # Neither has copied anything, nor stopped it.
        assert cluster.events("hub")["move-copy"] == 0
        assert len(history.read_text().split("\n")) == 2

        cluster.steer("sink")
        await kill_engine(cluster, "sink")
        await eventually(cluster.all_running)
        send_folder = cluster.daemons["hub"].requests.send_folder

        async def damage(node: Any, message: Any, folder: Path, *arguments: Any, **options: Any) -> Any:
            if isinstance(message, AcceptFragment):
                (folder / "count").unlink()  # the fragment's own, by a hard link
                (folder / "count").write_text("1000000")
            return await send_folder(node, message, folder, *arguments, **options)

        monkeypatch.setattr(cluster.daemons["hub"].requests, "send_folder", damage)
        assert f"count of {fragment} is not what was announced" in await refusal(cluster, fragment)
        assert count_of(cluster.folder_of("hub", fragment)) < 1_000_000


async def test_state_that_is_damaged_is_put_aside_and_the_replica_goes_on(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        before = await begin_on_hub(cluster)
        fragment = before.fragment_id
        await replicated(cluster, "hub")
        cluster.steer("hub", damaged="union")
        await kill_engine(cluster, "hub")
        await runs_at(cluster, "sink")
        [event] = of_kind(cluster, "hub", "fragment-damaged")
        assert event.fields["error"] == "count is damaged on this host's disk"
        assert count_of(Path(str(event.fields["kept"]))) > 0
        assert cluster.folders()["hub"] == []
        assert (await cluster.union()).generation > before.generation
        assert (await cluster.query(fragment.partition("-")[0])).state == "running"


async def test_without_a_replica_damaged_state_fails_the_query(tmp_path: Path) -> None:
    async with running_cluster(tmp_path) as cluster:
        query_id = (await begin_on_hub(cluster)).fragment_id.partition("-")[0]
        cluster.steer("hub", damaged="union")
        await kill_engine(cluster, "hub")

        async def failed() -> bool:
            return (await cluster.query(query_id)).state == "failed"

        await eventually(failed)
        error = (await cluster.query(query_id)).error or ""
        assert "on hub failed: count is damaged on this host's disk, and there is no replica of it" in error


async def test_a_replica_that_is_damaged_does_not_take_over(tmp_path: Path) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        before = await begin_on_hub(cluster)
        fragment = before.fragment_id
        await replicated(cluster, "hub")
        await cluster.stop("hub")

        async def is_found() -> bool:
            with suppress(FileNotFoundError):  # what was sent last may take its predecessor's place even now
                folder, record = kept(cluster, "sink", fragment)
                (folder / "files" / record.files["count"]).write_text("1000000")
            return bool(of_kind(cluster, "sink", "replica-damaged"))

        await eventually(is_found)
        [event] = of_kind(cluster, "sink", "replica-damaged")
        assert "count is damaged on this host's disk: its digest is another one" in str(event.fields["error"])
        await cluster.start("hub")
        await eventually(cluster.all_running)
        union = await cluster.union()
        assert (union.node, union.generation) == ("hub", before.generation)
        assert count_of(cluster.folder_of("hub", fragment)) < 1_000_000

        async def was_sent_anew() -> bool:
            with suppress(FileNotFoundError):
                return bool(kept(cluster, "sink", fragment))
            return False

        await eventually(was_sent_anew)
