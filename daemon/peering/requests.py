"""Requests between daemons over TCP: one typed message, one typed reply, and folders that travel with a message.

A connection carries one request after another, inside TLS with both sides known (:mod:`daemon.peering.peer_tls`), and
is kept for a while (:mod:`daemon.peering.connections`). The first frame of a request is a RequestEnvelope:
version, sender (the one that TLS has proved), boot id, room to grow. A folder follows as raw frames of at most 1 MiB;
its files with their sizes are in the extension ``folder``. The answer is a :class:`ReplyEnvelope`. A peer cannot hold
the server: connections, frames, and every wait are bounded. Who is not a member is told so, whatever it asks, except
for what is registered with :meth:`PeerRequests.handle_strangers`.

An :class:`sbon.errors.SbonError` that a handler raises comes back to the caller as the same class with the same line.
"""

from __future__ import annotations

import logging
import shutil
import ssl
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from daemon.peering.connections import NOT_TAKEN, Connection, Connections
from daemon.peering.emulation import Emulation
from daemon.peering.envelopes import (
    REQUEST_VERSION,
    FolderHeader,
    ReplyEnvelope,
    RequestEnvelope,
    decode_body,
    decode_reply,
    decode_request,
    error_kind,
    read_reply,
)
from daemon.peering.folder_transfer import ReceivedFolder, Unpacking, chunks_of, sizes_of
from daemon.peering.frame_stream import FrameStream
from daemon.peering.peer_tls import Caller, PeerTls
from daemon.peering.room import check_room
from overlay.certificates import Refusal, RefusedError
from overlay.identity import NodeId
from overlay.records import Address, NodeRecord
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError
from sbon.frames import DECODING_ERRORS

log = logging.getLogger("sbon.requests")

MAX_REQUEST_BYTES = 4 * 1024 * 1024
MAX_STRANGER_BYTES = 16 * 1024
MAX_CONNECTIONS = 64
#: Of these, so many may be busy with those who have not yet shown that they are members.
MAX_STRANGERS = 32
#: A peer has this long to shake hands and to say who it is.
HANDSHAKE_TIMEOUT_S = 5.0
#: A peer has this long for each frame that it sends or takes.
FRAME_TIMEOUT_S = 15.0
#: A member may be silent for so long between two requests: longer than who asks keeps a connection.
IDLE_TIMEOUT_S = 60.0
#: A handler that takes longer than this is broken; its caller has given up long before.
HANDLING_TIMEOUT_S = 600.0
#: After a refusal, bytes still on their way are read away for so long, so that the refusal is not lost with them.
LINGER_S = 3.0

M = TypeVar("M", bound=msgspec.Struct)
R = TypeVar("R", bound=msgspec.Struct)
Handler = Callable[[Any, NodeId], Awaitable[msgspec.Struct]]
StrangerHandler = Callable[[Any, Caller], Awaitable[msgspec.Struct]]
FolderHandler = Callable[[Any, NodeId, ReceivedFolder], Awaitable[msgspec.Struct]]
#: The contents of a folder, in pieces; read anew for each connection that is tried.
Contents = Callable[[], Iterator[bytes]]


class _NotTakenError(Exception):
    """The request was not carried out, as the connection was not kept by its other end."""


class Done(msgspec.Struct, frozen=True):
    """The reply of a request that has nothing to tell but that it was carried out."""


