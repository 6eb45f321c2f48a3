from __future__ import annotations

import errno
import math
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import trio
import trio.testing

from daemon.peering import connections, requests, room
from daemon.peering.envelopes import REQUEST_VERSION, FolderHeader, ReplyEnvelope, RequestEnvelope
from daemon.peering.folder_transfer import ReceivedFolder, chunks_of, new_digest, sizes_of
from daemon.peering.frame_stream import FrameStream
from daemon.peering.peer_tls import PeerTls
from daemon.peering.requests import PeerRequests
from overlay.certificates import Trust
from overlay.identity import Identity
from overlay.records import Address, NodeRecord
from sbon.coordinate import Coordinate, origin
from sbon.errors import QueryError, SbonError, StaleGenerationError, UnavailableError
from sbon.frames import MAX_FRAME_BYTES
from sbon.placement.questions import KnownPath
from tests.overlay.session_nodes import identity

CLIENT, SERVER = identity(1), identity(2)
CLIENT_ID, SERVER_ID = CLIENT.node_id, SERVER.node_id
DIMENSIONS = 2


class Question(msgspec.Struct, frozen=True):
    text: str


class Answer(msgspec.Struct, frozen=True):
    text: str


class Places(msgspec.Struct, frozen=True):
    records: tuple[NodeRecord, ...] = ()
    by_name: dict[str, Coordinate | None] = {}
    paths: list[KnownPath] = []


@asynccontextmanager
async def serving(server: PeerRequests, port: int = 0) -> AsyncIterator[Address]:
    async with trio.open_nursery() as nursery:
        listeners = await trio.open_tcp_listeners(port, host="127.0.0.1")
        await nursery.start(server.serve, listeners)
        host, port = listeners[0].socket.getsockname()
        yield host, port
        nursery.cancel_scope.cancel()


def open_tls(of: Identity) -> PeerTls:
    """As in an overlay without an authority."""
    return PeerTls(of, Trust(is_open=True), lambda: 0.0)


@pytest.fixture
def client(tmp_path: Path) -> PeerRequests:
    return PeerRequests(open_tls(CLIENT), 1, tmp_path / "client", DIMENSIONS)


@pytest.fixture
def server(tmp_path: Path) -> PeerRequests:
    return PeerRequests(open_tls(SERVER), 1, tmp_path / "server", DIMENSIONS)


async def echo(message: Question, sender: str) -> Answer:
    return Answer(f"{message.text} from {sender}")


def make_folder(path: Path) -> Path:
    (path / "state" / "0").mkdir(parents=True)
    (path / "empty").touch()
    (path / "state" / "0" / "1.delta").write_bytes(b"x" * 3_000_000)
    (path / "offsets").write_text("v1\n")
    return path


def content(folder: Path) -> dict[str, bytes | None]:
    return {
        path.relative_to(folder).as_posix(): None if path.is_dir() else path.read_bytes() for path in folder.rglob("*")
    }


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


# --- connections that are kept


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


# --- folders


async def test_a_folder_arrives_whole(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "fragment")
    kept = tmp_path / "kept"

    digests: dict[str, str] = {}

    async def keep(message: Question, sender: str, received: ReceivedFolder) -> Answer:
        received.path.rename(kept)
        digests.update(received.digests)
        return Answer(message.text)

    server.handle_folder(Question, keep)
    async with serving(server) as address:
        assert await client.send_folder(address, Question("take it"), folder, Answer) == Answer("take it")
    assert content(kept) == content(folder)
    assert digests == {name: new_digest(data).hexdigest() for name, data in content(folder).items() if data is not None}
    assert list((tmp_path / "server").iterdir()) == []


