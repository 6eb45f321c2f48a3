"""TLS on requests, with both sides known (docs/decisions/trust.md).

The one who is asked shows an X.509 certificate that it made itself, for the key of its identity: the TLS handshake
proves that it has the key, the hash of the key is its node id, and an extension carries the authority's certificate.
The one who asks introduces itself as the first thing inside the channel: its public key, its certificate, and a
signature over the hash of the X.509 certificate that it was shown, which no other server can show (the channel binding
``tls-server-end-point`` of RFC 5929). Python's ssl cannot ask a client for a certificate without an issuer it knows.
"""

from __future__ import annotations

import datetime
import hashlib
import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import trio
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from overlay.certificates import CLUSTER_ID_BYTES, Certificate, Refusal, RefusedError, Trust, cluster_id_of
from overlay.identity import PUBLIC_KEY_BYTES, Identity, NodeId, is_signed, node_id_of
from sbon.errors import RemoteProtocolError
from sbon.frames import decode_body

TlsStream = trio.SSLStream[trio.SocketStream]

MAX_INTRODUCTION_BYTES = 1024
_LABEL = b"sbon request\0"
#: Under 2.25, where a UUID makes an object identifier that nobody else uses.
_EXTENSION = x509.ObjectIdentifier("2.25.151390486243061840957218307386904027341")
_NOT_BEFORE = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
#: RFC 5280, section 4.1.2.5: no end. The certificate in the extension is what expires.
_NOT_AFTER = datetime.datetime(9999, 12, 31, 23, 59, 59, tzinfo=datetime.UTC)


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """``signature`` is over the hash of the server's X.509 certificate; ``certificate`` is empty in an open overlay."""

    cluster_id: bytes
    public_key: bytes
    certificate: bytes
    signature: bytes
    extensions: dict[str, msgspec.Raw] = {}


@dataclass(frozen=True, slots=True)
class Proof:
    """Who has shown to have its key, with which certificate (None in an open overlay), and to which generation of our
    own :class:`Trust`."""

    node_id: NodeId
    certificate: Certificate | None
    generation: int


@dataclass(frozen=True, slots=True)
class Caller:
    """Whose key the asking side has proved to have; ``refusal`` says why it is not a member, None if it is, with
    ``proof``."""

    node_id: NodeId
    public_key: bytes
    refusal: Refusal | None
    proof: Proof | None = None


_introductions = msgspec.msgpack.Decoder(Introduction)


class PeerTls:
    """Both ends of TLS for one node."""

    def __init__(self, identity: Identity, trust: Trust, clock: Callable[[], float]) -> None:
        """``clock`` tells the time in which ``trust`` reckons."""
        self.identity = identity
        self.trust = trust
        self._clock = clock
        self._client_context = _context(ssl.PROTOCOL_TLS_CLIENT)
        self._generation = -1
        self._server_context = self._client_context
        self._own_der = b""

    async def connect(
        self, stream: trio.SocketStream, target: NodeId | None, cluster_id: bytes | None = None
    ) -> tuple[TlsStream, Proof]:
        """Shake hands and introduce this node. Returns the stream and who is at its other end.

        It must be ``target``, or any member if that is None; of ``cluster_id``, if this node has no cluster yet.
        Raises RemoteProtocolError (RefusedError) if it is not, trio.BrokenResourceError if it does not speak TLS.
        """
        tls = trio.SSLStream(stream, self._client_context, https_compatible=True)
        await tls.do_handshake()
        der = tls.getpeercert(binary_form=True)
        proof = self._check_server(der, cluster_id)
        if target is not None and proof.node_id != target:
            raise RemoteProtocolError("the key of another node")
        introduction = msgspec.msgpack.encode(self._introduction(der))
        await tls.send_all(len(introduction).to_bytes(2, "big") + introduction)
        return tls, proof

    async def accept(self, stream: trio.SocketStream) -> tuple[TlsStream, Caller]:
        """Shake hands and hear who is there, member or not.

        Raises RemoteProtocolError for who cannot prove to be who it says, and trio.BrokenResourceError.
        """
        self._refresh()
        own_der = self._own_der
        tls = trio.SSLStream(stream, self._server_context, server_side=True, https_compatible=True)
        await tls.do_handshake()
        length = int.from_bytes(await _receive_exactly(tls, 2), "big")
        if length > MAX_INTRODUCTION_BYTES:
            raise RemoteProtocolError(f"an introduction of {length} bytes")
        return tls, self._check_client(await _receive_exactly(tls, length), own_der)

    def holds(self, proof: Proof) -> bool:
        """Whether what was shown to us would be shown again now, and accepted: whoever keeps a connection asks before
        each use."""
        try:
            self.trust.check_validity(proof.certificate, self._clock())
        except RefusedError:
            return False
        return proof.generation == self.trust.generation

    # --- who is there

    def _check_server(self, der: bytes | None, cluster_id: bytes | None) -> Proof:
        public_key, authority_key, encoded = _read_x509(der)
        trust = self.trust
        if cluster_id is not None:
            trust = Trust(is_open=False, clock_offset_s=self.trust.clock_offset_s)
            if authority_key is None or cluster_id_of(authority_key) != cluster_id:
                raise RefusedError(Refusal.OTHER_CLUSTER)
            trust.authority_key, trust.cluster_id = authority_key, cluster_id
        trust.check_cluster(bytes(CLUSTER_ID_BYTES) if authority_key is None else cluster_id_of(authority_key))
        certificate = trust.check_signature(public_key, encoded)
        trust.check_validity(certificate, self._clock())
        return Proof(node_id_of(public_key), certificate, self.trust.generation)

    def _check_client(self, data: bytes, own_der: bytes) -> Caller:
        said = decode_body(_introductions, data)
        if not is_signed(said.public_key, said.signature, _signed_part(said.cluster_id, own_der)):
            raise RemoteProtocolError("an introduction that its sender did not sign")
        node_id = node_id_of(said.public_key)
        try:
            self.trust.check_cluster(said.cluster_id)
            certificate = self.trust.check_signature(said.public_key, said.certificate)
            self.trust.check_validity(certificate, self._clock())
        except RefusedError as error:
            return Caller(node_id, said.public_key, error.refusal)
        return Caller(node_id, said.public_key, None, Proof(node_id, certificate, self.trust.generation))

    # --- who we are

    def _introduction(self, server_der: bytes | None) -> Introduction:
        cluster_id, certificate = self.trust.cluster_id, self.trust.certificate
        signature = self.identity.sign(_signed_part(cluster_id, server_der or b""))
        encoded = b"" if certificate is None else certificate.encode()
        return Introduction(cluster_id, self.identity.public_key, encoded, signature)

    def _refresh(self) -> None:
        """Show what is true now: a new certificate is in the next handshake."""
        if self._generation != self.trust.generation:
            self._generation = self.trust.generation
            certificate = _make_x509(self.identity, self.trust)
            self._own_der = certificate.public_bytes(Encoding.DER)
            self._server_context = _context(ssl.PROTOCOL_TLS_SERVER)
            _load(self._server_context, certificate, self.identity)


