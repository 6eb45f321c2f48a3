"""Disks that refuse, under whole daemons with engines of the fake kind: nobody ends, and all goes on afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from daemon import process
from daemon.control.client import ControlClient
from daemon.control.messages import Join
from daemon.fragments.hosted_fragment import RECORD_FILE, FragmentStore, HostingRecord
from daemon.fragments.state_copies import StateCopies
from sbon.errors import UnavailableError
from tests.daemon.full_disk import full_disk
from tests.daemon.real_daemons import make_config, running, until
from tests.daemon.test_failover import FAILOVER, begin_on_hub, replicated, runs_at
from tests.daemon.test_queries import running_cluster
from tests.daemon.test_what_cannot_be_moved import kill_engine, of_kind, refusal


@contextmanager
def no_room_for_fragments(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Inside the block no host can write down what becomes of a fragment."""
    write = FragmentStore.write

    def refused(self: FragmentStore, *arguments: Any) -> None:
        with full_disk(monkeypatch):
            write(self, *arguments)

    with monkeypatch.context() as full:
        full.setattr(FragmentStore, "write", refused)
        yield


async def test_a_fragment_waits_until_it_can_be_written_down_that_it_is_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        fragment_id = (await begin_on_hub(cluster)).fragment_id
        await cluster.stop("hub")
        file = cluster.folder_of("hub", fragment_id) / RECORD_FILE
        record = msgspec.msgpack.decode(file.read_bytes(), type=HostingRecord)
        accepted = HostingRecord(record.owner, record.assignment)  # as if it had just come
        file.write_bytes(msgspec.msgpack.encode(accepted))
        with no_room_for_fragments(monkeypatch):
            await cluster.start("hub")
            await trio.sleep(2.0)
            assert cluster.events("hub")["fragment-started"] == 0
        await until(lambda: cluster.events("hub")["fragment-started"] == 1)


async def test_a_fragment_stays_if_its_host_cannot_stop_or_send_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path) as cluster:
        fragment_id = (await begin_on_hub(cluster)).fragment_id
        with no_room_for_fragments(monkeypatch), pytest.raises(UnavailableError):
            await cluster.migrate(fragment_id, "sink")
        assert "hosting.msgpack cannot be used" in str(of_kind(cluster, "hub", "move-failed")[0].fields["error"])

        async def refuse(*_: Any) -> int:
            raise OSError("Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(StateCopies, "hand_over", refuse)
            assert "cannot be sent (Input/output error): see its disk" in await refusal(cluster, fragment_id)


async def test_what_is_damaged_and_cannot_be_put_aside_still_goes_on_at_its_replica(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_cluster(tmp_path, failover=FAILOVER) as cluster:
        await begin_on_hub(cluster)
        await replicated(cluster, "hub")
        (cluster.configs["hub"].node.state_dir / "damaged").touch()  # no folder can be made there
        cluster.steer("hub", damaged="union")
        await kill_engine(cluster, "hub")
        await runs_at(cluster, "sink")
        [event] = of_kind(cluster, "hub", "fragment-damaged")
        assert Path(str(event.fields["kept"])).parent.name == "fragments"


async def test_hints_for_the_next_start_are_written_down_once_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "DISK_PERIOD_S", 0.1)
    monkeypatch.setattr(process, "KEEP_PLACE_PERIOD_S", 0.1)
    a, b = (make_config(tmp_path, name) for name in "ab")
    members, place = tmp_path / "b" / "members.json", tmp_path / "b" / "place.json"
    async with running(a, b) as daemons:
        with full_disk(monkeypatch):
            async with ControlClient.open(b.node.socket) as client:
                await client.request(Join(a.node.listen))
            await until(lambda: all(daemon.overlay.settled_coordinate is not None for daemon in daemons))
            await trio.sleep(1.0)
            assert not members.exists()
            assert not place.exists()
        await until(lambda: members.exists() and place.exists())
