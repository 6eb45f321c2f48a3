"""Bodies of datagrams to bytes and back. What surrounds them, and who they are from, is :mod:`overlay.sessions`' part."""

from __future__ import annotations

import msgspec

from overlay.messages import KIND_OF, Message
from sbon.errors import RemoteProtocolError

#: Below the smallest path MTU in common use, sealing included.
MAX_DATAGRAM_BYTES = 1200
#: What sealing may add.
MAX_SEAL_BYTES = 40
MAX_BODY_BYTES = MAX_DATAGRAM_BYTES - MAX_SEAL_BYTES

#: Everything that msgspec raises for bytes that are not what they should be, and what deep nesting raises.
_DECODING_ERRORS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)

_TAGS = frozenset(body_type.__struct_config__.tag for body_type in KIND_OF)
_encoder = msgspec.msgpack.Encoder()
_messages = msgspec.msgpack.Decoder(Message)
_head = msgspec.msgpack.Decoder(list[msgspec.Raw])


class UnknownKindError(RemoteProtocolError):
    """Well-formed, but of a kind or a version that this node does not know: skipped."""


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
        return _messages.decode(data)
    except _DECODING_ERRORS as error:
        if _is_unknown(data):
            raise UnknownKindError("a message of an unknown kind") from error
        raise RemoteProtocolError(f"not a message: {error}") from error


def _is_unknown(data: bytes) -> bool:
    try:
        tag = msgspec.msgpack.decode(_head.decode(data)[0], type=int)
    except (*_DECODING_ERRORS, IndexError):
        return False
    return tag not in _TAGS
