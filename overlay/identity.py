"""Who a node is: an Ed25519 key pair, and the hash of its public key as the node's id (DESIGN: Trust).

Keeping the private key in a file is the daemon's business; nothing here does I/O.
"""

from __future__ import annotations

import hashlib
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

#: Hexadecimal BLAKE2b-128 of the raw public key.
NodeId = str
NODE_ID_LENGTH: Final = 32
PRIVATE_KEY_BYTES: Final = 32
PUBLIC_KEY_BYTES: Final = 32
SIGNATURE_BYTES: Final = 64
_HEX = frozenset("0123456789abcdef")


class Identity:
    """A key pair and the id that follows from it."""

    def __init__(self, private_key: Ed25519PrivateKey) -> None:
        self._private_key = private_key
        self.public_key = private_key.public_key().public_bytes_raw()
        self.node_id: NodeId = node_id_of(self.public_key)

    @classmethod
    def generate(cls) -> Identity:
        """A new node. The randomness is the operating system's: keys are never drawn from a seeded generator."""
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def from_private_bytes(cls, data: bytes) -> Identity:
        """The identity kept as 32 raw bytes; ValueError for any other length."""
        if len(data) != PRIVATE_KEY_BYTES:
            raise ValueError(f"a private key has {PRIVATE_KEY_BYTES} bytes, not {len(data)}")
        return cls(Ed25519PrivateKey.from_private_bytes(data))

    def private_bytes(self) -> bytes:
        """32 raw bytes, to be kept where only the daemon can read them."""
        return self._private_key.private_bytes_raw()

    def sign(self, message: bytes) -> bytes:
        """64 bytes. ``message`` begins with a label of its own, so that no signature serves two purposes."""
        return self._private_key.sign(message)


def is_signed(public_key: bytes, signature: bytes, message: bytes) -> bool:
    """Whether the owner of ``public_key`` signed ``message``. False, too, for what is no key at all."""
    try:
        Ed25519PublicKey.from_public_bytes(public_key).verify(signature, message)
    except (InvalidSignature, ValueError):
        return False
    return True


def node_id_of(public_key: bytes) -> NodeId:
    return hashlib.blake2b(public_key, digest_size=NODE_ID_LENGTH // 2).hexdigest()


def is_node_id(text: str) -> bool:
    return len(text) == NODE_ID_LENGTH and _HEX.issuperset(text)
