"""Belonging to a cluster, while the daemon runs: joining with a token, renewing, revoking (docs/trust.md).

A host without a certificate asks any member; one that is not the authority's own passes the question on. What a host
has is kept in its state directory. Revocation lists are signed and numbered: a newer one is told to all neighbours at
once, who do the same, and every host compares numbers with a random neighbour once a minute.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Awaitable, Callable, Sequence
from functools import partial

import msgspec
import trio

from daemon.config import TrustConfig, parse_address
from daemon.control.messages import Done as ControlDone
from daemon.control.messages import MakeToken, Renew, Revoke, TokenReply
from daemon.control.server import Control
from daemon.events import Events
from daemon.peering.peer_tls import Caller
from daemon.peering.requests import Done, PeerRequests
from daemon.trust.authority import AUTHORITY_FOLDER, Authority, proof_message, prove
from daemon.trust.identity_file import Membership, StateFolder
from daemon.trust.tokens import Token
from overlay.certificates import Certificate, RevocationList, Trust, cluster_id_of
from overlay.identity import Identity, NodeId, node_id_of
from overlay.records import Address, NodeRecord
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError

log = logging.getLogger("sbon.trust")

#: A certificate is renewed when so much of its life is left, and after a failure again so often.
RENEW_AT = 1 / 3
CHECK_PERIOD_S = 60.0
ENROL_TIMEOUT_S = 20.0
NEWS_TIMEOUT_S = 10.0
MAX_NEWS_AT_ONCE = 8


# --- what hosts say to each other


class Enrol(msgspec.Struct, frozen=True):
    """I have the token: give me a certificate. ``proof`` is :func:`daemon.trust.authority.prove` of who we both are."""

    token_id: bytes
    proof: bytes
    name: str


class PassedOn(msgspec.Struct, frozen=True):
    """Somebody without a certificate, the owner of ``public_key``, has said ``enrol`` to me."""

    public_key: bytes
    enrol: Enrol


class Enrolled(msgspec.Struct, frozen=True):
    """``authority_*`` is the host where it can be renewed."""

    authority_key: bytes
    certificate: bytes
    revocations: bytes
    authority_id: NodeId
    authority_host: str
    authority_port: int


class RenewCertificate(msgspec.Struct, frozen=True):
    """My certificate ends soon: give me another. Answered by Enrolled."""


class CompareRevocations(msgspec.Struct, frozen=True):
    """I have the list of that ``number`` (-1: none). Answered by RevocationNews, empty if it is not newer."""

    number: int


class RevocationNews(msgspec.Struct, frozen=True):
    """``revocations`` is an encoded list, or empty; ``number`` is that of the sender's own."""

    number: int
    revocations: bytes


