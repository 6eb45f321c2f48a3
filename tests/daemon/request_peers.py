"""Two ends of requests, for tests: who they are, what they say, and a folder that one sends."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import trio
import trio.testing

from daemon.peering.envelopes import ReplyEnvelope
from daemon.peering.frame_stream import FrameStream
from daemon.peering.peer_tls import PeerTls
from daemon.peering.requests import PeerRequests
from overlay.certificates import Trust
from overlay.identity import Identity
from overlay.records import Address
from tests.overlay.session_nodes import identity

CLIENT, SERVER = identity(1), identity(2)
CLIENT_ID, SERVER_ID = CLIENT.node_id, SERVER.node_id
DIMENSIONS = 2


class Question(msgspec.Struct, frozen=True):
    text: str


class Answer(msgspec.Struct, frozen=True):
    text: str


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
