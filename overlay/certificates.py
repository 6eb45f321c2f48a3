"""Who belongs to the cluster: certificates and a revocation list, both signed by its authority (DESIGN: Trust).

A certificate says that the authority took the owner of a public key in, from when until when, and under which name. It
travels in every handshake, so it has a compact format of its own and no more in it than this. Times are in whole
seconds since the epoch.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from overlay.identity import (
    PUBLIC_KEY_BYTES,
    SIGNATURE_BYTES,
    Identity,
    NodeId,
    is_signed,
    node_id_of,
)
from sbon.errors import RemoteProtocolError

CLUSTER_ID_BYTES: Final = 16
#: The cluster of those who have no authority.
NO_CLUSTER = bytes(CLUSTER_ID_BYTES)
MAX_NAME_BYTES: Final = 64
MAX_SERIAL: Final = 2**63
#: What a host's clock may be behind: certificates are valid from so much before they were made.
CLOCK_SKEW_S: Final = 3600
#: A list of so many hosts has 320 kB. The authority forgets those whose certificates have expired anyway.
MAX_REVOKED: Final = 10_000

_VERSION: Final = 1
_CERTIFICATE = struct.Struct(">BQQQ32sB")  # version, serial, not before, not after, public key, length of the name
_LIST = struct.Struct(">BQQH")  # version, number, issued, entries
_ENTRY = struct.Struct(">16sQQ")  # node id, last revoked serial, not after
_CERTIFICATE_LABEL: Final = b"sbon certificate\0"
_LIST_LABEL: Final = b"sbon revocations\0"
MAX_CERTIFICATE_BYTES: Final = _CERTIFICATE.size + MAX_NAME_BYTES + SIGNATURE_BYTES
MAX_LIST_BYTES: Final = _LIST.size + MAX_REVOKED * _ENTRY.size + SIGNATURE_BYTES


class Refusal(IntEnum):
    """Why a node is not spoken to."""

    FORGED = 1
    OTHER_CLUSTER = 2
    NO_CERTIFICATE = 3
    EXPIRED = 4
    NOT_YET_VALID = 5
    REVOKED = 6
    OWN_ADDRESS = 7
    FULL = 8
    NOT_READY = 9
    OLD_BOOT = 10

    @property
    def text(self) -> str:
        return _TEXTS[self]

    @property
    def text_for_refused(self) -> str:
        """The same, for the one that is refused by another."""
        return _TEXTS_FOR_REFUSED.get(self, self.text)


_TEXTS = {
    Refusal.FORGED: "a signature is not right",
    Refusal.OTHER_CLUSTER: "it belongs to another cluster",
    Refusal.NO_CERTIFICATE: "it has no certificate: `sbon join HOST:PORT --token TOKEN` brings one",
    Refusal.EXPIRED: "its certificate has expired (or a clock is wrong): join again with a new token",
    Refusal.NOT_YET_VALID: "its certificate is not valid yet: a clock is wrong",
    Refusal.REVOKED: "it was revoked",
    Refusal.OWN_ADDRESS: "this is the node's own address: name another member",
    Refusal.FULL: "it has no room for another peer: try again, or try another member",
    Refusal.NOT_READY: "this host has no certificate yet: `sbon join HOST:PORT --token TOKEN` brings one",
    Refusal.OLD_BOOT: "it was started anew since",
}


_TEXTS_FOR_REFUSED = {
    Refusal.NO_CERTIFICATE: "it wants a certificate: `sbon join HOST:PORT --token TOKEN` brings one",
    Refusal.EXPIRED: "our certificate has expired (or a clock is wrong): join again with a new token",
    Refusal.NOT_YET_VALID: "our certificate is not valid yet: a clock is wrong",
    Refusal.REVOKED: "our certificate was revoked",
    Refusal.NOT_READY: "it has no certificate itself yet",
    Refusal.OLD_BOOT: "it knows a later start of this node: is the clock wrong, or the state directory a copy?",
}


class RefusedError(RemoteProtocolError):
    """Well-formed credentials that are not accepted."""

    def __init__(self, refusal: Refusal) -> None:
        super().__init__(refusal.text)
        self.refusal = refusal


def cluster_id_of(authority_key: bytes) -> bytes:
    """What tells clusters apart: BLAKE2b-128 of the authority's public key."""
    return hashlib.blake2b(authority_key, digest_size=CLUSTER_ID_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Certificate:
    """The authority's word that ``public_key`` belongs to the cluster. Serials grow with every certificate made."""

    serial: int
    not_before_s: int
    not_after_s: int
    public_key: bytes
    name: str
    signature: bytes = b""

    @property
    def node_id(self) -> NodeId:
        return node_id_of(self.public_key)

    def _content(self) -> bytes:
        name = self.name.encode()
        head = (_VERSION, self.serial, self.not_before_s, self.not_after_s, self.public_key, len(name))
        return _CERTIFICATE.pack(*head) + name

    def encode(self) -> bytes:
        return self._content() + self.signature

    @classmethod
    def issue(
        cls, authority: Identity, public_key: bytes, name: str, serial: int, not_before_s: int, not_after_s: int
    ) -> Certificate:
        """A certificate signed by ``authority``. Raises ValueError for what cannot be in one."""
        if len(public_key) != PUBLIC_KEY_BYTES or not _is_name(name) or not 0 < serial < MAX_SERIAL:
            raise ValueError("a certificate needs a public key, a name of 1 to 64 printable bytes and a serial")
        unsigned = cls(serial, not_before_s, not_after_s, public_key, name)
        signature = authority.sign(_CERTIFICATE_LABEL + unsigned._content())
        return cls(serial, not_before_s, not_after_s, public_key, name, signature)

    @classmethod
    def decode(cls, data: bytes) -> Certificate:
        """Read without checking the signature. Raises RemoteProtocolError."""
        if not _CERTIFICATE.size + SIGNATURE_BYTES < len(data) <= MAX_CERTIFICATE_BYTES:
            raise RemoteProtocolError(f"a certificate of {len(data)} bytes")
        version, serial, not_before_s, not_after_s, public_key, name_bytes = _CERTIFICATE.unpack_from(data)
        if version != _VERSION or _CERTIFICATE.size + name_bytes + SIGNATURE_BYTES != len(data):
            raise RemoteProtocolError("not a certificate")
        try:
            name = data[_CERTIFICATE.size : -SIGNATURE_BYTES].decode()
        except UnicodeDecodeError as error:
            raise RemoteProtocolError("a certificate's name that is not UTF-8") from error
        if not _is_name(name):
            raise RemoteProtocolError("a certificate's name that is not printable")
        return cls(serial, not_before_s, not_after_s, public_key, name, data[-SIGNATURE_BYTES:])

    def is_signed_by(self, authority_key: bytes) -> bool:
        return is_signed(authority_key, self.signature, _CERTIFICATE_LABEL + self._content())


def _is_name(name: str) -> bool:
    return name.isprintable() and 0 < len(name.encode()) <= MAX_NAME_BYTES


@dataclass(frozen=True, slots=True)
class RevocationList:
    """Whose certificates are void. Of two lists the one with the higher ``number`` counts.

    ``entries`` maps a node to the last serial that is void, so that a host may come back with a new token, and to the
    time when the last of those certificates expires by itself.
    """

    number: int
    issued_s: int
    entries: Mapping[NodeId, tuple[int, int]]
    signature: bytes = b""

    def _content(self) -> bytes:
        parts = [_LIST.pack(_VERSION, self.number, self.issued_s, len(self.entries))]
        parts += [_ENTRY.pack(bytes.fromhex(node_id), *self.entries[node_id]) for node_id in sorted(self.entries)]
        return b"".join(parts)

    def encode(self) -> bytes:
        return self._content() + self.signature

    @classmethod
    def issue(
        cls, authority: Identity, number: int, issued_s: int, entries: Mapping[NodeId, tuple[int, int]]
    ) -> RevocationList:
        """A list signed by ``authority``. Raises ValueError if it is too long."""
        if len(entries) > MAX_REVOKED:
            raise ValueError(f"more than {MAX_REVOKED} revoked hosts: make a new cluster")
        unsigned = cls(number, issued_s, dict(entries))
        return cls(number, issued_s, unsigned.entries, authority.sign(_LIST_LABEL + unsigned._content()))

    @classmethod
    def decode(cls, data: bytes) -> RevocationList:
        """Read without checking the signature. Raises RemoteProtocolError."""
        if not _LIST.size + SIGNATURE_BYTES <= len(data) <= MAX_LIST_BYTES:
            raise RemoteProtocolError(f"a revocation list of {len(data)} bytes")
        version, number, issued_s, count = _LIST.unpack_from(data)
        if version != _VERSION or _LIST.size + count * _ENTRY.size + SIGNATURE_BYTES != len(data):
            raise RemoteProtocolError("not a revocation list")
        entries = {
            node_id.hex(): (serial, not_after_s)
            for node_id, serial, not_after_s in _ENTRY.iter_unpack(data[_LIST.size : -SIGNATURE_BYTES])
        }
        decoded = cls(number, issued_s, entries, data[-SIGNATURE_BYTES:])
        if decoded.encode() != data:
            raise RemoteProtocolError("a revocation list that is not in order")
        return decoded

    def is_signed_by(self, authority_key: bytes) -> bool:
        return is_signed(authority_key, self.signature, _LIST_LABEL + self._content())

    def revokes(self, node_id: NodeId, serial: int) -> bool:
        entry = self.entries.get(node_id)
        return entry is not None and serial <= entry[0]


class Trust:
    """Whom this node believes to belong to its cluster; shared by datagrams and requests.

    It is *open* (no authority: anybody with a key is accepted), *closed* (a host that has not joined: nobody is), or
    has an authority, and this node's certificate by it. ``clock_offset_s`` is what makes seconds since the epoch of
    the node's ``now``; the shell keeps it right.
    """

    def __init__(self, *, is_open: bool, clock_offset_s: float = 0.0) -> None:
        self.is_open = is_open
        self.clock_offset_s = clock_offset_s
        self.authority_key: bytes | None = None
        self.cluster_id = NO_CLUSTER
        self.certificate: Certificate | None = None
        self.revocations: RevocationList | None = None
        #: Counts up with every change, for those who keep what they have derived from this.
        self.generation = 0

    @property
    def is_ready(self) -> bool:
        """Whether anybody can be accepted at all."""
        return self.is_open or self.authority_key is not None

    def enrol(self, authority_key: bytes, certificate: Certificate) -> None:
        """Belong to a cluster from now on, or have a new certificate. Raises RemoteProtocolError if it is not good."""
        if not certificate.is_signed_by(authority_key):
            raise RefusedError(Refusal.FORGED)
        if self.authority_key != authority_key:
            self.revocations = None
        self.is_open = False
        self.authority_key = authority_key
        self.cluster_id = cluster_id_of(authority_key)
        self.certificate = certificate
        self.generation += 1

    def update_revocations(self, revocations: RevocationList) -> bool:
        """Take a list over if it is newer. Returns whether it was; raises RemoteProtocolError if it is forged."""
        if self.revocations is not None and revocations.number <= self.revocations.number:
            return False
        if self.authority_key is None or not revocations.is_signed_by(self.authority_key):
            raise RefusedError(Refusal.FORGED)
        self.revocations = revocations
        self.generation += 1
        return True

    def check_cluster(self, cluster_id: bytes) -> None:
        """Raise RefusedError unless members of that cluster may be accepted: the cheap part, before any signature."""
        if not self.is_ready:
            raise RefusedError(Refusal.NOT_READY)
        if cluster_id != self.cluster_id:
            raise RefusedError(Refusal.NO_CERTIFICATE if cluster_id == NO_CLUSTER else Refusal.OTHER_CLUSTER)

    def check_signature(self, public_key: bytes, encoded: bytes) -> Certificate | None:
        """The certificate of the owner of ``public_key``, None in an open overlay. Raises RemoteProtocolError.

        The costly part, and true for good; :meth:`check_validity` must follow each time.
        """
        if self.authority_key is None:
            return None
        if not encoded:
            raise RefusedError(Refusal.NO_CERTIFICATE)
        certificate = Certificate.decode(encoded)
        if certificate.public_key != public_key or not certificate.is_signed_by(self.authority_key):
            raise RefusedError(Refusal.FORGED)
        return certificate

    def check_validity(self, certificate: Certificate | None, now: float) -> None:
        """Raise RefusedError unless ``certificate`` is valid now."""
        if certificate is None:
            return
        time_s = now + self.clock_offset_s
        if time_s < certificate.not_before_s:
            raise RefusedError(Refusal.NOT_YET_VALID)
        if time_s >= certificate.not_after_s:
            raise RefusedError(Refusal.EXPIRED)
        if self.revocations is not None and self.revocations.revokes(certificate.node_id, certificate.serial):
            raise RefusedError(Refusal.REVOKED)
