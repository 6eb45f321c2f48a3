"""Frames over a trio stream. Deadlines are the caller's: nothing here gives up by itself."""

from __future__ import annotations

from collections import deque

import trio

from sbon.errors import RemoteProtocolError
from sbon.frames import MAX_FRAME_BYTES, FrameReader, frame

RECEIVE_BYTES = 64 * 1024


class FrameStream:
    """Sends and receives the bodies of frames. One task may send while another receives; closing is the owner's."""

    def __init__(self, stream: trio.abc.Stream, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._stream = stream
        self._reader = FrameReader(max_frame_bytes)
        self._bodies: deque[bytes] = deque()
        self._sending = trio.Lock()

    async def send(self, body: bytes) -> None:
        """Raises trio.BrokenResourceError when the other end is gone."""
        async with self._sending:
            await self._stream.send_all(frame(body))

    async def receive(self) -> bytes | None:
        """The next body, None at a clean end.

        Raises RemoteProtocolError for a frame that is too long (FrameTooLongError) or that ends in the middle, and
        trio.BrokenResourceError when the connection broke.
        """
        while not self._bodies:
            data = await self._stream.receive_some(RECEIVE_BYTES)
            if not data:
                if self._reader.unfinished:
                    raise RemoteProtocolError("a connection that ended in the middle of a frame")
                return None
            self._bodies.extend(self._reader.receive(bytes(data)))
        return self._bodies.popleft()
