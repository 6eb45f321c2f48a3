"""Datagrams: an envelope around one typed body (DESIGN: Trust).

The envelope is a msgpack array [version, sender, boot id, kind, body, extensions]: whoever cannot read the body can
still tell from whom it claims to be, and skip it. ``extensions`` is room to grow (seals, traces); unknown ones are
skipped.
"""

from __future__ import annotations

from typing import Any

import msgspec

from overlay.identity import NodeId, is_node_id
from overlay.messages import KIND_OF, KINDS, Message
from sbon.errors import RemoteProtocolError

WIRE_VERSION = 1
#: Below the smallest path MTU in common use, with room for headers and a later seal.
MAX_DATAGRAM_BYTES = 1200
#: What an envelope takes beside its body, at most: for those who fill a datagram.
ENVELOPE_BYTES = 100

#: Everything that msgspec raises for bytes that are not what they should be, and what deep nesting raises.
_DECODING_ERRORS = (msgspec.MsgspecError, ValueError, OverflowError, RecursionError)


class UnknownKindError(RemoteProtocolError):
    """A well-formed datagram of a kind or a version that this node does not know: skipped."""


class Envelope(msgspec.Struct, frozen=True, array_like=True):
    version: int
    sender: NodeId
    boot_id: int
    kind: str
    body: msgspec.Raw
    extensions: dict[str, msgspec.Raw] = {}


_envelopes = msgspec.msgpack.Decoder(Envelope)
_bodies: dict[str, msgspec.msgpack.Decoder[Any]] = {
    kind: msgspec.msgpack.Decoder(body_type) for kind, body_type in KINDS.items()
}


def encode(sender: NodeId, boot_id: int, body: Message) -> bytes:
    """One datagram. Raises ValueError if it is over MAX_DATAGRAM_BYTES: our own mistake, found before it is sent."""
    packed = msgspec.Raw(msgspec.msgpack.encode(body))
    data = msgspec.msgpack.encode(Envelope(WIRE_VERSION, sender, boot_id, KIND_OF[type(body)], packed))
    if len(data) > MAX_DATAGRAM_BYTES:
        raise ValueError(f"a datagram of {len(data)} bytes is over the limit of {MAX_DATAGRAM_BYTES}")
    return data


def decode(data: bytes) -> tuple[Envelope, Message]:
    """The envelope and its body, of the right types; what the values mean is not checked here.

    Raises RemoteProtocolError for anything else, and its subclass UnknownKindError for what may be a newer node's.
    """
    if len(data) > MAX_DATAGRAM_BYTES:
        raise RemoteProtocolError(f"a datagram of {len(data)} bytes")
    try:
        envelope = _envelopes.decode(data)
    except _DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not an envelope: {error}") from error
    if not is_node_id(envelope.sender):
        raise RemoteProtocolError("a sender that is not a node id")
    if envelope.version != WIRE_VERSION:
        raise UnknownKindError(f"wire version {envelope.version}")
    decoder = _bodies.get(envelope.kind)
    if decoder is None:
        raise UnknownKindError(f"a datagram of an unknown kind: {envelope.kind[:32]!r}")
    try:
        return envelope, decoder.decode(envelope.body)
    except _DECODING_ERRORS as error:
        raise RemoteProtocolError(f"not a {envelope.kind}: {error}") from error
