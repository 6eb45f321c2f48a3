"""A fake cipher suite: the same sizes and the same steps as :mod:`overlay.sealing`, and no cryptography at all.

For simulations of thousands of nodes and for tests. Anybody could forge what it "seals": a tag is a mere mark of the
session, the same on every datagram of a direction. Never for a real socket.
"""

from __future__ import annotations

import hashlib
import math
import random
import struct
from sys import intern

from overlay.identity import NodeId
from overlay.suite import SALT_BYTES, TAG_BYTES, Channel, Claims
from sbon.errors import RemoteProtocolError

_HEAD = struct.Struct(">16sQ")
#: What the real ones have with a certificate for a name of ten characters.
CREDENTIALS_BYTES = 152 + 58 + 10 + 64
_PADDING = bytes(CREDENTIALS_BYTES - _HEAD.size)


class FakeChannel:
    """Marks instead of seals."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self, sending: bytes, receiving: bytes) -> None:
        self._sending = sending
        self._receiving = receiving

    def seal(self, counter: int, header: bytes, body: bytes) -> bytes:
        return header + body + self._sending

    def open(self, counter: int, data: bytes, header_bytes: int) -> bytes | None:
        return data[header_bytes:-TAG_BYTES] if data[-TAG_BYTES:] == self._receiving else None


class FakeSuite:
    """Believes every node id that it is told. ``rng`` makes the salts, so that a simulation can be replayed."""

    __slots__ = ("_rng", "credentials")

    def __init__(self, node_id: NodeId, boot_id: int, rng: random.Random) -> None:
        self._rng = rng
        self.credentials = _HEAD.pack(bytes.fromhex(node_id), boot_id) + _PADDING

    def salt(self) -> bytes:
        return self._rng.randbytes(SALT_BYTES)

    def check(self, credentials: bytes, now: float) -> Claims:
        if len(credentials) != CREDENTIALS_BYTES:
            raise RemoteProtocolError("credentials of another length")
        node_id, boot_id = _HEAD.unpack_from(credentials)
        return Claims(intern(node_id.hex()), boot_id, b"", math.inf)

    def agree(self, claims: Claims, salts: bytes, transcript: bytes, *, initiator: bool) -> Channel:
        digest = hashlib.blake2b(transcript, digest_size=2 * TAG_BYTES).digest()
        first, second = digest[:TAG_BYTES], digest[TAG_BYTES:]
        return FakeChannel(first, second) if initiator else FakeChannel(second, first)
