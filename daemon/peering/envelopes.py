"""How requests and their replies look on the wire, and how they are read."""

from __future__ import annotations

from functools import cache
from typing import Any, Final, TypeVar, get_args, get_type_hints

import msgspec

from overlay.identity import NodeId
from overlay.records import NodeRecord
from sbon.coordinate import Coordinate, check_sample
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError
from sbon.frames import DECODING_ERRORS, TOLD_ERRORS
from sbon.placement.questions import KnownPath

REQUEST_VERSION: Final = 2
MAX_ERROR_LENGTH: Final = 2000
#: What members say about places, in whatever message it is.
_CHECKED: Final = (NodeRecord, Coordinate, KnownPath)

R = TypeVar("R", bound=msgspec.Struct)


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
    return next(kind.__name__ for kind in type(error).__mro__ if kind.__name__ in TOLD_ERRORS)


def decode_request(data: bytes, speaker: NodeId) -> RequestEnvelope:
    """A request of the one who speaks. Raises RemoteProtocolError."""
    try:
        envelope = _requests.decode(data)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a request: {error}") from error
    if envelope.sender != speaker:
        raise RemoteProtocolError("a sender that is not the one who speaks")
    return envelope


def decode_body(decoder: msgspec.msgpack.Decoder[Any], envelope: RequestEnvelope, dimensions: int) -> Any:
    """What is asked; the coordinates in it have so many ``dimensions``. Raises RemoteProtocolError."""
    try:
        message = decoder.decode(envelope.body)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a {envelope.kind}: {error}") from error
    check_places(message, dimensions)
    return message


def decode_reply(data: bytes) -> ReplyEnvelope:
    """Raises RemoteProtocolError."""
    try:
        return _replies.decode(data)
    except DECODING_ERRORS as error:
        raise RemoteProtocolError("what is no reply") from error


def read_reply(reply: ReplyEnvelope, reply_type: type[R], peer: str, dimensions: int) -> R:
    """What was answered. Raises the SbonError that was, UnavailableError if it is of another type, or if there are
    coordinates in it that cannot be."""
    if reply.error_kind:
        raise TOLD_ERRORS.get(reply.error_kind, SbonError)(_one_line(reply.error))
    try:
        answer = msgspec.msgpack.decode(reply.body, type=reply_type)
        check_places(answer, dimensions)
        return answer
    except (RemoteProtocolError, *DECODING_ERRORS) as error:
        raise UnavailableError(f"{peer} answered what is not understood: install the same version of sbon") from error


def check_places(message: msgspec.Struct, dimensions: int) -> None:
    """Raise RemoteProtocolError unless all records, coordinates and paths anywhere in ``message`` can be true.

    Who works with them, also much later and in tasks of its own, relies on that.
    """
    pending: list[Any] = [message]  # no recursion: a message may be as deep as msgspec lets it be
    while pending:
        part = pending.pop()
        if isinstance(part, NodeRecord | Coordinate):
            part.check(dimensions)
        elif isinstance(part, KnownPath):
            check_sample(part.rtt_ms)
            part.place.check(dimensions)
        elif isinstance(part, msgspec.Struct):
            pending += [getattr(part, name) for name in _fields_with_places(type(part))]
        elif isinstance(part, dict):
            pending += part.values()
        elif isinstance(part, list | tuple | set | frozenset):
            pending += part


@cache
def _fields_with_places(kind: type[msgspec.Struct]) -> tuple[str, ...]:
    """The fields in which there may be something to check: in most messages none."""
    return tuple(name for name, annotation in get_type_hints(kind).items() if _may_hold_places(annotation))


def _may_hold_places(annotation: Any) -> bool:
    pending, seen = [annotation], set()
    while pending:
        found = pending.pop()
        if found in _CHECKED:
            return True
        if found in seen:  # trees are made of themselves
            continue
        seen.add(found)
        pending += get_args(found)
        if isinstance(found, type) and issubclass(found, msgspec.Struct):
            pending += get_type_hints(found).values()
    return False


def _one_line(text: str) -> str:
    return "".join(character if character.isprintable() else " " for character in text[:MAX_ERROR_LENGTH])
