from __future__ import annotations

import math

import msgspec
import pytest
import trio
import trio.testing

from daemon.peering import requests
from daemon.peering.envelopes import REQUEST_VERSION, RequestEnvelope
from daemon.peering.requests import PeerRequests
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate, origin
from sbon.errors import QueryError, SbonError, StaleGenerationError, UnavailableError
from sbon.frames import MAX_FRAME_BYTES
from sbon.placement.questions import KnownPath
from tests.daemon.request_peers import (
    CLIENT,
    CLIENT_ID,
    DIMENSIONS,
    SERVER_ID,
    Answer,
    Question,
    echo,
    open_tls,
    packed,
    raw_exchange,
    serving,
)


class Places(msgspec.Struct, frozen=True):
    records: tuple[NodeRecord, ...] = ()
    by_name: dict[str, Coordinate | None] = {}
    paths: list[KnownPath] = []


async def test_a_request_is_answered(client: PeerRequests, server: PeerRequests) -> None:
    server.handle(Question, echo)
    async with serving(server) as address:
        assert await client.request(address, Question("hello"), Answer) == Answer(f"hello from {CLIENT_ID}")
    assert server.counters["served"] == 1


@pytest.mark.parametrize("kind", [SbonError, QueryError, StaleGenerationError, UnavailableError])
async def test_an_error_of_the_peer_comes_back_as_the_same_class(
    client: PeerRequests, server: PeerRequests, kind: type[SbonError]
) -> None:
    async def refuse(message: Question, sender: str) -> Answer:
        raise kind("no such thing: ask for another")

    server.handle(Question, refuse)
    async with serving(server) as address:
        with pytest.raises(SbonError, match="no such thing: ask for another") as caught:
            await client.request(address, Question(""), Answer)
    assert type(caught.value) is kind


async def test_a_bug_in_a_handler_is_told_and_does_not_stop_the_server(
    client: PeerRequests, server: PeerRequests
) -> None:
    async def broken(message: Question, sender: str) -> Answer:
        raise KeyError(message.text)

    server.handle(Question, broken)
    async with serving(server) as address:
        for _ in range(2):
            with pytest.raises(SbonError, match="see that node's log"):
                await client.request(address, Question(""), Answer)


async def test_a_node_that_is_not_there_is_unavailable(client: PeerRequests, server: PeerRequests) -> None:
    async with serving(server) as address:
        pass
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await client.request(address, Question(""), Answer)


async def test_a_node_that_does_not_answer_in_time_is_unavailable(client: PeerRequests, server: PeerRequests) -> None:
    async def never(message: Question, sender: str) -> Answer:
        await trio.sleep_forever()
        raise AssertionError

    server.handle(Question, never)
    async with serving(server) as address:
        with pytest.raises(UnavailableError, match=r"within 0\.05 s"):
            await client.request(address, Question(""), Answer, timeout_s=0.05)


async def test_an_unknown_kind_of_request_is_refused(client: PeerRequests, server: PeerRequests) -> None:
    async with serving(server) as address:
        with pytest.raises(SbonError, match="does not know 'Question'"):
            await client.request(address, Question(""), Answer)


async def test_a_request_for_another_node_is_not_carried_out(client: PeerRequests, server: PeerRequests) -> None:
    server.handle(Question, echo)
    async with serving(server) as address:
        envelope = RequestEnvelope(REQUEST_VERSION, CLIENT_ID, 1, "0" * 31 + "3", "Question", packed(Question("")))
        reply = await raw_exchange(address, msgspec.msgpack.encode(envelope))
    assert reply is not None
    assert reply.error_kind == "UnavailableError"
    assert server.counters["served"] == 0


async def test_another_version_is_reported(server: PeerRequests) -> None:
    server.handle(Question, echo)
    async with serving(server) as address:
        envelope = RequestEnvelope(99, CLIENT_ID, 1, "", "Question", packed(Question("")))
        reply = await raw_exchange(address, msgspec.msgpack.encode(envelope))
    assert reply is not None
    assert "not 99" in reply.error


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        msgspec.msgpack.encode({"version": 1}),
        msgspec.msgpack.encode([1, "me", 1, "", "Question", {"text": ""}]),
        msgspec.msgpack.encode([REQUEST_VERSION, CLIENT_ID, 1, "", "Question", {"text": 3}]),
        b"\x91" * 100_000,
    ],
)
async def test_malformed_requests_are_dropped_and_counted(
    client: PeerRequests, server: PeerRequests, body: bytes
) -> None:
    server.handle(Question, echo)
    async with serving(server) as address:
        assert await raw_exchange(address, body) is None
        assert server.counters["dropped.malformed"] == 1
        assert (await client.request(address, Question("still here"), Answer)).text.startswith("still here")


