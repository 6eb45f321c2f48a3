from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config import Config
from daemon.control.client import ControlClient
from daemon.control.messages import Emulate, Join, Latency, Leave, Nearest, Nodes, Status, StatusReply
from daemon.process import Daemon
from sbon.coordinate import MAX_ERROR
from sbon.errors import SbonError, UnavailableError
from tests.daemon.real_daemons import PATIENCE_S, free_port, make_config, running, until


async def join(config: Config, other: Config) -> None:
    async with ControlClient.open(config.node.socket) as client:
        await client.request(Join(other.node.listen))


async def status(config: Config) -> StatusReply:
    async with ControlClient.open(config.node.socket) as client:
        return await client.request(Status())


async def all_see_all(daemons: list[Daemon]) -> None:
    await until(lambda: all(len(daemon.overlay.members()) == len(daemons) - 1 for daemon in daemons))


async def test_three_daemons_form_an_overlay_and_measure_it(tmp_path: Path) -> None:
    a, b, c = (make_config(tmp_path, name) for name in "abc")
    async with running(a, b, c) as daemons:
        await join(b, a)
        await join(c, a)
        await all_see_all(daemons)
        first = daemons[0]
        others = [daemon.record.node_id for daemon in daemons[1:]]
        await until(lambda: all(first.overlay.measured_rtt_ms(node_id) is not None for node_id in others))
        await until(lambda: all(record.coordinate.error < MAX_ERROR for record in first.overlay.members()))
        reply = await status(a)
        assert (reply.name, reply.address, reply.peers, reply.load) == ("a", a.node.listen, ("b", "c"), 0.0)
        assert len(reply.coordinate.vector_ms) == a.overlay.dimensions
        assert reply.counters["datagrams.received.pong"] > 0
        async with ControlClient.open(a.node.socket) as client:
            assert [node.name for node in (await client.request(Nodes())).nodes] == ["a", "b", "c"]
            measured = await client.request(Latency("a", "b"))
            assert measured.measured_rtt_ms is not None
            assert measured.samples > 0
            nearest = await client.request(Nearest(k=1, node="b"))
            assert [node.name for node in nearest.nodes] in (["a"], ["c"])
            assert 1 <= nearest.contacts <= 2


async def test_the_path_between_two_others_is_known_from_its_ends(tmp_path: Path) -> None:
    a, b, c = (make_config(tmp_path, name) for name in "abc")
    async with running(a, b, c) as daemons:
        await join(b, a)
        await join(c, a)
        await all_see_all(daemons)
        await until(lambda: daemons[1].overlay.measured_rtt_ms(daemons[2].record.node_id) is not None)
        async with ControlClient.open(a.node.socket) as client:
            assert (await client.request(Latency("b", "c"))).measured_rtt_ms is not None


async def test_leave_is_seen_and_remembered(tmp_path: Path) -> None:
    daemons_file = tmp_path / "b" / "members.json"
    a, b = (make_config(tmp_path, name) for name in "ab")
    async with running(a, b) as (first, second):
        await join(b, a)
        await all_see_all([first, second])
        await until(daemons_file.exists)
        async with ControlClient.open(b.node.socket) as client:
            await client.request(Leave())
        await until(lambda: not first.overlay.members())
        assert (await status(b)).peers == ()
        await until(lambda: daemons_file.exists() and daemons_file.read_text() == "[]")


async def test_a_restarted_daemon_is_the_same_node_and_finds_the_others_again(tmp_path: Path) -> None:
    a, b = (make_config(tmp_path, name) for name in "ab")
    async with running(a) as (first,):
        async with running(b) as (second,):
            await join(b, a)
            await all_see_all([first, second])
            await until(lambda: (tmp_path / "b" / "members.json").exists())
            before = second.record
        async with running(b) as (again,):
            await until(lambda: [record.name for record in again.overlay.members()] == ["a"])
            assert again.record.node_id == before.node_id
            assert again.record.boot_id > before.boot_id
            await until(lambda: [record.boot_id for record in first.overlay.members()] == [again.record.boot_id])


