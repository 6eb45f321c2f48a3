"""The cluster's authority: one key, the tokens that it gave out, the certificates that it made (DESIGN: Trust).

It lives in a folder of one host's state directory, which only the daemon can read. Whoever has that folder is the
authority, so it is what to keep a copy of, offline. Times are in seconds since the epoch.
"""

from __future__ import annotations

import os
from contextlib import closing
from pathlib import Path

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.hmac import HMAC

from daemon.durable import write_durably
from daemon.trust.identity_file import MEMBERSHIP_FILE, Membership, StateFolder
from daemon.trust.tokens import TOKEN_ID_BYTES, TOKEN_SECRET_BYTES, Token
from overlay.certificates import CLOCK_SKEW_S, Certificate, RevocationList, cluster_id_of
from overlay.identity import Identity, NodeId, node_id_of
from sbon.errors import SbonError, UnavailableError

AUTHORITY_FOLDER = "authority"
KEY_FILE = "authority.key"
PUBLIC_FILE = "cluster.pub"
BOOK_FILE = "book.json"
MAX_TOKENS = 1000
MAX_HOSTS = 100_000
MAX_TTL_S = 90 * 86400.0


class KeptToken(msgspec.Struct, frozen=True):
    """``used_by`` may use it again until it expires, should the answer have been lost."""

    secret: bytes
    name: str | None
    expires_s: float
    used_by: NodeId | None = None


class Issued(msgspec.Struct, frozen=True):
    """The latest certificate of a host. ``not_after_s``: when all that it ever had have expired; an older one may be
    valid for longer."""

    name: str
    public_key: bytes
    serial: int
    not_after_s: int


class Book(msgspec.Struct):
    """What the authority remembers, all in one file. ``revoked``: last void serial, and when it expires anyway."""

    next_serial: int = 1
    list_number: int = 0
    tokens: dict[str, KeptToken] = {}
    issued: dict[NodeId, Issued] = {}
    revoked: dict[NodeId, tuple[int, int]] = {}


