"""The control socket: a Unix socket over which the CLI, and anyone who may open it, asks this daemon.

Messages are in :mod:`daemon.control.messages`, the protocol in docs/control-socket.md. Clients are trusted to mean
well, since the socket's mode keeps others out, but not to work well: what they send, hold and fail to read is bounded.
"""

from __future__ import annotations

import errno
import grp
import logging
import os
import socket
import stat
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar, get_args

import msgspec
import trio

from daemon.control.messages import CONTROL_VERSION, MAX_CALL_BYTES, Answer, Call, Request
from daemon.peering.frame_stream import FrameStream
from sbon.errors import RemoteProtocolError, SbonError
from sbon.frames import FrameTooLongError, decode_body

log = logging.getLogger("sbon.control")

GROUP = "sbon"
SOCKET_MODE = 0o660
MAX_CLIENTS = 64
#: A client that asks nothing for so long is disconnected; so is one that does not read an answer for as long as below.
IDLE_TIMEOUT_S = 600.0
SEND_TIMEOUT_S = 15.0

M = TypeVar("M", bound=msgspec.Struct)

_calls = msgspec.msgpack.Decoder(Call)
_requests = msgspec.msgpack.Decoder(Request)


class Control:
    """The server. A request type has one handler, or one stream of answers."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._handlers: dict[type[Any], Callable[[Any], Awaitable[msgspec.Struct]]] = {}
        self._streams: dict[type[Any], Callable[[Any], AsyncIterator[msgspec.Struct]]] = {}
        self._clients = 0
        #: "served", "refused", "dropped.malformed", "dropped.too_long", "dropped.too_many", "dropped.slow",
        #: "dropped.broken", "dropped.failed"
        self.counters: Counter[str] = Counter()

    def handle(self, request_type: type[M], handler: Callable[[M], Awaitable[msgspec.Struct]]) -> None:
        """``await handler(request)`` answers every ``request_type``; an SbonError it raises is told to the client."""
        self._handlers[request_type] = handler

    def stream(self, request_type: type[M], handler: Callable[[M], AsyncIterator[msgspec.Struct]]) -> None:
        """Every item of ``handler(request)`` is an answer, until it ends or the client goes."""
        self._streams[request_type] = handler

    def unhandled(self) -> set[str]:
        """Names of the request types that nothing answers; empty in a daemon."""
        return {kind.__name__ for kind in get_args(Request)} - {
            kind.__name__ for kind in (*self._handlers, *self._streams)
        }

    async def serve(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Answer until cancelled. Raises SbonError at the start if the socket cannot be had."""
        server = open_socket(self._path)
        try:
            listener = trio.SocketListener(trio.socket.from_stdlib_socket(server))
            async with trio.open_nursery() as nursery:
                await nursery.start(trio.serve_listeners, self._serve_client, [listener])
                task_status.started()
        finally:
            with suppress(OSError):
                self._path.unlink()

    async def _serve_client(self, stream: trio.SocketStream) -> None:
        if self._clients >= MAX_CLIENTS:
            self.counters["dropped.too_many"] += 1
            await stream.aclose()
            return
        self._clients += 1
        try:
            async with stream:
                await self._serve_calls(FrameStream(stream, MAX_CALL_BYTES))
        finally:
            self._clients -= 1

    async def _serve_calls(self, frames: FrameStream) -> None:
        try:
            while True:
                with trio.fail_after(IDLE_TIMEOUT_S):
                    data = await frames.receive()
                if data is None or not await self._serve_call(data, frames):
                    return
        except RemoteProtocolError as error:
            # Where the next frame begins is not known any more: say so, and close.
            is_too_long = isinstance(error, FrameTooLongError)
            self.counters["dropped.too_long" if is_too_long else "dropped.malformed"] += 1
            with suppress(trio.BrokenResourceError, trio.TooSlowError):
                await _send(frames, Answer(CONTROL_VERSION, 0, error=str(error), error_kind="RemoteProtocolError"))
        except trio.TooSlowError:
            self.counters["dropped.slow"] += 1
        except trio.BrokenResourceError:
            self.counters["dropped.broken"] += 1
        except Exception:  # a bug of ours, such as an answer that is too long for a frame: the daemon goes on
            log.exception("a connection to the control socket failed")
            self.counters["dropped.failed"] += 1

    async def _serve_call(self, data: bytes, frames: FrameStream) -> bool:
        """Carry one out and answer it. False: nothing more can be said over this connection."""
        call_id = 0
        try:
            call = decode_body(_calls, data)
            call_id = call.id
            if call.version != CONTROL_VERSION:
                raise SbonError(
                    f"the daemon speaks version {CONTROL_VERSION} of the control protocol, the client version "
                    f"{call.version}: use the `sbon` that is installed with the daemon"
                )
            request = decode_body(_requests, call.request)
            if type(request) in self._streams:
                return await self._stream_answers(call_id, self._streams[type(request)](request), frames)
            reply = await self._handlers[type(request)](request)
            answer = Answer(CONTROL_VERSION, call_id, msgspec.Raw(msgspec.msgpack.encode(reply)))
            self.counters["served"] += 1
        except RemoteProtocolError as error:
            self.counters["dropped.malformed"] += 1
            answer = Answer(CONTROL_VERSION, call_id, error=str(error), error_kind="RemoteProtocolError")
        except SbonError as error:
            self.counters["refused"] += 1
            answer = Answer(CONTROL_VERSION, call_id, error=str(error), error_kind=type(error).__name__)
        except (trio.TooSlowError, trio.BrokenResourceError):
            raise
        except Exception:  # a bug of ours: told to both sides, and the daemon goes on
            log.exception("a control request failed")
            answer = Answer(
                CONTROL_VERSION, call_id, error="the daemon failed to do this: see its log", error_kind="InternalError"
            )
        await _send(frames, answer)
        return True

    async def _stream_answers(self, call_id: int, items: AsyncIterator[msgspec.Struct], frames: FrameStream) -> bool:
        """False: the client has gone, or says something before it was told all, and a frame may be half written."""
        told_all = False
        failure: Exception | None = None
        async with trio.open_nursery() as nursery:

            async def end_when_client_goes() -> None:
                with suppress(RemoteProtocolError, trio.BrokenResourceError):
                    await frames.receive()
                nursery.cancel_scope.cancel()

            nursery.start_soon(end_when_client_goes)
            try:
                async for item in items:
                    body = msgspec.Raw(msgspec.msgpack.encode(item))
                    await _send(frames, Answer(CONTROL_VERSION, call_id, body, last=False))
                await _send(frames, Answer(CONTROL_VERSION, call_id))
                told_all = True
            except trio.BrokenResourceError:
                pass
            except Exception as error:  # out of the nursery it would come inside of a group
                failure = error
            nursery.cancel_scope.cancel()
        if failure is not None:
            raise failure
        self.counters["served"] += 1
        return told_all


