"""What sessions need of a cipher suite: :mod:`overlay.sealing` is the real one, simulations have a fake one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final, Protocol

from overlay.identity import NodeId

SALT_BYTES: Final = 16
TAG_BYTES: Final = 16


@dataclass(frozen=True, slots=True)
class Claims:
    """Who a peer has proved to be, as far as its credentials go; that it has the keys is proved by the handshake.

    ``agreement_key`` is the peer's public key of this boot, ``expires_at`` when its certificate does, as ``now``.
    """

    node_id: NodeId
    boot_id: int
    agreement_key: bytes
    expires_at: float = math.inf
    name: str = ""


class Channel(Protocol):
    """The two keys of a session, one per direction."""

    def seal(self, counter: int, header: bytes, body: bytes) -> bytes:
        """``header``, the sealed body, and a tag over both. A counter is used once."""

    def open(self, counter: int, data: bytes, header_bytes: int) -> bytes | None:
        """The body of what the peer sealed; None if it did not."""


class Suite(Protocol):
    """How a node shows who it is, and makes keys with others."""

    @property
    def credentials(self) -> bytes:
        """What is shown in a handshake."""

    def salt(self) -> bytes:
        """SALT_BYTES that were never there before."""

    def check(self, credentials: bytes, now: float) -> Claims:
        """Whose ``credentials`` they are. Raises RemoteProtocolError, RefusedError if they are well-formed."""

    def agree(self, claims: Claims, salts: bytes, transcript: bytes, *, initiator: bool) -> Channel:
        """The keys that only this node and the owner of ``claims.agreement_key`` can derive.

        ``transcript`` is all that both have said. Raises RemoteProtocolError.
        """