async def test_a_peer_that_is_not_there(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    async with running(a), ControlClient.open(a.node.socket) as client:
        with pytest.raises(UnavailableError, match="is a node listening there"):
            await client.request(Join(f"127.0.0.1:{free_port()}"))
        with pytest.raises(SbonError, match="own address"):
            await client.request(Join(a.node.listen))
        with pytest.raises(SbonError, match="write HOST:PORT"):
            await client.request(Join("nowhere"))
        with pytest.raises(SbonError, match=r"cannot find nowhere\.invalid"):
            await client.request(Join("nowhere.invalid:7400"))
        assert (await client.request(Status())).peers == ()


async def test_unknown_nodes_are_named(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a", rtt_ms={})
    async with running(a), ControlClient.open(a.node.socket) as client:
        with pytest.raises(SbonError, match='no node "atlantis" is known'):
            await client.request(Latency("a", "atlantis"))
        with pytest.raises(SbonError, match="at least 1"):
            await client.request(Nearest(k=0))
        with pytest.raises(SbonError, match="name two nodes"):
            await client.request(Emulate("a", "a", 10.0))


# --- what is in use already


async def test_a_port_in_use(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    b = make_config(tmp_path, "b", port=a.node.listen_address[1])
    async with running(a):
        with pytest.raises(SbonError, match="is in use: stop the process that listens there"):
            Daemon(b)
        assert (await status(a)).name == "a"


async def test_a_tcp_port_in_use(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    listeners = await trio.open_tcp_listeners(a.node.listen_address[1], host="127.0.0.1")
    with pytest.RaisesGroup(pytest.RaisesExc(SbonError, match="TCP .* is in use"), flatten_subgroups=True):
        async with running(a):
            pass
    for listener in listeners:
        await listener.aclose()


async def test_a_state_directory_in_use(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    async with running(a):
        other = make_config(tmp_path, "a")
        with pytest.raises(SbonError, match="another daemon uses the state directory"):
            Daemon(other)


async def test_a_control_socket_in_use(tmp_path: Path) -> None:
    a, b = make_config(tmp_path, "a"), make_config(tmp_path, "b")
    b = msgspec.structs.replace(b, node=msgspec.structs.replace(b.node, socket=a.node.socket))
    async with running(a):
        with pytest.RaisesGroup(pytest.RaisesExc(SbonError, match="another daemon answers"), flatten_subgroups=True):
            async with running(b):
                pass
        assert (await status(a)).name == "a"


def test_an_address_of_another_host(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    elsewhere = msgspec.structs.replace(a, node=msgspec.structs.replace(a.node, listen="192.0.2.1:7400"))

    async def start() -> None:
        Daemon(elsewhere)

    with pytest.raises(SbonError, match=r"set node\.listen to an address of this host"):
        trio.run(start)


def test_a_damaged_key_is_not_overwritten(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    a.node.state_dir.mkdir()
    key = a.node.state_dir / "identity.key"
    key.write_bytes(b"damaged")

    async def start() -> None:
        Daemon(a)

    with pytest.raises(SbonError, match="is not a key"):
        trio.run(start)
    assert key.read_bytes() == b"damaged"


# --- emulated round trips


async def test_emulated_round_trips_are_measured(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a", rtt_ms={"b": 60.0})
    b = make_config(tmp_path, "b", rtt_ms={"a": 60.0})
    async with running(a, b) as (first, second):
        await join(b, a)
        await until(lambda: first.overlay.measured_rtt_ms(second.record.node_id) is not None)
        measured = first.overlay.measured_rtt_ms(second.record.node_id)
        assert measured is not None
        assert measured >= 60.0


async def test_a_change_holds_at_both_ends_and_is_noticed(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a", rtt_ms={"b": 10.0})
    b = make_config(tmp_path, "b", rtt_ms={"a": 10.0})
    c = make_config(tmp_path, "c", rtt_ms={})
    async with running(a, b, c) as (first, second, third):
        await join(b, a)
        await join(c, a)
        await all_see_all([first, second, third])
        path = (first.record.node_id, second.record.node_id)
        await until(lambda: first.overlay.latency(*path).samples >= 5)
        async with ControlClient.open(c.node.socket) as client:
            await client.request(Emulate("a", "b", 200.0))
        with trio.fail_after(PATIENCE_S):
            async for event in first.events.follow(from_start=True):
                if event.kind == "path-changed" and event.fields["after_ms"] >= 200.0:
                    break
        assert (second.overlay.measured_rtt_ms(first.record.node_id) or 0.0) > 0.0


async def test_emulation_is_refused_where_it_is_not_configured(tmp_path: Path) -> None:
    a, b = make_config(tmp_path, "a", rtt_ms={}), make_config(tmp_path, "b")
    async with running(a, b) as daemons:
        await join(b, a)
        await all_see_all(daemons)
        for config in (a, b):
            async with ControlClient.open(config.node.socket) as client:
                with pytest.raises(SbonError, match="b does not emulate round trips"):
                    await client.request(Emulate("a", "b", 100.0))


async def test_malformed_datagrams_are_counted_and_dropped(tmp_path: Path) -> None:
    a = make_config(tmp_path, "a")
    async with running(a) as (daemon,):
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as stranger:
            for data in (b"", b"\xc1", b"x" * 5000):
                await stranger.sendto(data, a.node.listen_address)
        counters = daemon.overlay.counters
        await until(lambda: counters["dropped.malformed"] + counters["dropped.unknown"] == 3)
        assert (await status(a)).counters["datagrams.dropped.malformed"] > 0


async def test_the_load_of_the_host_is_advertised(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getloadavg", lambda: (3.0, 0.0, 0.0))
    monkeypatch.setattr("os.cpu_count", lambda: 2)
    a = make_config(tmp_path, "a")
    a = msgspec.structs.replace(a, node=msgspec.structs.replace(a.node, load="host"))
    async with running(a) as (daemon,):
        await until(lambda: daemon.overlay.record.load == 1.5)
