"""Bodies of datagrams to bytes and back. What surrounds them, and who sent them, is :mod:`overlay.sessions`' part."""

from __future__ import annotations

import msgspec

from overlay.messages import KIND_OF, Message
from overlay.session_wire import MAX_BODY_BYTES
from sbon.errors import RemoteProtocolError, UnknownKindError
from sbon.frames import DECODING_ERRORS

_TAGS = frozenset(body_type.__struct_config__.tag for body_type in KIND_OF)
_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_head = msgspec.msgpack.Decoder(list[msgspec.Raw])


def encode(body: Message) -> bytes:
    """Raises ValueError if it does not fit a datagram: our own mistake, found before it is sent."""
    data = _encoder.encode(body)
    if len(data) > MAX_BODY_BYTES:
        raise ValueError(f"a {KIND_OF[type(body)]} of {len(data)} bytes is over the limit of {MAX_BODY_BYTES}")
    return data


def decode(data: bytes) -> Message:
    """The message, of the right types; what the values mean is not checked here.

    Raises RemoteProtocolError for anything else, and its subclass UnknownKindError for what may be a newer node's.
    """
    try:
        message: Message = _messages.decode(data)
        return message
    except DECODING_ERRORS as error:
        if _is_unknown(data):
            raise UnknownKindError("a message of an unknown kind") from error
        raise RemoteProtocolError(f"not a message: {error}") from error


def _is_unknown(data: bytes) -> bool:
    try:
        tag = msgspec.msgpack.decode(_head.decode(data)[0], type=int)
    except (*DECODING_ERRORS, IndexError):
        return False
    return tag not in _TAGS
