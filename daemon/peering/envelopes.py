"""How requests and their replies look on the wire, and how they are read."""

from __future__ import annotations

from typing import Any, Final, TypeVar

import msgspec

from overlay.identity import NodeId
from sbon.errors import (
    ConfigurationError,
    QueryError,
    RemoteProtocolError,
    SbonError,
    StaleGenerationError,
    UnavailableError,
)

REQUEST_VERSION: Final = 2
MAX_ERROR_LENGTH: Final = 2000
#: What decoding raises for bytes that are not what they should be.
DECODING_ERRORS: Final = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

R = TypeVar("R", bound=msgspec.Struct)

_ERRORS: dict[str, type[SbonError]] = {
    kind.__name__: kind for kind in (SbonError, ConfigurationError, QueryError, UnavailableError, StaleGenerationError)
}


class RequestEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """``target`` is the node that is meant, empty for whoever listens there; ``kind`` names the type of ``body``."""

    version: int
    sender: NodeId
    boot_id: int
    target: str
    kind: str
    body: msgspec.Raw
    extensions: dict[str, msgspec.Raw] = {}


class ReplyEnvelope(msgspec.Struct, frozen=True, array_like=True):
    """Either ``body``, or one line ``error`` of the class named by ``error_kind``."""

    version: int
    sender: NodeId
    boot_id: int
    error_kind: str = ""
    error: str = ""
    body: msgspec.Raw = msgspec.Raw(b"\xc0")
    extensions: dict[str, msgspec.Raw] = {}


class FolderHeader(msgspec.Struct, frozen=True):
    """The contents of these files follow: path within the folder -> bytes, in this order."""

    sizes: dict[str, int]


_requests = msgspec.msgpack.Decoder(RequestEnvelope)
_replies = msgspec.msgpack.Decoder(ReplyEnvelope)


def error_kind(error: SbonError) -> str:
    """The name under which ``error`` travels: of its class, or of the nearest one that every node knows."""
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _ERRORS)


def decode_request(data: bytes, speaker: NodeId) -> RequestEnvelope:
    """A request of the one who speaks. Raises RemoteProtocolError."""
    try:
        envelope = _requests.decode(data)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a request: {error}") from error
    if envelope.sender != speaker:
        raise RemoteProtocolError("a sender that is not the one who speaks")
    return envelope


def decode_body(decoder: msgspec.msgpack.Decoder[Any], envelope: RequestEnvelope) -> Any:
    """What is asked. Raises RemoteProtocolError."""
    try:
        return decoder.decode(envelope.body)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a {envelope.kind}: {error}") from error


def decode_reply(data: bytes) -> ReplyEnvelope:
    """Raises RemoteProtocolError."""
    try:
        return _replies.decode(data)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError("what is no reply") from error


def read_reply(reply: ReplyEnvelope, reply_type: type[R], peer: str) -> R:
    """What was answered. Raises the SbonError that was, UnavailableError if it is of another type."""
    if reply.error_kind:
        raise _ERRORS.get(reply.error_kind, SbonError)(_one_line(reply.error))
    try:
        return msgspec.msgpack.decode(reply.body, type=reply_type)
    except DECODING_ERRORS as error:
        raise UnavailableError(f"{peer} answered what is not understood: install the same version of sbon") from error


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text[:MAX_ERROR_LENGTH])