async def test_what_the_handler_leaves_is_deleted(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    async def refuse(message: Question, sender: str, received: ReceivedFolder) -> Answer:
        raise StaleGenerationError("a newer owner has it: nothing to do")

    server.handle_folder(Question, refuse)
    async with serving(server) as address:
        with pytest.raises(StaleGenerationError):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_refusal_arrives_although_a_large_folder_is_on_its_way(
    client: PeerRequests, server: PeerRequests, tmp_path: Path
) -> None:
    async with serving(server) as address:
        with pytest.raises(SbonError, match="does not know"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)


async def send_raw_folder(address: Address, contents: bytes, sizes: dict[str, int]) -> ReplyEnvelope | None:
    header = {"folder": packed(FolderHeader(sizes))}
    envelope = RequestEnvelope(REQUEST_VERSION, CLIENT_ID, 1, "", "Question", packed(Question("")), header)
    return await raw_exchange(address, msgspec.msgpack.encode(envelope), contents)


async def test_a_folder_that_changes_or_goes_while_it_is_sent_is_not_taken_for_all(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.handle_folder(Question, must_not_be_called)
    folder = make_folder(tmp_path / "fragment")
    monkeypatch.setattr(requests, "sizes_of", lambda folder: {**sizes_of(folder), "offsets": 2})
    async with serving(server) as address:
        with pytest.raises(SbonError, match="offsets has changed while it was sent"):
            await client.send_folder(address, Question(""), folder, Answer)
        monkeypatch.setattr(requests, "sizes_of", lambda folder: {**sizes_of(folder), "gone": 1})
        with pytest.raises(UnavailableError, match=r"cannot be used \(No such file"):
            await client.send_folder(address, Question(""), folder, Answer)
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_folder_for_which_there_is_no_room_is_refused_before_it_comes(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(room, "free_bytes", lambda folder: room.RESERVE_BYTES)
    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        with pytest.raises(SbonError, match=r"no room for a folder of 3\.0 MB: .* has 67\.1 MB left"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)
    assert list((tmp_path / "server").iterdir()) == []


@pytest.mark.parametrize("more", [b"x", b""], ids=["longer", "shorter"])
async def test_a_folder_that_is_not_as_long_as_announced_is_dropped(
    server: PeerRequests, tmp_path: Path, more: bytes
) -> None:
    server.handle_folder(Question, must_not_be_called)
    folder = make_folder(tmp_path / "fragment")
    sizes = sizes_of(folder)
    contents = b"".join(chunks_of(folder, sizes))
    async with serving(server) as address:
        reply = await send_raw_folder(address, contents + more if more else contents[:-1], sizes)
    assert reply is None
    assert server.counters["dropped.malformed"] == 1
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_folder_that_reaches_outside_is_dropped(server: PeerRequests, tmp_path: Path) -> None:
    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        assert await send_raw_folder(address, b"x", {"../outside": 1}) is None
    assert server.counters["dropped.malformed"] == 1
    assert not (tmp_path / "server" / "outside").exists()


async def test_a_folder_that_is_too_deep_is_dropped(client: PeerRequests, server: PeerRequests, tmp_path: Path) -> None:
    server.handle_folder(Question, must_not_be_called)
    server.handle(Answer, tell_again)
    async with serving(server) as address:
        assert await send_raw_folder(address, b"x", {"/".join("a" * 1500): 1}) is None
        assert await client.request(address, Answer("still here"), Answer) == Answer("still here")
    assert server.counters["dropped.malformed"] == 1
    assert list((tmp_path / "server").iterdir()) == []


async def test_a_disk_that_is_full_is_told(
    client: PeerRequests, server: PeerRequests, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(**where: object) -> str:
        raise OSError(errno.ENOSPC, "No space left on device")

    server.handle_folder(Question, must_not_be_called)
    async with serving(server) as address:
        monkeypatch.setattr(tempfile, "mkdtemp", fail)
        with pytest.raises(UnavailableError, match="cannot store the folder: No space left"):
            await client.send_folder(address, Question(""), make_folder(tmp_path / "fragment"), Answer)


async def tell_again(message: Answer, sender: str) -> Answer:
    return message


async def must_not_be_called(message: Question, sender: str, received: ReceivedFolder) -> Answer:
    raise AssertionError("a folder that is not whole was handed over")


# --- helpers


def packed(message: msgspec.Struct) -> msgspec.Raw:
    return msgspec.Raw(msgspec.msgpack.encode(message))


async def raw_exchange(address: Address, body: bytes, archive: bytes = b"") -> ReplyEnvelope | None:
    """One request as raw bytes; None if the server closed without an answer."""
    async with await trio.open_tcp_stream(*address) as plain:
        stream, _ = await open_tls(CLIENT).connect(plain, SERVER_ID)
        frames = FrameStream(stream)
        try:
            await frames.send(body)
            for start in range(0, len(archive), 1 << 20):
                await frames.send(archive[start : start + (1 << 20)])
            if archive:
                await plain.send_eof()
            answer = await frames.receive()
        except trio.BrokenResourceError:
            return None
    return None if answer is None else msgspec.msgpack.decode(answer, type=ReplyEnvelope)
