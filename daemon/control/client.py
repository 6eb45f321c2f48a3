"""A client of the control socket: what the CLI and the demo use, and any program with trio may."""

from __future__ import annotations

import math
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Self, TypeVar, cast

import msgspec
import trio

from daemon.control.messages import CONTROL_VERSION, REPLIES, Answer, Call, Event, RequestFor, Watch
from daemon.peering.frame_stream import FrameStream
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError
from sbon.frames import DECODING_ERRORS, TOLD_ERRORS

R = TypeVar("R", bound=msgspec.Struct)
T = TypeVar("T")


class ControlClient:
    """One connection, for one request at a time. The daemon's SbonErrors are raised here as the same classes."""

    def __init__(self, stream: trio.abc.Stream) -> None:
        self._frames = FrameStream(stream)
        self._last_id = 0

    @classmethod
    @asynccontextmanager
    async def open(cls, path: Path) -> AsyncIterator[Self]:
        """Connect to the daemon whose socket is at ``path``. Raises UnavailableError if none listens there."""
        async with await _connect(path) as stream:
            yield cls(stream)

    async def request(self, request: RequestFor[R], timeout_s: float = math.inf) -> R:
        """The daemon's reply. Raises UnavailableError if it ends meanwhile or takes longer than ``timeout_s``."""
        try:
            with trio.fail_after(timeout_s):
                await self._send(request)
                answer = await self._receive()
        except trio.TooSlowError:
            raise UnavailableError(f"the daemon did not answer within {timeout_s:g} s: see its log") from None
        return cast(R, _decode(answer.reply, REPLIES[type(request)]))

    async def watch(self, *, follow: bool = False) -> AsyncGenerator[Event, None]:
        """The latest events, and those to come if ``follow``. The connection can do nothing else after this."""
        await self._send(Watch(follow))
        while not (answer := await self._receive()).last:
            yield _decode(answer.reply, Event)

    async def _send(self, request: RequestFor[Any]) -> None:
        self._last_id += 1
        call = Call(CONTROL_VERSION, self._last_id, msgspec.Raw(msgspec.msgpack.encode(request)))
        try:
            await self._frames.send(msgspec.msgpack.encode(call))
        except trio.BrokenResourceError as error:
            raise _ended() from error

    async def _receive(self) -> Answer:
        try:
            while (body := await self._frames.receive()) is not None:
                answer = _decode(body, Answer)
                if answer.id not in (0, self._last_id):
                    continue  # to a request whose reply nobody waited for
                if answer.error is not None:
                    raise TOLD_ERRORS.get(answer.error_kind or "", SbonError)(answer.error)
                return answer
        except (trio.BrokenResourceError, RemoteProtocolError) as error:
            raise _ended() from error
        raise _ended()


async def _connect(path: Path) -> trio.SocketStream:
    remedy = "start it with `sbon run`, or name another socket with --socket or SBON_SOCKET"
    try:
        return await trio.open_unix_socket(bytes(path))
    except FileNotFoundError:
        raise UnavailableError(f"no daemon listens at {path}: {remedy}") from None
    except ConnectionRefusedError:
        raise UnavailableError(f"the daemon at {path} does not run any more: {remedy}") from None
    except PermissionError:
        raise SbonError(f"you may not use the socket {path}: become a member of the group sbon, or root") from None
    except OSError as error:
        raise SbonError(f"cannot use the socket {path}: {error.strerror or error}: {remedy}") from error


def _ended() -> UnavailableError:
    return UnavailableError("the daemon ended meanwhile: see its log")


def _decode(data: bytes | msgspec.Raw, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except DECODING_ERRORS as error:
        raise SbonError(
            f"the daemon is of another version of sbon ({error}): restart it, or use its own `sbon`"
        ) from error
