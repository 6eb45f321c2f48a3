from __future__ import annotations

import stat
from contextlib import closing
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from daemon.durations import parse_duration_s, parse_moment_s
from daemon.trust.authority import AUTHORITY_FOLDER, Authority, init_cluster, proof_message, prove
from daemon.trust.identity_file import StateFolder
from daemon.trust.tokens import Token
from overlay.certificates import Certificate, RevocationList
from sbon.errors import SbonError, UnavailableError
from tests.daemon.full_disk import full_disk
from tests.overlay.session_nodes import EPOCH_S, identity

ASKED = identity(9).node_id
DAY_S = 86400


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority.create(tmp_path / "authority", 30 * DAY_S)


def enrol(
    authority: Authority,
    token: Token,
    number: int,
    name: str,
    now_s: float = EPOCH_S,
    *,
    told: str = ASKED,
    claimed: str | None = None,
) -> int:
    """The serial of the certificate that a host gets for its token."""
    public_key = identity(number).public_key
    proof = prove(token.secret, proof_message(token.cluster_id, public_key, told, name))
    certificate = authority.enrol(token.token_id, proof, public_key, claimed or name, ASKED, now_s)
    assert certificate.is_signed_by(authority.public_key)
    assert certificate.public_key == public_key
    return certificate.serial


def test_its_files_are_private_and_survive(authority: Authority, tmp_path: Path) -> None:
    token = authority.make_token(None, 60, EPOCH_S)
    for file in ("authority.key", "book.json"):
        assert stat.S_IMODE((tmp_path / "authority" / file).stat().st_mode) == 0o600
    assert (tmp_path / "authority" / "cluster.pub").read_text() == authority.public_key.hex() + "\n"
    again = Authority(tmp_path / "authority", DAY_S)
    assert again.public_key == authority.public_key
    assert enrol(again, token, 1, "a") == 1
    with pytest.raises(SbonError, match="there is an authority"):
        Authority.create(tmp_path / "authority", DAY_S)
    (tmp_path / "authority" / "book.json").write_text("{nonsense")
    with pytest.raises(SbonError, match="damaged"):
        Authority(tmp_path / "authority", DAY_S)
    with pytest.raises(SbonError, match="cannot read"):
        Authority(tmp_path / "nowhere", DAY_S)


def test_a_token_is_for_one_host(authority: Authority) -> None:
    token = authority.make_token(None, 3600, EPOCH_S)
    assert enrol(authority, token, 1, "a") == 1
    assert enrol(authority, token, 1, "a") == 2  # the answer was lost on its way
    with pytest.raises(SbonError, match="used by another host"):
        enrol(authority, token, 2, "b")


def test_a_token_expires(authority: Authority) -> None:
    token = authority.make_token(None, 3600, EPOCH_S)
    with pytest.raises(SbonError, match="not known, or has expired"):
        enrol(authority, token, 1, "a", EPOCH_S + 3600)
    for ttl_s in (0, 1e9):
        with pytest.raises(SbonError, match="give at most 90d"):
            authority.make_token(None, ttl_s, EPOCH_S)


def test_a_token_for_a_name(authority: Authority) -> None:
    token = authority.make_token("chicago", 3600, EPOCH_S)
    with pytest.raises(SbonError, match='for the name "chicago", not "london"'):
        enrol(authority, token, 1, "london")
    enrol(authority, token, 1, "chicago")


def test_who_does_not_have_the_secret(authority: Authority) -> None:
    token = authority.make_token(None, 3600, EPOCH_S)
    forged = Token(token.cluster_id, token.token_id, bytes(16))
    # Whoever passes a proof on can change neither the name nor whom it was made for.
    for used, told, claimed in ((forged, ASKED, "a"), (token, ASKED, "b"), (token, identity(8).node_id, "a")):
        with pytest.raises(SbonError, match="secret is not right"):
            enrol(authority, used, 1, "a", told=told, claimed=claimed)
    enrol(authority, token, 1, "a")


def test_names_are_unique_until_their_host_is_revoked(authority: Authority) -> None:
    enrol(authority, authority.make_token(None, 60, EPOCH_S), 1, "a")
    token = authority.make_token(None, 60, EPOCH_S)
    with pytest.raises(SbonError, match="another host has the name"):
        enrol(authority, token, 2, "a")
    assert authority.revoke("a", EPOCH_S) == (identity(1).node_id, "a")
    enrol(authority, token, 2, "a")
    with pytest.raises(SbonError, match="no host"):
        authority.revoke("b", EPOCH_S)