class PeerRequests:
    """Both sides of requests for one node.

    Folders arrive under ``scratch``, which must be on the file system where they are to stay; what a killed daemon left
    there is deleted at the start. Coordinates in what others say have so many ``dimensions``, or it is refused.
    """

    def __init__(
        self, tls: PeerTls, boot_id: int, scratch: Path, dimensions: int, emulation: Emulation | None = None
    ) -> None:
        self._tls = tls
        self._node_id = tls.identity.node_id
        self._boot_id = boot_id
        self._scratch = scratch
        self._dimensions = dimensions
        self._emulation = emulation
        self._handlers: dict[str, tuple[msgspec.msgpack.Decoder[Any], Handler]] = {}
        self._folder_handlers: dict[str, tuple[msgspec.msgpack.Decoder[Any], FolderHandler]] = {}
        self._stranger_handlers: dict[str, tuple[msgspec.msgpack.Decoder[Any], StrangerHandler]] = {}
        self._connections = 0
        self._strangers = 0
        #: Of the connections those on which the next request is waited for, the one that waits for longest first.
        self._idle: dict[trio.CancelScope, None] = {}
        self._kept = Connections(tls)
        #: "served", "refused", "asked_again", and "dropped.": "malformed", "slow", "broken", "failed", "too_many",
        #: "stranger"
        self.counters: Counter[str] = Counter()
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir(parents=True)

    # --- registering

    def handle(self, message_type: type[M], handler: Callable[[M, NodeId], Awaitable[msgspec.Struct]]) -> None:
        """``await handler(message, sender_id)`` answers every ``message_type``, from members only."""
        self._handlers[message_type.__name__] = msgspec.msgpack.Decoder(message_type), handler

    def handle_strangers(
        self, message_type: type[M], handler: Callable[[M, Caller], Awaitable[msgspec.Struct]]
    ) -> None:
        """``await handler(message, caller)`` answers every ``message_type``, whether its sender is a member or not."""
        self._stranger_handlers[message_type.__name__] = msgspec.msgpack.Decoder(message_type), handler

    def handle_folder(
        self, message_type: type[M], handler: Callable[[M, NodeId, ReceivedFolder], Awaitable[msgspec.Struct]]
    ) -> None:
        """``await handler(message, sender_id, folder)``: ``folder`` is complete and durable.

        The handler renames it to where it belongs before it returns; what is left there is deleted then.
        """
        self._folder_handlers[message_type.__name__] = msgspec.msgpack.Decoder(message_type), handler

    # --- asking

    async def request(
        self,
        node: NodeRecord | Address,
        message: msgspec.Struct,
        reply_type: type[R],
        timeout_s: float = 10.0,
    ) -> R:
        """Send ``message`` to ``node`` and return its reply.

        Raises UnavailableError if the node cannot be reached or does not answer in ``timeout_s`` (the request may have
        been carried out all the same), and whatever SbonError the node answers with.
        """
        return await self._exchange(node, lambda peer_id: message, reply_type, timeout_s)

    async def connect_ms(self, node: NodeRecord) -> float:
        """How long it takes to connect to ``node``: a round trip between two kernels, and nothing is said.

        Raises OSError if it cannot be reached.
        """
        began_s = trio.current_time()
        try:
            stream = await trio.open_tcp_stream(*node.address)
        except UnicodeError as error:  # of a host whose name none can be
            raise OSError(str(error)) from error
        async with stream:
            took_s = trio.current_time() - began_s
        held_s = 0.0 if self._emulation is None else 2.0 * self._emulation.one_way_s_to_address(node.address)
        return 1000.0 * (took_s + held_s)

    async def introduce(
        self,
        address: Address,
        cluster_id: bytes,
        make_message: Callable[[NodeId], msgspec.Struct],
        reply_type: type[R],
        timeout_s: float = 10.0,
    ) -> R:
        """Ask a member of a cluster that is not (yet) ours what is made for it once its id is known. Errors as in
        :meth:`request`."""
        return await self._exchange(address, make_message, reply_type, timeout_s, cluster_id=cluster_id)

    async def send_folder(
        self,
        node: NodeRecord | Address,
        message: msgspec.Struct,
        folder: Path,
        reply_type: type[R],
        timeout_s: float = 60.0,
    ) -> R:
        """Send ``message`` with all of ``folder``'s content; it must not change meanwhile and is left as it is.

        ``timeout_s`` is for each MiB on its way, and for the reply after the last. Errors as in :meth:`request`.
        """
        sizes = await trio.to_thread.run_sync(sizes_of, folder)
        extensions = {"folder": msgspec.Raw(msgspec.msgpack.encode(FolderHeader(sizes)))}

        def contents() -> Iterator[bytes]:
            return chunks_of(folder, sizes)

        return await self._exchange(node, lambda peer_id: message, reply_type, timeout_s, contents, extensions)

    async def _exchange(
        self,
        node: NodeRecord | Address,
        make_message: Callable[[NodeId], msgspec.Struct],
        reply_type: type[R],
        timeout_s: float,
        contents: Contents | None = None,
        extensions: dict[str, msgspec.Raw] = {},  # noqa: B006 (never changed)
        cluster_id: bytes | None = None,
    ) -> R:
        if isinstance(node, NodeRecord):
            address, target, peer = node.address, node.node_id, f"node {node.name} at {node.host}:{node.port}"
        else:
            address, target, peer = node, "", f"the node at {node[0]}:{node[1]}"
        if not self._tls.trust.is_ready and cluster_id is None:
            raise UnavailableError(Refusal.NOT_READY.text)
        try:
            with trio.fail_after(timeout_s) as scope:

                async def ask(connection: Connection) -> ReplyEnvelope | None:
                    envelope = self._envelope(target, make_message(connection.peer_id), extensions)
                    return await self._ask_over(connection, envelope, contents, scope, timeout_s)

                reply = await self._reply(address, target, cluster_id, ask)
        except trio.TooSlowError:
            raise UnavailableError(f"{peer} did not answer within {timeout_s:g} s: is it overloaded?") from None
        except RefusedError as error:
            raise UnavailableError(f"{peer} is not accepted: {error}") from error
        except (OSError, UnicodeError, trio.BrokenResourceError) as error:  # UnicodeError: no host can be called that
            if isinstance(error.__cause__, ssl.SSLError):
                raise UnavailableError(f"{peer} does not speak TLS as sbon does: is it a node of sbon?") from error
            reason = getattr(error, "strerror", None) or "the connection broke"
            raise UnavailableError(f"{peer} cannot be reached ({reason}): is it running?") from error
        except RemoteProtocolError as error:
            raise UnavailableError(f"{peer} answered with {error}: is it a node of sbon?") from error
        if reply is None:
            raise UnavailableError(f"{peer} closed the connection without an answer: try again")
        return read_reply(reply, reply_type, peer, self._dimensions)

    async def _reply(
        self,
        address: Address,
        target: str,
        cluster_id: bytes | None,
        ask: Callable[[Connection], Awaitable[ReplyEnvelope | None]],
    ) -> ReplyEnvelope | None:
        """The answer to what is asked, over a connection that was kept if there is one; None: there was none."""
        while cluster_id is None and (kept := self._kept.take(address, target)) is not None:
            try:
                return await ask(kept)
            except _NotTakenError:
                self.counters["asked_again"] += 1
        return await ask(await self._kept.open(address, target, MAX_REQUEST_BYTES, cluster_id))

    async def _ask_over(
        self, connection: Connection, envelope: bytes, contents: Contents | None, scope: trio.CancelScope, wait_s: float
    ) -> ReplyEnvelope | None:
        was_kept, connection.is_kept = connection.is_kept, False
        try:
            if self._emulation is not None:
                await trio.sleep(self._emulation.one_way_s_to_address(connection.key[0]))
            try:
                await connection.frames.send(envelope)
            except trio.BrokenResourceError:
                if was_kept:
                    raise _NotTakenError from None
                raise
            if contents is not None:
                await _send_contents(connection.frames, contents(), scope, wait_s)
            answer = await connection.frames.receive()
            if answer == NOT_TAKEN and was_kept:
                raise _NotTakenError
            if answer is None:
                return None
            reply = decode_reply(answer)
            # What is left of a folder that was refused may still be on its way.
            if contents is None or not reply.error_kind:
                self._kept.keep(connection)
            return reply
        finally:
            if not connection.is_kept:
                connection.close()

    def _envelope(self, target: str, message: msgspec.Struct, extensions: dict[str, msgspec.Raw]) -> bytes:
        body = msgspec.Raw(msgspec.msgpack.encode(message))
        kind = type(message).__name__
        return msgspec.msgpack.encode(
            RequestEnvelope(REQUEST_VERSION, self._node_id, self._boot_id, target, kind, body, extensions)
        )

    # --- answering

    async def serve(
        self,
        listeners: list[trio.SocketListener],
        *,
        task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
    ) -> None:
        """Answer requests until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._kept.run)
            await nursery.start(trio.serve_listeners, self._serve_connection, listeners)
            task_status.started()

    async def _serve_connection(self, stream: trio.SocketStream) -> None:
        if self._strangers >= MAX_STRANGERS or not self._has_room():
            self.counters["dropped.too_many"] += 1
            await stream.aclose()
            return
        self._connections += 1
        try:
            async with stream:
                await self._serve_or_drop(stream)
        finally:
            self._connections -= 1

    def _has_room(self) -> bool:
        """For one more connection; one on which nothing is under way has to go for it."""
        if self._connections < MAX_CONNECTIONS:
            return True
        if not self._idle:
            return False
        longest = next(iter(self._idle))
        del self._idle[longest]
        longest.cancel()
        return True

    async def _serve_or_drop(self, stream: trio.SocketStream) -> None:
        try:
            await self._serve_caller(stream)
        except RemoteProtocolError as error:
            self.counters["dropped.malformed"] += 1
            log.debug("dropped a request: %s", error)
        except trio.TooSlowError:
            self.counters["dropped.slow"] += 1
        except trio.BrokenResourceError:
            self.counters["dropped.broken"] += 1
        except Exception:  # a bug of ours, or what nobody has thought of: it costs one connection, never the daemon
            self.counters["dropped.failed"] += 1
            log.exception("a connection failed")

    async def _serve_caller(self, stream: trio.SocketStream) -> None:
        self._strangers += 1
        is_stranger = True
        try:
            with trio.fail_after(HANDSHAKE_TIMEOUT_S):
                tls, caller = await self._tls.accept(stream)
            if caller.refusal is None:
                self._strangers -= 1
                is_stranger = False
            frames = FrameStream(tls, MAX_STRANGER_BYTES if is_stranger else MAX_REQUEST_BYTES)
            with trio.fail_after(FRAME_TIMEOUT_S):
                data = await frames.receive()
            while data is not None and await self._serve_request(data, frames, caller):
                data = await self._next_request(frames, caller)
        finally:
            self._strangers -= is_stranger

    async def _next_request(self, frames: FrameStream, caller: Caller) -> bytes | None:
        """None: there is none, or not over this connection."""
        if caller.proof is None:
            return None
        with trio.move_on_after(IDLE_TIMEOUT_S) as waiting:
            self._idle[waiting] = None
            try:
                data = await frames.receive()
            except trio.BrokenResourceError:
                return None
            finally:
                self._idle.pop(waiting, None)
            if data is None or self._tls.holds(caller.proof):
                return data
        with trio.move_on_after(LINGER_S):
            await frames.send(NOT_TAKEN)
            await _read_away(frames)
        return None

    async def _serve_request(self, data: bytes, frames: FrameStream, caller: Caller) -> bool:
        """Carry one out and answer it. False: nothing more is heard over this connection."""
        envelope = decode_request(data, caller.node_id)
        try:
            body = msgspec.msgpack.encode(await self._carry_out(envelope, frames, caller))
            reply = ReplyEnvelope(REQUEST_VERSION, self._node_id, self._boot_id, body=msgspec.Raw(body))
            self.counters["served"] += 1
        except SbonError as error:
            reply = ReplyEnvelope(REQUEST_VERSION, self._node_id, self._boot_id, error_kind(error), str(error))
            self.counters["refused"] += 1
        if self._emulation is not None:
            await trio.sleep(self._emulation.one_way_s_to_node(envelope.sender))
        with trio.fail_after(FRAME_TIMEOUT_S):
            await frames.send(msgspec.msgpack.encode(reply))
        if reply.error_kind and "folder" in envelope.extensions:
            await _read_away(frames)
            return False
        return True

    async def _carry_out(self, envelope: RequestEnvelope, frames: FrameStream, caller: Caller) -> msgspec.Struct:
        if envelope.version != REQUEST_VERSION:
            raise SbonError(
                f"the node speaks version {REQUEST_VERSION} of requests, not {envelope.version}: "
                "install the same version of sbon on all nodes"
            )
        if envelope.target not in ("", self._node_id):
            raise UnavailableError("another node has that address now: see `sbon nodes`")
        if envelope.kind in self._stranger_handlers:
            decoder, stranger_handler = self._stranger_handlers[envelope.kind]
            message = decode_body(decoder, envelope, self._dimensions)
            return await carry_out(envelope.kind, stranger_handler(message, caller))
        if caller.refusal is not None:
            self.counters["dropped.stranger"] += 1
            raise UnavailableError(f"the node refuses this one: {caller.refusal.text_for_refused}")
        if envelope.kind in self._handlers:
            decoder, handler = self._handlers[envelope.kind]
            message = decode_body(decoder, envelope, self._dimensions)
            return await carry_out(envelope.kind, handler(message, envelope.sender))
        if envelope.kind in self._folder_handlers:
            decoder, folder_handler = self._folder_handlers[envelope.kind]
            message = decode_body(decoder, envelope, self._dimensions)
            try:
                async with _temporary_folder(self._scratch) as holder:
                    folder = await self._receive_folder(envelope, frames, holder / "folder")
                    return await carry_out(envelope.kind, folder_handler(message, envelope.sender, folder))
            except OSError as error:
                raise UnavailableError(f"the node cannot store the folder: {error.strerror}: see its disk") from error
        raise SbonError(f"the node does not know {envelope.kind[:64]!r}: install the same version of sbon on all nodes")

    async def _receive_folder(self, envelope: RequestEnvelope, frames: FrameStream, folder: Path) -> ReceivedFolder:
        try:
            header = msgspec.msgpack.decode(envelope.extensions["folder"], type=FolderHeader)
        except (KeyError, *DECODING_ERRORS) as error:
            raise RemoteProtocolError("a folder without a header") from error
        unpacking = await trio.to_thread.run_sync(Unpacking, folder, header.sizes)
        check_room("the node", self._scratch, "a folder", unpacking.total_bytes)
        try:
            await trio.to_thread.run_sync(unpacking.begin)
            while unpacking.lacking_bytes:
                with trio.fail_after(FRAME_TIMEOUT_S):
                    chunk = await frames.receive()
                if not chunk:
                    raise RemoteProtocolError("a folder that ends too early")
                await trio.to_thread.run_sync(unpacking.take, chunk)
            return await trio.to_thread.run_sync(unpacking.finish)
        finally:
            unpacking.close()


async def carry_out(kind: str, handling: Awaitable[msgspec.Struct]) -> msgspec.Struct:
    """Wait for a handler. What it raises other than SbonError is a bug: told to both sides, and the daemon goes on."""
    try:
        with trio.fail_after(HANDLING_TIMEOUT_S):
            return await handling
    except SbonError:
        raise
    except Exception as error:
        log.exception("the request %s failed", kind)
        raise SbonError(f"{kind} failed inside the node that was asked: see that node's log") from error


@asynccontextmanager
async def _temporary_folder(parent: Path) -> AsyncIterator[Path]:
    folder = Path(tempfile.mkdtemp(dir=parent))
    try:
        yield folder
    finally:
        with trio.CancelScope(shield=True):
            # There may be many files in it.
            await trio.to_thread.run_sync(partial(shutil.rmtree, folder, ignore_errors=True))


async def _send_contents(
    frames: FrameStream, pieces: Iterator[bytes], scope: trio.CancelScope, timeout_s: float
) -> None:
    while piece := await trio.to_thread.run_sync(next, pieces, b""):
        try:
            await frames.send(piece)
        except trio.BrokenResourceError:
            return  # refused on the way; the reply says why
        scope.deadline = trio.current_time() + timeout_s


async def _read_away(frames: FrameStream) -> None:
    with trio.move_on_after(LINGER_S):
        while await frames.receive() is not None:
            pass
