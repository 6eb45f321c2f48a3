from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from overlay.certificates import (
    MAX_CERTIFICATE_BYTES,
    MAX_NAME_BYTES,
    Certificate,
    RefusedError,
    RevocationList,
    Trust,
    cluster_id_of,
)
from overlay.identity import Identity
from overlay.sessions import GIVE_UP_S
from sbon.errors import RemoteProtocolError
from tests.overlay.session_nodes import AUTHORITY, EPOCH_S, SessionNode, Wire, certificate, cluster_trust, identity

OTHER_AUTHORITY = Identity.from_private_bytes(b"o" * 32)
names = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=16)
times = st.integers(0, 2**62)
entries = st.dictionaries(st.binary(min_size=16, max_size=16).map(bytes.hex), st.tuples(times, times), max_size=20)


@given(names, st.integers(1, 2**62), times, times)
def test_a_certificate_is_read_as_it_was_written(name: str, serial: int, from_s: int, until_s: int) -> None:
    made = Certificate.issue(AUTHORITY, identity(1).public_key, name, serial, from_s, until_s)
    data = made.encode()
    assert len(data) <= MAX_CERTIFICATE_BYTES
    assert Certificate.decode(data) == made
    assert made.is_signed_by(AUTHORITY.public_key)
    assert not made.is_signed_by(OTHER_AUTHORITY.public_key)
    assert made.node_id == identity(1).node_id


@given(entries, times)
def test_a_list_is_read_as_it_was_written(revoked: dict[str, tuple[int, int]], number: int) -> None:
    made = RevocationList.issue(AUTHORITY, number, EPOCH_S, revoked)
    assert RevocationList.decode(made.encode()) == made
    assert made.is_signed_by(AUTHORITY.public_key)
    assert not made.is_signed_by(OTHER_AUTHORITY.public_key)


@given(st.data())
@settings(max_examples=200)
def test_what_was_changed_is_not_accepted(data: st.DataObject) -> None:
    revocations = RevocationList.issue(AUTHORITY, 3, EPOCH_S, {identity(1).node_id: (5, EPOCH_S)})
    for made, kind in ((certificate(1), Certificate), (revocations, RevocationList)):
        changed = bytearray(made.encode())
        position = data.draw(st.integers(0, len(changed) - 1))
        changed[position] ^= data.draw(st.integers(1, 255))
        if data.draw(st.booleans()):
            del changed[position:]
        try:
            decoded = kind.decode(bytes(changed))
        except RemoteProtocolError:
            continue
        assert not decoded.is_signed_by(AUTHORITY.public_key)


@given(st.binary(max_size=400))
def test_any_bytes_are_refused(data: bytes) -> None:
    for kind in (Certificate, RevocationList):
        with pytest.raises(RemoteProtocolError):
            kind.decode(data)


def test_what_cannot_be_in_a_certificate() -> None:
    for name, serial in (("", 1), ("n" * (MAX_NAME_BYTES + 1), 1), ("two\nlines", 1), ("fine", 0)):
        with pytest.raises(ValueError, match="a certificate needs"):
            Certificate.issue(AUTHORITY, bytes(32), name, serial, 0, 1)


# --- who is let in


def meet(a: SessionNode, b: SessionNode) -> str:
    """Why they do not talk; empty if they do."""
    wire = Wire(a, b)
    a.sessions.connect(b.address, 0.0)
    wire.advance(GIVE_UP_S + 0.2)
    if a.sessions.is_open(b.node_id):
        assert b.sessions.is_open(a.node_id)
        return ""
    assert not b.sessions.peers()
    return a.failed()[0].reason


def closed() -> Trust:
    return Trust(is_open=False, clock_offset_s=EPOCH_S)


@pytest.mark.parametrize(
    ("of_a", "of_b", "reason"),
    [
        (cluster_trust(1), cluster_trust(2), ""),
        (cluster_trust(1, OTHER_AUTHORITY), cluster_trust(2), "another cluster"),
        (Trust(is_open=True), cluster_trust(2), "wants a certificate"),
        (cluster_trust(1), Trust(is_open=True), "another cluster"),
        (cluster_trust(1), closed(), "no certificate itself yet"),
        (closed(), cluster_trust(2), "wants a certificate"),
        (cluster_trust(1, until_s=-1), cluster_trust(2), "our certificate has expired"),
        (cluster_trust(1), cluster_trust(2, until_s=-1), "its certificate has expired"),
        (cluster_trust(1, from_s=5000), cluster_trust(2), "not valid yet"),
        (cluster_trust(3), cluster_trust(2), "signature is not right"),  # somebody else's certificate
    ],
)
def test_who_is_let_in(of_a: Trust, of_b: Trust, reason: str) -> None:
    found = meet(SessionNode(1, trust=of_a), SessionNode(2, trust=of_b))
    assert reason in found
    assert bool(reason) == bool(found)


def test_a_revoked_host_is_refused_until_it_has_a_new_certificate() -> None:
    trust = cluster_trust(2)
    assert trust.update_revocations(RevocationList.issue(AUTHORITY, 1, EPOCH_S, {identity(1).node_id: (4, EPOCH_S)}))
    assert "was revoked" in meet(SessionNode(1, trust=cluster_trust(1, serial=4)), SessionNode(2, trust=trust))
    assert meet(SessionNode(1, trust=cluster_trust(1, serial=5)), SessionNode(2, trust=trust)) == ""


def test_only_newer_lists_of_the_own_authority_are_taken() -> None:
    trust = cluster_trust(2)
    first = RevocationList.issue(AUTHORITY, 1, EPOCH_S, {})
    assert trust.update_revocations(first)
    assert not trust.update_revocations(first)
    with pytest.raises(RefusedError):
        trust.update_revocations(RevocationList.issue(OTHER_AUTHORITY, 2, EPOCH_S, {}))
    with pytest.raises(RefusedError):
        Trust(is_open=True).update_revocations(first)
    with pytest.raises(RefusedError):
        trust.enrol(AUTHORITY.public_key, certificate(2, authority=OTHER_AUTHORITY))
    assert trust.cluster_id == cluster_id_of(AUTHORITY.public_key)


def test_a_session_ends_with_the_certificate_and_is_renewed_before() -> None:
    trust = cluster_trust(2, until_s=3600)
    a, b = SessionNode(1, trust=cluster_trust(1)), SessionNode(2, trust=trust)
    wire = Wire(a, b)
    wire.open(a, b)
    wire.advance(3500, step_s=10.0)
    assert a.sessions.counters["renewed"] > 0
    trust.enrol(AUTHORITY.public_key, certificate(2, serial=2, until_s=7200))
    wire.advance(200, step_s=10.0)
    assert a.sessions.is_open(b.node_id)
    assert b.sessions.is_open(a.node_id)
    wire.advance(4000, step_s=10.0)
    assert not a.sessions.is_open(b.node_id)
    assert "expired" in a.failed()[-1].reason


def test_a_new_certificate_is_shown_at_once() -> None:
    trust = cluster_trust(2, until_s=3600)
    a, b = SessionNode(1, trust=cluster_trust(1)), SessionNode(2, trust=trust)
    wire = Wire(a, b)
    wire.open(a, b)
    trust.enrol(AUTHORITY.public_key, certificate(2, serial=2, until_s=7200))
    b.sessions.renew(0.0)
    wire.settle()
    assert a.sessions._peers[b.node_id].expires_at == 7200