FINE = NodeRecord(SERVER_ID, "n", "127.0.0.1", 1, 1, origin(DIMENSIONS))
BAD_PLACES = [
    Places(records=(FINE, msgspec.structs.replace(FINE, coordinate=origin(DIMENSIONS + 1)))),
    Places(records=(msgspec.structs.replace(FINE, coordinate=Coordinate((math.nan, 0.0), 0.0, 0.1)),)),
    Places(records=(msgspec.structs.replace(FINE, port=0),)),
    Places(by_name={"a": None, "b": origin(DIMENSIONS - 1)}),
    Places(paths=[KnownPath("a", origin(DIMENSIONS + 1), 1.0)]),
    Places(paths=[KnownPath("a", origin(DIMENSIONS), math.nan)]),
]


async def tell(message: Places, sender: str) -> Places:
    return message


async def test_places_that_can_be_are_taken(client: PeerRequests, server: PeerRequests) -> None:
    server.handle(Places, tell)
    place = origin(DIMENSIONS)
    message = Places((FINE, FINE), {"a": None, "b": place}, [KnownPath("a", place, 1.0)])
    async with serving(server) as address:
        assert await client.request(address, message, Places) == message


@pytest.mark.parametrize("message", BAD_PLACES)
async def test_a_request_with_a_place_that_cannot_be_is_dropped(
    client: PeerRequests, server: PeerRequests, message: Places
) -> None:
    async def never(message: Places, sender: str) -> Places:
        raise AssertionError("handed over")

    server.handle(Places, never)
    async with serving(server) as address:
        with pytest.raises(UnavailableError, match="without an answer"):
            await client.request(address, message, Places)
    assert server.counters["dropped.malformed"] == 1


@pytest.mark.parametrize("message", BAD_PLACES)
async def test_a_reply_with_a_place_that_cannot_be_is_none(
    client: PeerRequests, server: PeerRequests, message: Places
) -> None:
    async def answer(question: Question, sender: str) -> Places:
        return message

    server.handle(Question, answer)
    async with serving(server) as address:
        with pytest.raises(UnavailableError, match="answered what is not understood"):
            await client.request(address, Question(""), Places)


async def test_whatever_fails_on_a_connection_does_not_stop_the_server(
    client: PeerRequests, server: PeerRequests
) -> None:
    async def answer(message: Question, sender: str) -> Answer:
        return Answer("x" * (MAX_FRAME_BYTES if message.text == "too much" else 1))

    server.handle(Question, answer)
    async with serving(server) as address:
        with pytest.raises(UnavailableError):
            await client.request(address, Question("too much"), Answer)
        assert server.counters["dropped.failed"] == 1
        assert await client.request(address, Question(""), Answer) == Answer("x")


@pytest.mark.parametrize("host", ["x" * 100, "a..b"])
async def test_a_host_that_cannot_be_called_that_is_not_reached(client: PeerRequests, host: str) -> None:
    """Hosts are what others say."""
    with pytest.raises(UnavailableError, match="cannot be reached"):
        await client.request((host, 1), Question(""), Answer)
    with pytest.raises(OSError, match="label"):
        await client.connect_ms(msgspec.structs.replace(FINE, host=host))


async def test_a_frame_that_is_too_long_is_dropped(server: PeerRequests) -> None:
    async with serving(server) as address, await trio.open_tcp_stream(*address) as plain:
        stream, _ = await open_tls(CLIENT).connect(plain, SERVER_ID)
        await stream.send_all(b"\xff\xff\xff\xff")
        assert await stream.receive_some() == b""
        assert server.counters["dropped.malformed"] == 1


async def test_silent_clients_are_dropped(server: PeerRequests, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requests, "FRAME_TIMEOUT_S", 0.02)
    async with serving(server) as address, await trio.open_tcp_stream(*address) as plain:
        stream, _ = await open_tls(CLIENT).connect(plain, SERVER_ID)
        await stream.send_all(b"\0\0")
        assert await stream.receive_some() == b""
        assert server.counters["dropped.slow"] == 1


async def test_clients_that_do_not_shake_hands_are_dropped(
    server: PeerRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "HANDSHAKE_TIMEOUT_S", 0.02)
    async with serving(server) as address, await trio.open_tcp_stream(*address) as stream:
        assert await stream.receive_some() == b""
        assert server.counters["dropped.slow"] == 1


async def test_connections_are_bounded(
    client: PeerRequests, server: PeerRequests, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(requests, "MAX_CONNECTIONS", 1)
    server.handle(Question, echo)
    async with serving(server) as address:
        async with await trio.open_tcp_stream(*address) as held:
            await held.send_all(b"\0")
            with pytest.raises(UnavailableError):
                await client.request(address, Question(""), Answer)
        assert server.counters["dropped.too_many"] == 1