def _signed_part(cluster_id: bytes, server_der: bytes) -> bytes:
    return _LABEL + cluster_id + hashlib.sha256(server_der).digest()


def _context(protocol: int) -> ssl.SSLContext:
    """TLS 1.3 only. Who is there is checked after the handshake, by us."""
    context = ssl.SSLContext(protocol)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    if protocol == ssl.PROTOCOL_TLS_SERVER:
        context.num_tickets = 0  # every connection proves anew who it is
    return context


def _make_x509(identity: Identity, trust: Trust) -> x509.Certificate:
    key = Ed25519PrivateKey.from_private_bytes(identity.private_bytes())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, identity.node_id)])
    membership = b""
    if trust.authority_key is not None and trust.certificate is not None:
        membership = trust.authority_key + trust.certificate.encode()
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_NOT_BEFORE)
        .not_valid_after(_NOT_AFTER)
        .add_extension(x509.UnrecognizedExtension(_EXTENSION, membership), critical=False)
        .sign(key, None)
    )


def _load(context: ssl.SSLContext, certificate: x509.Certificate, identity: Identity) -> None:
    """Python's ssl reads keys from files only: this one is in memory and has no name."""
    key = Ed25519PrivateKey.from_private_bytes(identity.private_bytes())
    descriptor = os.memfd_create("identity", os.MFD_CLOEXEC)
    try:
        os.write(
            descriptor,
            key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            + certificate.public_bytes(Encoding.PEM),
        )
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _read_x509(der: bytes | None) -> tuple[bytes, bytes | None, bytes]:
    """Public key, authority's key (None without), certificate. Raises RemoteProtocolError."""
    try:
        certificate = x509.load_der_x509_certificate(der or b"")
        key = certificate.public_key()
        extension = certificate.extensions.get_extension_for_oid(_EXTENSION).value
    except Exception as error:  # cryptography documents no common class of its parsing errors
        raise RemoteProtocolError(f"an X.509 certificate that is not sbon's: {type(error).__name__}") from error
    if not isinstance(key, Ed25519PublicKey) or not isinstance(extension, x509.UnrecognizedExtension):
        raise RemoteProtocolError("an X.509 certificate that is not sbon's")
    membership = extension.value
    authority_key = membership[:PUBLIC_KEY_BYTES] if membership else None
    return key.public_bytes_raw(), authority_key, membership[PUBLIC_KEY_BYTES:]


async def _receive_exactly(stream: TlsStream, count: int) -> bytes:
    data = b""
    while len(data) < count:
        more = await stream.receive_some(count - len(data))
        if not more:
            raise RemoteProtocolError("a connection that ended before its introduction")
        data += more
    return data
