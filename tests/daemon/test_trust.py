"""A cluster of whole daemons: who gets in, who stays in, who is put out."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.config import Config, TrustConfig
from daemon.control.client import ControlClient
from daemon.control.messages import Done, Join, MakeToken, Renew, RequestFor, Revoke, Status
from daemon.process import Daemon
from daemon.trust import service as trust_service
from daemon.trust.authority import AUTHORITY_FOLDER, KEY_FILE, init_cluster
from daemon.trust.identity_file import StateFolder
from overlay.certificates import RevocationList
from overlay.identity import Identity
from overlay.records import Address
from sbon.errors import SbonError, UnavailableError
from tests.daemon.real_daemons import make_config, running, until

DAY_S = 86400.0


def closed(config: Config, **settings: object) -> Config:
    """A host that believes nobody until it has a certificate, as all do that do not listen on loopback."""
    return msgspec.structs.replace(config, trust=TrustConfig(open=False, **settings))  # type: ignore[arg-type]


@pytest.fixture
def hosts(tmp_path: Path) -> list[Config]:
    """The first has the authority; none of the others has a certificate."""
    configs = [closed(make_config(tmp_path, name)) for name in "abcd"]
    init_cluster(configs[0].node.state_dir, "a", 30 * DAY_S, time.time())
    return configs


async def ask(config: Config, request: RequestFor[Done]) -> str:
    async with ControlClient.open(config.node.socket) as client:
        return (await client.request(request)).message


async def new_token(authority: Config, name: str | None = None) -> str:
    async with ControlClient.open(authority.node.socket) as client:
        return (await client.request(MakeToken(name))).token


async def join(config: Config, member: Config, token: str | None = None) -> str:
    async with ControlClient.open(config.node.socket) as client:
        return (await client.request(Join(member.node.listen, token))).message


async def all_see_all(daemons: list[Daemon]) -> None:
    await until(lambda: all(len(daemon.overlay.members()) == len(daemons) - 1 for daemon in daemons))


async def test_hosts_join_with_tokens_by_way_of_any_member_and_come_back_without(hosts: list[Config]) -> None:
    a, b, c, _ = hosts
    async with running(a, b) as (first, second):
        await join(b, a, await new_token(a))
        token = await new_token(a, "c")
        async with running(c) as (third,):
            assert "joined the overlay of b" in await join(c, b, token)  # which passes it on
            await all_see_all([first, second, third])
            certificates = [daemon.trust.certificate for daemon in (first, second, third)]
            assert [certificate.name for certificate in certificates if certificate] == ["a", "b", "c"]
            async with ControlClient.open(c.node.socket) as client:
                status = await client.request(Status())
            assert (status.trust, status.cluster) == ("member", first.trust.cluster_id.hex()[:16])
            assert status.certificate_expires_s == pytest.approx(time.time() + 30 * DAY_S, abs=600)
        async with running(c) as (third,):
            await all_see_all([first, second, third])
            assert third.trust_service.describe() == "member"
        assert first.trust_service.describe() == "authority"


async def test_who_has_no_good_token_does_not_get_in(hosts: list[Config], tmp_path: Path) -> None:
    a, b, c, d = hosts
    other = closed(make_config(tmp_path / "other", "o"))
    init_cluster(other.node.state_dir, "o", 30 * DAY_S, time.time())
    async with running(a, b, c, other) as (first, _, _, _):
        with pytest.raises(SbonError, match="this host has no certificate: get a token"):
            await join(b, a)
        with pytest.raises(SbonError, match="that is not a token"):
            await join(b, a, "sbon1-nonsense")
        token = await new_token(a)
        forged = token[:-1] + ("A" if token[-1] != "A" else "Q")
        with pytest.raises(SbonError, match=r"secret is not right|not a token"):
            await join(b, a, forged)
        with pytest.raises(UnavailableError, match="another cluster"):
            await join(b, other, token)
        with pytest.raises(SbonError, match='for the name "x"'):
            await join(b, a, await new_token(a, "x"))
        with pytest.raises(SbonError, match="authority is not on this host"):
            await new_token(b)
        await join(b, a, token)
        with pytest.raises(SbonError, match="used by another host"):
            await join(c, a, token)
        with pytest.raises(SbonError, match="belongs to another cluster than the token"):
            await join(b, other, await new_token(other))
        assert len(first.overlay.members()) == 1
        async with running(make_named(d, "b")):
            with pytest.raises(SbonError, match='another host has the name "b"'):
                await join(d, a, await new_token(a))


def names(daemon: Daemon) -> list[str]:
    return [record.name for record in daemon.overlay.members()]


def make_named(config: Config, name: str) -> Config:
    return msgspec.structs.replace(config, node=msgspec.structs.replace(config.node, name=name))


async def test_certificates_are_renewed_by_hand_and_in_time(
    hosts: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust_service, "CHECK_PERIOD_S", 0.05)
    a, b, _, _ = hosts
    short = closed(a, certificate_days=3 / DAY_S)  # with what is backdated, due for renewal at once
    async with running(short, b) as (first, second):
        await join(b, a, await new_token(a))
        assert second.trust.certificate is not None
        serial = second.trust.certificate.serial
        await until(lambda: second.trust.certificate is not None and second.trust.certificate.serial > serial + 2)
        reply = await ask(b, Renew())
        assert "valid until 2" in reply
        await ask(a, Renew())
        await all_see_all([first, second])


async def test_a_full_disk_ends_no_daemon_and_a_certificate_is_used_once_it_is_kept(
    hosts: list[Config], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(trust_service, "CHECK_PERIOD_S", 0.05)
    a, b, _, _ = hosts
    async with running(closed(a, certificate_days=3 / DAY_S), b) as (_, second):
        await join(b, a, await new_token(a))
        with monkeypatch.context() as full:
            full.setattr(StateFolder, "keep_membership", find_no_room)
            await until(lambda: caplog.text.count("No space left on device") > 3)
            before = second.trust.certificate
            await until(lambda: caplog.text.count("No space left on device") > 7)
            assert second.trust.certificate == before
        await until(lambda: second.trust.certificate != before)


async def test_a_revocation_is_told_also_by_who_cannot_keep_it(
    hosts: list[Config], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust_service, "CHECK_PERIOD_S", 3600.0)  # nobody asks for it
    a, b, _, _ = hosts
    async with running(a, b) as (first, second):
        await join(b, a, await new_token(a))
        await all_see_all([first, second])
        monkeypatch.setattr(StateFolder, "keep_revocations", find_no_room)
        revocations = RevocationList.issue(_authority_key(a), 1, int(time.time()), {})
        with pytest.raises(UnavailableError, match="No space left"):
            await first.trust_service._take_revocations(revocations.encode(), told_by="")
        await until(lambda: second.trust.revocations is not None and second.trust.revocations.number == 1)


def find_no_room(*_: object) -> None:
    raise UnavailableError("the file cannot be used (No space left on device): see its disk")


def _authority_key(config: Config) -> Identity:
    return Identity.from_private_bytes((config.node.state_dir / AUTHORITY_FOLDER / KEY_FILE).read_bytes())


async def test_a_revoked_host_is_put_out_everywhere(hosts: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trust_service, "CHECK_PERIOD_S", 0.1)
    a, b, c, d = hosts
    async with running(a, b, c) as (first, second, third):
        await join(b, a, await new_token(a))
        await join(c, a, await new_token(a))
        await all_see_all([first, second, third])
        with pytest.raises(SbonError, match='no host "x" has a certificate'):
            await ask(a, Revoke("x"))
        with pytest.raises(SbonError, match="cannot revoke itself"):
            await ask(a, Revoke("a"))
        with pytest.raises(SbonError, match="authority is not on this host"):
            await ask(b, Revoke("c"))
        await ask(a, Revoke("c"))
        await until(lambda: second.trust.revocations is not None and second.trust.revocations.number == 1)
        await until(lambda: [names(daemon) for daemon in (first, second)] == [["b"], ["a"]])
        with pytest.raises(SbonError, match="our certificate was revoked"):
            await join(c, b)
        assert [names(daemon) for daemon in (first, second)] == [["b"], ["a"]]
        for asked in (first, second):
            with pytest.raises(UnavailableError, match="our certificate was revoked"):
                await third.requests.request(asked.record, trust_service.CompareRevocations(5), msgspec.Struct)
        with pytest.raises(UnavailableError, match="our certificate was revoked"):
            await ask(c, Renew())
        async with running(d) as (fourth,):  # who joins later hears of it at once
            await join(d, b, await new_token(a))
            assert fourth.trust.revocations is not None
            assert fourth.trust.revocations.number == 1
        await join(c, b, await new_token(a))
        await all_see_all([first, second, third])


async def test_a_list_that_was_missed_is_heard_of_later(hosts: list[Config], monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, c, _ = hosts
    async with running(a, b) as (first, second):
        await join(b, a, await new_token(a))
        async with running(c):
            await join(c, a, await new_token(a))
            await until(lambda: (c.node.state_dir / "members.json").exists())
        await ask(a, Revoke("b"))
        monkeypatch.setattr(trust_service, "CHECK_PERIOD_S", 0.1)
        async with running(c) as (third,):
            await until(lambda: third.trust.revocations is not None and third.trust.revocations.number == 1)
        assert first.trust_service.describe() == "authority"
        assert second.trust.certificate is not None


def test_damaged_files_are_told(hosts: list[Config], tmp_path: Path) -> None:
    a = hosts[0]
    file = a.node.state_dir / "membership.json"
    good = file.read_text()
    for content, message in (("{", "damaged"), (good.replace("a", "b", 3), "damaged")):
        file.write_text(content)

        async def start() -> None:
            Daemon(a)

        with pytest.raises(SbonError, match=message):
            trio.run(start)


async def test_a_host_that_joins_a_cluster_leaves_those_behind_that_are_not_in_it(tmp_path: Path) -> None:
    a, b, c = (make_config(tmp_path, name) for name in "abc")  # on loopback: b and c believe anybody
    init_cluster(a.node.state_dir, "a", 30 * DAY_S, time.time())
    async with running(a, b, c) as (first, second, third):
        await join(c, b)
        await all_see_all([second, third])
        with pytest.raises(SbonError, match="wants a certificate"):
            await join(b, a)
        await join(b, a, await new_token(a))
        await until(lambda: [names(daemon) for daemon in (first, second)] == [["b"], ["a"]])
        assert third.record.node_id not in second.overlay._sessions.peers()


async def test_datagrams_are_sealed(tmp_path: Path) -> None:
    a, b = (make_config(tmp_path, name) for name in "ab")
    async with running(a, b) as (first, second):
        sent: list[bytes] = []
        send = second.shell._send

        def listen(data: bytes, address: Address) -> None:
            sent.append(data)
            send(data, address)

        second.shell._send = listen  # type: ignore[method-assign]
        await join(b, a)
        await all_see_all([first, second])
        assert sent
        assert not [data for data in sent if b"127.0.0.1" in data]
        with trio.socket.socket(type=trio.socket.SOCK_DGRAM) as stranger:
            for data in sent:  # repeated by somebody else
                await stranger.sendto(data, (first.record.host, first.record.port))
        await until(lambda: first.overlay.counters["dropped.malformed"] > 0)
        assert names(first) == ["b"]
