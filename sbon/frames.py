"""Length-prefixed frames: how messages are cut out of a byte stream (control socket, engine socket, peer requests).

A frame is a 4-byte big-endian length and that many bytes of msgpack. :class:`FrameReader` is sans-I/O: bytes in, whole
bodies out. What the bodies mean is decided by msgspec types at each end, which skip fields they do not know.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Final, TypeVar

import msgspec

from sbon.errors import (
    ConfigurationError,
    QueryError,
    RemoteProtocolError,
    SbonError,
    StaleGenerationError,
    UnavailableError,
)

MAX_FRAME_BYTES = 16 * 1024 * 1024
#: Everything that msgspec raises for bytes that are not what they should be, and what deep nesting raises.
DECODING_ERRORS: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)
#: What comes back to whoever asked, by the name under which it travels.
TOLD_ERRORS: Final[dict[str, type[SbonError]]] = {
    kind.__name__: kind for kind in (SbonError, ConfigurationError, QueryError, UnavailableError, StaleGenerationError)
}

_LENGTH = struct.Struct(">I")

_T = TypeVar("_T")


class FrameTooLongError(RemoteProtocolError):
    """A frame that is longer than the receiver takes. Where the next one would begin is not known."""


def decode_body(decoder: msgspec.msgpack.Decoder[_T], body: bytes | msgspec.Raw) -> _T:
    """Decode bytes from somebody else; whatever is wrong with them is a RemoteProtocolError."""
    try:
        return decoder.decode(body)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError(f"malformed message: {error}") from None


def frame(body: bytes) -> bytes:
    """Return ``body`` with its length in front.

    Raises ValueError if it is longer than MAX_FRAME_BYTES: our own mistake, found before it is sent.
    """
    if len(body) > MAX_FRAME_BYTES:
        raise ValueError(f"a frame of {len(body)} bytes is over the limit of {MAX_FRAME_BYTES}")
    return _LENGTH.pack(len(body)) + body


class FrameReader:
    """Collects bytes and hands out whole frames, holding at most one unfinished frame."""

    def __init__(self, max_frame_bytes: int = MAX_FRAME_BYTES) -> None:
        self._buffer = bytearray()
        self._max_frame_bytes = max_frame_bytes

    def receive(self, data: bytes) -> Iterator[bytes]:
        """Yield the bodies completed by ``data``; FrameTooLongError if a length is over the bound."""
        self._buffer += data
        while len(self._buffer) >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._buffer)
            if length > self._max_frame_bytes:
                raise FrameTooLongError(f"a frame of {length} bytes is over the limit of {self._max_frame_bytes}")
            end = _LENGTH.size + length
            if len(self._buffer) < end:
                return
            body = bytes(self._buffer[_LENGTH.size : end])
            del self._buffer[:end]
            yield body

    @property
    def unfinished(self) -> bool:
        """True while bytes of an incomplete frame are held: the stream must not end now."""
        return bool(self._buffer)