class TrustService:
    """Handlers of the verbs token, renew and revoke, and what belongs to them between hosts."""

    def __init__(
        self,
        config: TrustConfig,
        state: StateFolder,
        identity: Identity,
        trust: Trust,
        requests: PeerRequests,
        events: Events,
        own_record: Callable[[], NodeRecord],
        neighbours: Callable[[], Sequence[NodeRecord]],
    ) -> None:
        """Reads what the state directory knows; raises SbonError if it is damaged. ``trust`` is filled in."""
        self._config = config
        self._state = state
        self._identity = identity
        self._trust = trust
        self._requests = requests
        self._events = events
        self._own_record = own_record
        self._neighbours = neighbours
        #: Called after this host has come into a cluster, after it has a new certificate, and, with their ids, after
        #: hosts were revoked.
        self.on_new_cluster: Callable[[], None] = lambda: None
        self.on_new_certificate: Callable[[], None] = lambda: None
        self.on_revoked: Callable[[Sequence[NodeId]], None] = lambda node_ids: None
        self._authority: Authority | None = None
        #: The authority's book has one writer at a time, in a thread, and nobody reads in it meanwhile.
        self._writing = trio.Lock()
        self.set_clock()
        self._membership = state.membership()
        if self._membership is not None:
            self._load(self._membership)
        folder = state.path / AUTHORITY_FOLDER
        if self._membership is not None and folder.exists():
            self._authority = Authority(folder, config.certificate_days * 86400)
            trust.update_revocations(self._authority.revocations(time.time()))
        self._to_tell = trio.Event()
        self._told_by: NodeId = ""

    def register(self, control: Control) -> None:
        control.handle(MakeToken, self._make_token)
        control.handle(Renew, self._renew_by_hand)
        control.handle(Revoke, self._revoke)
        self._requests.handle_strangers(Enrol, self._answer_enrol)
        self._requests.handle(PassedOn, self._answer_passed_on)
        self._requests.handle(RenewCertificate, self._answer_renew)
        self._requests.handle(CompareRevocations, self._answer_compare)
        self._requests.handle(RevocationNews, self._answer_news)

    def describe(self) -> str:
        """ "authority", "member", "open" or "closed"."""
        if self._trust.authority_key is None:
            return "open" if self._trust.is_open else "closed"
        return "member" if self._authority is None else "authority"

    def set_clock(self) -> None:
        """What the wall clock says now: it may have been set."""
        self._trust.clock_offset_s = time.time() - trio.current_time()

    def _load(self, membership: Membership) -> None:
        try:
            self._trust.enrol(membership.authority_key, Certificate.decode(membership.certificate))
            encoded = self._state.revocations()
            if encoded is not None:
                self._trust.update_revocations(RevocationList.decode(encoded))
        except RemoteProtocolError as error:
            raise SbonError(
                f"the certificate or the revocations in {self._state.path} are damaged ({error}): "
                "delete membership.json and revocations there, and join again with a new token"
            ) from error
        certificate = self._trust.certificate
        if certificate is not None and certificate.public_key != self._identity.public_key:
            raise SbonError(f"the certificate in {self._state.path} is for another key: join again with a new token")

    # --- joining

    async def enrol(self, address: Address, text: str) -> None:
        """Have a certificate, from the cluster of the token ``text`` and by way of its member at ``address``."""
        token = Token.parse(text)
        if self._trust.authority_key is not None and token.cluster_id != self._trust.cluster_id:
            raise SbonError(
                f"this host belongs to another cluster than the token: delete {self._state.path}/membership.json, "
                "and start it anew, to change"
            )
        name = self._own_record().name

        def make_request(asked: NodeId) -> Enrol:
            message = proof_message(token.cluster_id, self._identity.public_key, asked, name)
            return Enrol(token.token_id, prove(token.secret, message), name)

        answer = await self._requests.introduce(address, token.cluster_id, make_request, Enrolled, ENROL_TIMEOUT_S)
        if cluster_id_of(answer.authority_key) != token.cluster_id:
            raise UnavailableError("the node answered for another cluster: ask another member")
        await self._take(answer)
        self._events.publish("enrolled", cluster=token.cluster_id.hex()[:16])

    async def _take(self, answer: Enrolled) -> None:
        """Use a certificate from now on, and keep it."""
        try:
            certificate = Certificate.decode(answer.certificate)
            if certificate.public_key != self._identity.public_key:
                raise RemoteProtocolError("it is for another key")
            if not certificate.is_signed_by(answer.authority_key):
                raise RemoteProtocolError("it is by somebody else than the authority")
        except RemoteProtocolError as error:
            raise UnavailableError(f"the certificate that was brought back is not good: {error}") from error
        membership = Membership(
            answer.authority_key,
            answer.certificate,
            answer.authority_id,
            answer.authority_host,
            answer.authority_port,
        )
        # First of all: as long as it cannot be kept, another one is asked for.
        await trio.to_thread.run_sync(self._state.keep_membership, membership)
        self._membership = membership
        cluster_id = self._trust.cluster_id
        self._trust.enrol(answer.authority_key, certificate)
        if self._trust.cluster_id != cluster_id:
            self.on_new_cluster()
        self.on_new_certificate()
        if answer.revocations:
            await self._take_revocations(answer.revocations, told_by=answer.authority_id)

    async def _answer_enrol(self, request: Enrol, caller: Caller) -> Enrolled:
        own_id = self._identity.node_id
        if self._authority is not None:
            return await self._enrol_at_authority(request, caller.public_key, own_id)
        passed_on = PassedOn(caller.public_key, request)
        return await self._requests.request(self._authority_place(), passed_on, Enrolled, ENROL_TIMEOUT_S / 2)

    async def _answer_passed_on(self, request: PassedOn, sender: NodeId) -> Enrolled:
        return await self._enrol_at_authority(request.enrol, request.public_key, sender)

    async def _enrol_at_authority(self, request: Enrol, public_key: bytes, asked: NodeId) -> Enrolled:
        authority = self._need_authority()
        enrol = partial(authority.enrol, request.token_id, request.proof, public_key, request.name, asked, time.time())
        enrolled = await self._enrolled(authority, enrol)
        self._events.publish("host-enrolled", peer=request.name, node_id=node_id_of(public_key))
        return enrolled

    async def _enrolled(self, authority: Authority, make: Callable[[], Certificate]) -> Enrolled:
        async with self._writing:
            certificate = await trio.to_thread.run_sync(make)
            revocations = authority.revocations(time.time()).encode()
        own = self._own_record()
        return Enrolled(authority.public_key, certificate.encode(), revocations, own.node_id, own.host, own.port)

    def _need_authority(self) -> Authority:
        if self._authority is None:
            raise SbonError("the cluster's authority is not on this host: ask the one where `sbon init` was run")
        return self._authority

    def _authority_place(self) -> Address:
        membership = self._membership
        if membership is None:
            raise SbonError("this host has no certificate: `sbon join HOST:PORT --token TOKEN` brings one")
        if self._config.authority is not None:
            return parse_address(self._config.authority)
        return membership.authority_host, membership.authority_port

    # --- renewing

    async def _renew(self) -> None:
        if self._authority is not None:
            renew = partial(self._authority.renew, self._identity.node_id, time.time())
            await self._take(await self._enrolled(self._authority, renew))
        else:
            place = self._authority_place()
            answer = await self._requests.request(place, RenewCertificate(), Enrolled, ENROL_TIMEOUT_S)
            if answer.authority_key != self._trust.authority_key:
                raise UnavailableError(f"the node at {place[0]}:{place[1]} answered for another cluster")
            await self._take(answer)
        self._events.publish("certificate-renewed", expires_s=self.certificate_expires_s())

    def certificate_expires_s(self) -> float | None:
        """Seconds since the epoch; None without a certificate."""
        certificate = self._trust.certificate
        return None if certificate is None else float(certificate.not_after_s)

    async def _answer_renew(self, request: RenewCertificate, sender: NodeId) -> Enrolled:
        authority = self._need_authority()
        return await self._enrolled(authority, partial(authority.renew, sender, time.time()))

    async def _renew_by_hand(self, request: Renew) -> ControlDone:
        await self._renew()
        return ControlDone(f"the certificate is valid until {_date(self.certificate_expires_s())}")

    async def run(self) -> None:
        """Renew in time, and hear and tell of revocations, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_up)
            nursery.start_soon(self._spread)

    async def _keep_up(self) -> None:
        while True:
            self.set_clock()
            if self._is_renewal_due():
                await self._try(self._renew, "cannot renew this host's certificate")
            if self._trust.authority_key is not None and (neighbours := self._neighbours()):
                await self._try(partial(self._compare, random.choice(neighbours)), "cannot compare revocations")
            # Not all hosts at the same time, if all have started at the same time.
            await trio.sleep(CHECK_PERIOD_S * random.uniform(0.75, 1.25))

    def _is_renewal_due(self) -> bool:
        certificate = self._trust.certificate
        if certificate is None:
            return False
        life_s = certificate.not_after_s - certificate.not_before_s
        return certificate.not_after_s - time.time() < RENEW_AT * life_s

    async def _try(self, action: Callable[[], Awaitable[None]], failure: str) -> None:
        try:
            await action()
        except SbonError as error:
            log.warning("%s: %s", failure, error)

    # --- tokens and revocations

    async def _make_token(self, request: MakeToken) -> TokenReply:
        authority = self._need_authority()
        now_s = time.time()
        async with self._writing:
            token = await trio.to_thread.run_sync(authority.make_token, request.name, request.ttl_s, now_s)
        return TokenReply(token.text, now_s + request.ttl_s)

    async def _revoke(self, request: Revoke) -> ControlDone:
        authority = self._need_authority()
        now_s = time.time()
        own = self._own_record()
        if request.node in (own.name, own.node_id):
            raise SbonError("this host has the authority: it cannot revoke itself")
        async with self._writing:
            node_id, name = await trio.to_thread.run_sync(authority.revoke, request.node, now_s)
            revocations = authority.revocations(now_s).encode()
        await self._take_revocations(revocations, told_by=self._identity.node_id)
        return ControlDone(f"revoked {name} ({node_id}): every member hears of it within a minute or two")

    @property
    def _number(self) -> int:
        revocations = self._trust.revocations
        return -1 if revocations is None else revocations.number

    def _news(self, number: int) -> RevocationNews:
        """What somebody should know who has the list of that ``number``."""
        revocations = self._trust.revocations
        encoded = revocations.encode() if revocations is not None and revocations.number > number else b""
        return RevocationNews(self._number, encoded)

    async def _take_revocations(self, encoded: bytes, told_by: NodeId) -> None:
        """Believe a list if it is newer, act on it, tell the neighbours, and keep it.

        Raises UnavailableError if it cannot be kept.
        """
        before = {} if self._trust.revocations is None else self._trust.revocations.entries
        try:
            revocations = RevocationList.decode(encoded)
            if not self._trust.update_revocations(revocations):
                return
        except RemoteProtocolError as error:
            raise UnavailableError(f"a revocation list that is not good: {error}") from error
        self.on_revoked([host for host, entry in revocations.entries.items() if before.get(host) != entry])
        self._events.publish("revocations", number=revocations.number, revoked=len(revocations.entries))
        self._told_by = told_by
        self._to_tell.set()
        await trio.to_thread.run_sync(self._state.keep_revocations, encoded)

    async def _spread(self) -> None:
        """Whoever told us waits for us to understand, not for our neighbours."""
        while True:
            await self._to_tell.wait()
            self._to_tell = trio.Event()
            await self._tell_neighbours()

    async def _tell_neighbours(self) -> None:
        limit = trio.CapacityLimiter(MAX_NEWS_AT_ONCE)
        news = self._news(-2)

        async def tell(record: NodeRecord) -> None:
            async with limit:
                try:
                    await self._requests.request(record, news, Done, NEWS_TIMEOUT_S)
                except SbonError as error:
                    log.debug("cannot tell %s of revocations: %s", record.name, error)

        async with trio.open_nursery() as nursery:
            for record in self._neighbours():
                if record.node_id != self._told_by:
                    nursery.start_soon(tell, record)

    async def _compare(self, record: NodeRecord) -> None:
        """With one neighbour: whoever has the older list gets the newer."""
        theirs = await self._requests.request(record, CompareRevocations(self._number), RevocationNews, NEWS_TIMEOUT_S)
        if theirs.revocations:
            await self._take_revocations(theirs.revocations, told_by=record.node_id)
        elif theirs.number < self._number:
            await self._requests.request(record, self._news(theirs.number), Done, NEWS_TIMEOUT_S)

    async def _answer_compare(self, request: CompareRevocations, sender: NodeId) -> RevocationNews:
        return self._news(request.number)

    async def _answer_news(self, request: RevocationNews, sender: NodeId) -> Done:
        if request.revocations:
            await self._take_revocations(request.revocations, told_by=sender)
        return Done()


def _date(time_s: float | None) -> str:
    return "" if time_s is None else time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(time_s))