class Authority:
    """Everything here reads or writes files, and blocks while it does."""

    def __init__(self, folder: Path, certificate_s: float) -> None:
        """The authority in ``folder``, whose certificates are valid for ``certificate_s``. Raises SbonError."""
        self._folder = folder
        self._certificate_s = certificate_s
        try:
            self._key = Identity.from_private_bytes((folder / KEY_FILE).read_bytes())
            self._book = self._read_book()
        except OSError as error:
            raise SbonError(f"cannot read the authority in {folder}: {error.strerror}: restore its files") from error
        except ValueError as error:  # msgspec's errors are ValueErrors, too
            raise SbonError(f"the authority in {folder} is damaged ({error}): restore its files") from error

    @classmethod
    def create(cls, folder: Path, certificate_s: float) -> Authority:
        """A new authority. Raises SbonError if there is one."""
        try:
            folder.mkdir(mode=0o700, parents=True)
        except FileExistsError:
            raise SbonError(f"there is an authority in {folder} already: delete it to begin a new cluster") from None
        except OSError as error:
            raise SbonError(f"cannot make {folder}: {error.strerror}: give another folder with --dir") from error
        key = Identity.generate()
        write_durably(folder / BOOK_FILE, msgspec.json.encode(Book()), mode=0o600)
        write_durably(folder / PUBLIC_FILE, key.public_key.hex().encode() + b"\n", mode=0o644)
        write_durably(folder / KEY_FILE, key.private_bytes(), mode=0o600)
        return cls(folder, certificate_s)

    @property
    def public_key(self) -> bytes:
        return self._key.public_key

    @property
    def cluster_id(self) -> bytes:
        return cluster_id_of(self.public_key)

    def hosts(self) -> dict[NodeId, Issued]:
        """Who has a certificate."""
        return dict(self._book.issued)

    def make_token(self, name: str | None, ttl_s: float, now_s: float) -> Token:
        """A token for one host, of that name if one is given."""
        if not 0 < ttl_s <= MAX_TTL_S:
            raise SbonError(f"a token for {ttl_s:g} s: give at most {MAX_TTL_S / 86400:g}d")
        self._forget_expired(now_s)
        if len(self._book.tokens) >= MAX_TOKENS:
            raise SbonError(f"{MAX_TOKENS} tokens are unused: wait until some have expired")
        token = Token(self.cluster_id, os.urandom(TOKEN_ID_BYTES), os.urandom(TOKEN_SECRET_BYTES))
        self._book.tokens[token.token_id.hex()] = KeptToken(token.secret, name, now_s + ttl_s)
        self._save()
        return token

    def enrol(
        self, token_id: bytes, proof: bytes, public_key: bytes, name: str, asked: NodeId, now_s: float
    ) -> Certificate:
        """A certificate for the owner of ``public_key``, who has shown to ``asked`` that it has the token."""
        self._forget_expired(now_s)
        token = self._book.tokens.get(token_id.hex())
        node_id = node_id_of(public_key)
        if token is None:
            raise SbonError("the token is not known, or has expired: get a new one with `sbon token`")
        if not _is_proof(proof, token.secret, proof_message(self.cluster_id, public_key, asked, name)):
            raise SbonError("the token's secret is not right: copy the whole token")
        if token.used_by not in (None, node_id):
            raise SbonError("the token was used by another host: get one for each with `sbon token`")
        if token.name not in (None, name):
            raise SbonError(f'the token is for the name "{token.name}", not "{name}": set node.name')
        certificate = self._issue(public_key, name, now_s)
        self._book.tokens[token_id.hex()] = msgspec.structs.replace(token, used_by=node_id)
        self._save()
        return certificate

    def issue(self, public_key: bytes, name: str, now_s: float) -> Certificate:
        """A certificate without a token: for the authority's own host."""
        certificate = self._issue(public_key, name, now_s)
        self._save()
        return certificate

    def renew(self, node_id: NodeId, now_s: float) -> Certificate:
        """A new certificate for a host that has one."""
        self._forget_expired(now_s)
        issued = self._book.issued.get(node_id)
        if issued is None:
            raise SbonError("this host has no certificate to renew: join again with a new token")
        return self.issue(issued.public_key, issued.name, now_s)

    def revoke(self, name_or_id: str, now_s: float) -> tuple[NodeId, str]:
        """Void all certificates of a host. Returns its id and name. Raises SbonError if there is none."""
        for node_id, issued in self._book.issued.items():
            if name_or_id in (node_id, issued.name):
                break
        else:
            raise SbonError(f'no host "{name_or_id}" has a certificate: see `sbon nodes`, or give its id')
        del self._book.issued[node_id]
        _, before_s = self._book.revoked.get(node_id, (0, 0))  # it may have come back with certificates that end sooner
        self._book.revoked[node_id] = issued.serial, max(issued.not_after_s, before_s)
        self._book.tokens = {key: token for key, token in self._book.tokens.items() if token.used_by != node_id}
        self._book.list_number += 1
        self._forget_expired(now_s)
        self._save()
        return node_id, issued.name

    def revocations(self, now_s: float) -> RevocationList:
        return RevocationList.issue(self._key, self._book.list_number, int(now_s), self._book.revoked)

    def _issue(self, public_key: bytes, name: str, now_s: float) -> Certificate:
        node_id = node_id_of(public_key)
        for other_id, other in self._book.issued.items():
            if other.name == name and other_id != node_id:
                raise SbonError(f'another host has the name "{name}": choose another, or `sbon revoke {name}` first')
        if len(self._book.issued) >= MAX_HOSTS:
            raise SbonError(f"{MAX_HOSTS} hosts have certificates: revoke some")
        serial = self._book.next_serial
        not_after_s = int(now_s + self._certificate_s)
        try:
            certificate = Certificate.issue(self._key, public_key, name, serial, int(now_s) - CLOCK_SKEW_S, not_after_s)
        except ValueError as error:
            raise SbonError(str(error)) from error
        self._book.next_serial += 1
        before = self._book.issued.get(node_id)
        last_s = not_after_s if before is None else max(not_after_s, before.not_after_s)
        self._book.issued[node_id] = Issued(name, public_key, serial, last_s)
        return certificate

    def _forget_expired(self, now_s: float) -> None:
        book = self._book
        book.tokens = {key: token for key, token in book.tokens.items() if now_s < token.expires_s}
        book.issued = {key: issued for key, issued in book.issued.items() if now_s < issued.not_after_s}
        book.revoked = {key: entry for key, entry in book.revoked.items() if now_s < entry[1]}

    def _read_book(self) -> Book:
        return msgspec.json.decode((self._folder / BOOK_FILE).read_bytes(), type=Book)

    def _save(self) -> None:
        """Raises UnavailableError if the disk is full, say: then what it holds counts: mostly what was before."""
        try:
            write_durably(self._folder / BOOK_FILE, msgspec.json.encode(self._book), mode=0o600)
        except UnavailableError:
            self._book = self._read_book()
            raise


def init_cluster(state_dir: Path, name: str, certificate_s: float, now_s: float) -> Authority:
    """Make a cluster whose authority, and first member, is the host with that state directory. Raises SbonError."""
    if state_dir.exists() and state_dir.stat().st_uid != os.geteuid():
        raise SbonError(f"{state_dir} is not yours: run this as the user that the daemon runs as, its owner")
    with closing(StateFolder(state_dir)) as state:
        if state.membership() is not None:
            raise SbonError(
                f"this host belongs to a cluster already: delete {state_dir / MEMBERSHIP_FILE} to begin a new one"
            )
        authority = Authority.create(state_dir / AUTHORITY_FOLDER, certificate_s)
        identity = state.identity()
        certificate = authority.issue(identity.public_key, name, now_s)
        state.keep_revocations(authority.revocations(now_s).encode())
        state.keep_membership(Membership(authority.public_key, certificate.encode()))
    return authority


def proof_message(cluster_id: bytes, public_key: bytes, asked: NodeId, name: str) -> bytes:
    """What the holder of a token authenticates: who it is, and whom it speaks to."""
    return b"sbon enrolment\0" + cluster_id + public_key + bytes.fromhex(asked) + name.encode()


def prove(secret: bytes, message: bytes) -> bytes:
    """HMAC-SHA256: that one has the secret, without saying it."""
    mac = HMAC(secret, SHA256())
    mac.update(message)
    return mac.finalize()


def _is_proof(proof: bytes, secret: bytes, message: bytes) -> bool:
    mac = HMAC(secret, SHA256())
    mac.update(message)
    try:
        mac.verify(proof)
    except InvalidSignature:
        return False
    return True