def test_revoked_hosts_cannot_renew_but_come_back_with_a_token(authority: Authority) -> None:
    token = authority.make_token(None, 60, EPOCH_S)
    serial = enrol(authority, token, 1, "a")
    assert authority.renew(identity(1).node_id, EPOCH_S).serial == serial + 1
    authority.revoke(identity(1).node_id, EPOCH_S)
    revocations = authority.revocations(EPOCH_S)
    assert revocations.number == 1
    assert RevocationList.decode(revocations.encode()).revokes(identity(1).node_id, serial + 1)
    with pytest.raises(SbonError, match="no certificate to renew"):
        authority.renew(identity(1).node_id, EPOCH_S)
    with pytest.raises(SbonError, match="token is not known"):
        enrol(authority, token, 1, "a")
    again = enrol(authority, authority.make_token(None, 60, EPOCH_S), 1, "a")
    assert not revocations.revokes(identity(1).node_id, again)
    authority.make_token(None, 60, EPOCH_S + 31 * DAY_S)
    assert not authority.revocations(EPOCH_S).entries
    assert not authority.hosts()


def test_a_revocation_lasts_as_long_as_any_certificate_of_the_host(tmp_path: Path) -> None:
    """`trust.certificate_days` may be made smaller at any time: what was given out before is valid for longer."""
    long = Authority.create(tmp_path / "authority", 30 * DAY_S)
    first = enrol(long, long.make_token(None, 60, EPOCH_S), 1, "a")
    short = Authority(tmp_path / "authority", DAY_S)
    assert short.renew(identity(1).node_id, EPOCH_S).not_after_s == EPOCH_S + DAY_S
    short.revoke("a", EPOCH_S)
    enrol(short, short.make_token(None, 60, EPOCH_S), 1, "a")
    short.revoke("a", EPOCH_S)  # it had come back, with a certificate for a day
    short.make_token(None, 60, EPOCH_S + 2 * DAY_S)
    assert short.revocations(EPOCH_S).revokes(identity(1).node_id, first)
    short.make_token(None, 60, EPOCH_S + 30 * DAY_S)
    assert not short.revocations(EPOCH_S).entries


def test_what_finds_no_room_on_the_disk_has_not_happened(authority: Authority, monkeypatch: pytest.MonkeyPatch) -> None:
    enrol(authority, authority.make_token(None, 60, EPOCH_S), 1, "a")
    with full_disk(monkeypatch), pytest.raises(UnavailableError, match="No space left on device"):
        authority.revoke("a", EPOCH_S)
    assert (authority.revocations(EPOCH_S).number, list(authority.hosts())) == (0, [identity(1).node_id])
    assert authority.revoke("a", EPOCH_S) == (identity(1).node_id, "a")


def test_names_that_cannot_be(authority: Authority) -> None:
    with pytest.raises(SbonError, match="a name of 1 to 64"):
        enrol(authority, authority.make_token(None, 60, EPOCH_S), 1, "two\nlines")


@given(st.binary(min_size=40, max_size=40))
def test_a_token_is_read_as_it_was_written(data: bytes) -> None:
    token = Token(data[:16], data[16:24], data[24:])
    assert Token.parse(f" {token.text}\n") == token
    assert len(token.text) == 60
    assert token.secret.hex() not in repr(token)


@given(st.text(max_size=80))
def test_what_is_no_token(text: str) -> None:
    for tried in (text, "sbon1-" + text):
        with pytest.raises(SbonError, match="not a token"):
            Token.parse(tried)


def test_durations() -> None:
    assert [parse_duration_s(text) for text in ("90s", "30m", "1h", "7d")] == [90.0, 1800.0, 3600.0, 604800.0]
    for text in ("", "1", "h", "0h", "-1h", "1.5h", "1 h", "1w"):
        with pytest.raises(ValueError, match="not a duration"):
            parse_duration_s(text)


def test_moments_are_durations_from_now_or_have_a_time_zone() -> None:
    assert parse_moment_s("2h", 1000.0) == 8200.0
    assert parse_moment_s("1970-01-01T01:00:00+01:00", 1000.0) == 0.0
    for text in ("2 hours", "2x", "0h", "tomorrow", "2026-12-01T18:00"):
        with pytest.raises(ValueError, match="is not a"):
            parse_moment_s(text, 1000.0)


def test_init_makes_the_first_member(tmp_path: Path) -> None:
    authority = init_cluster(tmp_path, "first", DAY_S, EPOCH_S)
    with closing(StateFolder(tmp_path)) as state:
        membership = state.membership()
        assert membership is not None
        certificate = Certificate.decode(membership.certificate)
        assert certificate.is_signed_by(authority.public_key)
        assert (certificate.name, certificate.node_id) == ("first", state.identity().node_id)
        with pytest.raises(SbonError, match="another daemon uses"):
            init_cluster(tmp_path, "first", DAY_S, EPOCH_S)
    with pytest.raises(SbonError, match="belongs to a cluster already"):
        init_cluster(tmp_path, "first", DAY_S, EPOCH_S)
    assert stat.S_IMODE((tmp_path / AUTHORITY_FOLDER).stat().st_mode) == 0o700