async def _send(frames: FrameStream, answer: Answer) -> None:
    with trio.fail_after(SEND_TIMEOUT_S):
        await frames.send(msgspec.msgpack.encode(answer))


def open_socket(path: Path) -> socket.socket:
    """A listening Unix socket at ``path``, for its owner and the group ``sbon``; a stale one is replaced.

    Raises SbonError if another daemon answers there, or if the place cannot be used.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _remove_stale(path)
        server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o777 & ~SOCKET_MODE)
        try:
            server.bind(bytes(path))
        except OSError:
            server.close()
            raise
        finally:
            os.umask(previous)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise _in_use(path) from error
        raise SbonError(
            f"cannot open the control socket {path}: {error.strerror}: set node.socket elsewhere"
        ) from error
    with suppress(KeyError, PermissionError):
        os.chown(path, -1, grp.getgrnam(GROUP).gr_gid)
    server.listen(MAX_CLIENTS)
    server.setblocking(False)
    return server


def _remove_stale(path: Path) -> None:
    """Remove a socket that nobody listens on. Raises SbonError if somebody does, or if it is not a socket."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise SbonError(f"{path} is there and is not a socket: set node.socket to another path")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(bytes(path))
        except (ConnectionRefusedError, FileNotFoundError):
            with suppress(FileNotFoundError):
                path.unlink()
        except TimeoutError:
            raise _in_use(path) from None
        else:
            raise _in_use(path)


def _in_use(path: Path) -> SbonError:
    return SbonError(f"another daemon answers at {path}: stop it, or set node.socket to another path")
