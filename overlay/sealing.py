"""The cipher suite of sessions (DESIGN: Trust). All primitives are those of the ``cryptography`` package.

A node makes an X25519 key pair at each start, kept in memory only, and signs its public half with its Ed25519 identity.
Two nodes derive two keys, one per direction, by HKDF-SHA256 (RFC 5869) from the X25519 secret (RFC 7748). Its salt are
both fresh salts, its info is the hash of both handshake datagrams: whoever changes a byte of them gets other keys.
Datagrams are sealed with ChaCha20-Poly1305 (RFC 8439); the nonce is the counter, the header is authenticated, too.

Credentials: cluster id (16), boot id (8), agreement key (32), identity's public key (32), signature (64), and the
authority's certificate (empty in an open overlay).
"""

from __future__ import annotations

import hashlib
import math
import os
import struct
from collections.abc import Callable
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from overlay.certificates import Certificate, Refusal, RefusedError, Trust
from overlay.identity import Identity, is_signed, node_id_of
from overlay.records import MAX_BOOT_ID
from overlay.suite import SALT_BYTES, TAG_BYTES, Channel, Claims
from sbon.errors import RemoteProtocolError

_HEAD = struct.Struct(">16sQ32s32s64s")
_BOOT_LABEL: Final = b"sbon boot key\0"
_SESSION_LABEL: Final = b"sbon session\0"
_KEY_BYTES: Final = 32
#: Credentials whose signatures were found good are not verified again while they are among the last so many.
_MAX_VERIFIED: Final = 256


class CipherChannel:
    """Two keys of ChaCha20-Poly1305."""

    __slots__ = ("_receiving", "_sending")

    def __init__(self, sending_key: bytes, receiving_key: bytes) -> None:
        self._sending = ChaCha20Poly1305(sending_key)
        self._receiving = ChaCha20Poly1305(receiving_key)

    def seal(self, counter: int, header: bytes, body: bytes) -> bytes:
        return header + self._sending.encrypt(counter.to_bytes(12, "big"), body, header)

    def open(self, counter: int, data: bytes, header_bytes: int) -> bytes | None:
        if len(data) < header_bytes + TAG_BYTES:
            return None
        try:
            return self._receiving.decrypt(counter.to_bytes(12, "big"), data[header_bytes:], data[:header_bytes])
        except InvalidTag:
            return None


class CipherSuite:
    """The keys of one boot of one node, and whom it trusts."""

    def __init__(
        self, identity: Identity, boot_id: int, trust: Trust, random_bytes: Callable[[int], bytes] = os.urandom
    ) -> None:
        """``random_bytes`` are the operating system's: keys are never drawn from a seeded generator."""
        self._identity = identity
        self._boot_id = boot_id
        self._trust = trust
        self._random_bytes = random_bytes
        self._private_key = X25519PrivateKey.from_private_bytes(random_bytes(_KEY_BYTES))
        self._public_key = self._private_key.public_key().public_bytes_raw()
        self._verified: dict[bytes, tuple[Claims, Certificate | None]] = {}
        self._generation = -1
        self._credentials = b""

    @property
    def credentials(self) -> bytes:
        self._refresh()
        return self._credentials

    def _refresh(self) -> None:
        """Nothing derived from what was trusted before is kept when that has changed."""
        if self._generation == self._trust.generation:
            return
        self._generation = self._trust.generation
        self._verified.clear()
        cluster_id, certificate = self._trust.cluster_id, self._trust.certificate
        signature = self._identity.sign(_signed_part(cluster_id, self._boot_id, self._public_key))
        head = _HEAD.pack(cluster_id, self._boot_id, self._public_key, self._identity.public_key, signature)
        self._credentials = head + (b"" if certificate is None else certificate.encode())

    def salt(self) -> bytes:
        return self._random_bytes(SALT_BYTES)

    def check(self, credentials: bytes, now: float) -> Claims:
        self._refresh()
        found = self._verified.get(credentials)
        if found is None:
            found = self._verify(credentials)
            if len(self._verified) >= _MAX_VERIFIED:
                del self._verified[next(iter(self._verified))]
            self._verified[credentials] = found
        claims, certificate = found
        self._trust.check_validity(certificate, now)
        if certificate is None:
            return claims
        expires_at = certificate.not_after_s - self._trust.clock_offset_s
        return Claims(claims.node_id, claims.boot_id, claims.agreement_key, expires_at, certificate.name)

    def _verify(self, credentials: bytes) -> tuple[Claims, Certificate | None]:
        if len(credentials) < _HEAD.size:
            raise RemoteProtocolError("credentials that are too short")
        cluster_id, boot_id, agreement_key, public_key, signature = _HEAD.unpack_from(credentials)
        self._trust.check_cluster(cluster_id)
        if boot_id > MAX_BOOT_ID:
            raise RemoteProtocolError("a boot id out of range")
        certificate = self._trust.check_signature(public_key, credentials[_HEAD.size :])
        if not is_signed(public_key, signature, _signed_part(cluster_id, boot_id, agreement_key)):
            raise RefusedError(Refusal.FORGED)
        return Claims(node_id_of(public_key), boot_id, agreement_key, math.inf), certificate

    def agree(self, claims: Claims, salts: bytes, transcript: bytes, *, initiator: bool) -> Channel:
        try:
            secret = self._private_key.exchange(X25519PublicKey.from_public_bytes(claims.agreement_key))
        except ValueError as error:  # a point of small order
            raise RemoteProtocolError("an agreement key that is none") from error
        info = _SESSION_LABEL + hashlib.sha256(transcript).digest()
        keys = HKDF(SHA256(), 2 * _KEY_BYTES, salts, info).derive(secret)
        to_responder, to_initiator = keys[:_KEY_BYTES], keys[_KEY_BYTES:]
        return CipherChannel(to_responder, to_initiator) if initiator else CipherChannel(to_initiator, to_responder)


def _signed_part(cluster_id: bytes, boot_id: int, agreement_key: bytes) -> bytes:
    return _BOOT_LABEL + cluster_id + boot_id.to_bytes(8, "big") + agreement_key
