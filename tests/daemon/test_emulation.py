from __future__ import annotations

import socket
from pathlib import Path

import msgspec
import trio
import trio.testing

from daemon.peering.emulation import MAX_HELD, DelayLine, Emulation
from daemon.peering.requests import PeerRequests
from overlay.records import Address, NodeRecord
from sbon.coordinate import origin
from tests.daemon.request_peers import CLIENT, CLIENT_ID, SERVER, SERVER_ID, Answer, Question, echo, open_tls, serving

BERLIN = NodeRecord("0" * 32, "berlin", "127.0.0.1", 7001, 1, origin())


def test_peers_are_known_by_name_or_by_address() -> None:
    assert Emulation({"berlin": 90.0}, lambda: [BERLIN]).one_way_s_to_address(BERLIN.address) == 0.045
    assert Emulation({"127.0.0.1:7001": 90.0}, list).one_way_s_to_address(BERLIN.address) == 0.045
    assert Emulation({"berlin": 90.0}, lambda: [BERLIN]).one_way_s_to_node(BERLIN.node_id) == 0.045


def test_others_are_not_delayed() -> None:
    emulation = Emulation({"paris": 90.0}, lambda: [BERLIN])
    assert emulation.one_way_s_to_address(BERLIN.address) == 0.0
    assert emulation.one_way_s_to_address(("127.0.0.1", 1)) == 0.0
    assert emulation.one_way_s_to_node("1" * 32) == 0.0


def test_a_change_counts_whatever_the_peer_was_called_before() -> None:
    emulation = Emulation({"127.0.0.1:7001": 90.0}, lambda: [BERLIN])
    emulation.set_rtt_ms(BERLIN, 240.0)
    assert emulation.one_way_s_to_address(BERLIN.address) == 0.12


async def test_datagrams_leave_in_the_order_of_their_times(autojump_clock: trio.testing.MockClock) -> None:
    sent: list[tuple[bytes, float]] = []
    start = trio.current_time()
    line = DelayLine(lambda data, address: sent.append((data, trio.current_time() - start)))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(line.run)
        line.put(b"slow", BERLIN.address, 0.3)
        await trio.sleep(0.1)
        line.put(b"fast", BERLIN.address, 0.1)
        line.put(b"middle", BERLIN.address, 0.15)
        await trio.sleep(1.0)
        nursery.cancel_scope.cancel()
    assert [data for data, _ in sent] == [b"fast", b"middle", b"slow"]
    assert [round(at, 6) for _, at in sent] == [0.2, 0.25, 0.3]


async def test_what_is_held_is_bounded() -> None:
    line = DelayLine(lambda data, address: None)
    assert all(line.put(b"", BERLIN.address, 1.0) for _ in range(MAX_HELD))
    assert not line.put(b"", BERLIN.address, 1.0)


async def test_a_request_and_its_reply_are_each_held_back(tmp_path: Path) -> None:
    def record(node_id: str, address: Address) -> NodeRecord:
        return msgspec.structs.replace(BERLIN, node_id=node_id, name=node_id, host=address[0], port=address[1])

    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        client_record = record(CLIENT_ID, unused.getsockname())
        server = PeerRequests(
            open_tls(SERVER), 1, tmp_path / "s", 2, Emulation({CLIENT_ID: 100.0}, lambda: [client_record])
        )
        server.handle(Question, echo)
        async with serving(server) as address:
            server_record = record(SERVER_ID, address)
            emulation = Emulation({SERVER_ID: 100.0}, lambda: [server_record])
            client = PeerRequests(open_tls(CLIENT), 1, tmp_path / "c", 2, emulation)
            start = trio.current_time()
            await client.request(server_record, Question("hello"), Answer)
            assert trio.current_time() - start >= 0.1
