"""Connections that carry one request after another."""

from __future__ import annotations

from pathlib import Path

import pytest
import trio
import trio.testing

from daemon.peering import connections, requests
from daemon.peering.folder_transfer import ReceivedFolder
from daemon.peering.requests import PeerRequests
from overlay.identity import Identity
from sbon.errors import SbonError
from tests.daemon.request_peers import (
    DIMENSIONS,
    SERVER,
    Answer,
    Question,
    content,
    echo,
    make_folder,
    open_tls,
    serving,
)


async def test_a_connection_carries_one_request_after_another(client: PeerRequests, server: PeerRequests) -> None:
    server.handle(Question, echo)
    async with serving(server) as address, serving(client):
        for number in range(5):
            assert (await client.request(address, Question(str(number)), Answer)).text.startswith(str(number))
        assert (server._connections, len(client._kept)) == (1, 1)


async def test_an_error_that_is_answered_ends_no_connection(client: PeerRequests, server: PeerRequests) -> None:
    async with serving(server) as address, serving(client):
        for _ in range(3):
            with pytest.raises(SbonError, match="does not know"):
                await client.request(address, Question(""), Answer)
        assert server._connections == 1


async def test_requests_at_once_have_connections_of_their_own(client: PeerRequests, server: PeerRequests) -> None:
    release = trio.Event()

    async def wait(message: Question, sender: str) -> Answer:
        if message.text == "slow":
            await release.wait()
        return Answer(message.text)

    server.handle(Question, wait)
    async with serving(server) as address, serving(client), trio.open_nursery() as nursery:
        for _ in range(connections.MAX_KEPT_EACH + 2):
            nursery.start_soon(client.request, address, Question("slow"), Answer)
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert await client.request(address, Question("fast"), Answer) == Answer("fast")
        release.set()
        await trio.testing.wait_all_tasks_blocked(0.1)
        assert len(client._kept) == connections.MAX_KEPT_EACH


async def test_a_node_that_was_started_anew_is_asked_at_once(
    client: PeerRequests, server: PeerRequests, tmp_path: Path
) -> None:
    """Its end of the connection has gone with it: nobody is to see an error for that."""
    server.handle(Question, echo)
    again = PeerRequests(open_tls(SERVER), 2, tmp_path / "again", DIMENSIONS)
    again.handle(Question, echo)
    async with serving(client):
        async with serving(server) as address:
            await client.request(address, Question(""), Answer)
        async with serving(again, address[1]):
            assert len(client._kept) == 1
            await client.request(address, Question(""), Answer)
    assert (server.counters["served"], again.counters["served"]) == (1, 1)


async def test_who_needs_room_ends_a_connection_that_is_silent_and_says_so(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_CONNECTIONS", 1)
    other = PeerRequests(open_tls(Identity.from_private_bytes(b"o" * 32)), 1, tmp_path / "other", DIMENSIONS)
    server.handle(Question, echo)
    async with serving(server) as address, serving(client), serving(other):
        for _ in range(2):
            await client.request(address, Question(""), Answer)
            await other.request(address, Question(""), Answer)
    assert server.counters["served"] == 4
    assert server.counters["dropped.too_many"] == 0


async def test_a_request_that_was_not_taken_is_asked_again(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server ends the connection while the request is on its way: it has not carried it out, and says so."""
    monkeypatch.setattr(requests, "MAX_CONNECTIONS", 1)
    monkeypatch.setattr(connections.Connection, "is_silent", lambda connection: True)
    other = PeerRequests(open_tls(Identity.from_private_bytes(b"o" * 32)), 1, tmp_path / "other", DIMENSIONS)
    received: list[str] = []

    async def keep(message: Answer, sender: str, folder: ReceivedFolder) -> Answer:
        received.append(message.text)
        assert content(folder.path)
        return Answer("")

    server.handle(Question, echo)
    server.handle_folder(Answer, keep)
    folder = make_folder(tmp_path / "fragment")
    async with serving(server) as address, serving(client), serving(other):
        await client.send_folder(address, Answer("first"), folder, Answer)
        await other.request(address, Question(""), Answer)
        await client.send_folder(address, Answer("second"), folder, Answer)
    assert received == ["first", "second"]
    assert client.counters["asked_again"] == 1


async def test_connections_that_nobody_uses_are_closed(
    client: PeerRequests, server: PeerRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "KEPT_S", 0.05)
    server.handle(Question, echo)
    async with serving(server) as address, serving(client):
        await client.request(address, Question(""), Answer)
        with trio.fail_after(5.0):
            while server._connections or len(client._kept):
                await trio.sleep(0.01)


async def test_a_member_that_asks_nothing_more_is_not_waited_for(
    client: PeerRequests, server: PeerRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "IDLE_TIMEOUT_S", 0.05)
    monkeypatch.setattr(requests, "LINGER_S", 0.05)
    server.handle(Question, echo)
    async with serving(server) as address, serving(client):
        await client.request(address, Question(""), Answer)
        with trio.fail_after(5.0):
            while server._connections:
                await trio.sleep(0.01)
        await client.request(address, Question(""), Answer)
