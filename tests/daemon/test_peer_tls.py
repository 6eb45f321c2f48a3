"""Requests between hosts that trust an authority, and everybody else."""

from __future__ import annotations

import ssl
from pathlib import Path

import msgspec
import pytest
import trio

from daemon.peering import requests
from daemon.peering.envelopes import RequestEnvelope
from daemon.peering.frame_stream import FrameStream
from daemon.peering.peer_tls import Caller, PeerTls
from daemon.peering.requests import PeerRequests
from overlay.certificates import RevocationList, Trust, cluster_id_of
from overlay.identity import Identity
from overlay.records import Address, NodeRecord
from sbon.coordinate import origin
from sbon.errors import RemoteProtocolError, SbonError, UnavailableError
from tests.daemon.request_peers import Answer, Question, echo, serving
from tests.overlay.session_nodes import AUTHORITY, EPOCH_S, certificate, cluster_trust, identity

OTHER_AUTHORITY = Identity.from_private_bytes(b"o" * 32)


def make(folder: Path, number: int, trust: Trust) -> PeerRequests:
    made = PeerRequests(PeerTls(identity(number), trust, lambda: 0.0), 1, folder / str(number), 2)
    made.handle(Question, echo)
    return made


def closed() -> Trust:
    return Trust(is_open=False, clock_offset_s=EPOCH_S)


def record_of(number: int, address: Address) -> NodeRecord:
    return NodeRecord(identity(number).node_id, f"node-{number}", *address, boot_id=1, coordinate=origin(2))


@pytest.mark.parametrize(
    ("of_client", "of_server", "reason"),
    [
        (cluster_trust(1), cluster_trust(2), ""),
        (Trust(is_open=True), Trust(is_open=True), ""),
        (cluster_trust(1, OTHER_AUTHORITY), cluster_trust(2), "is not accepted: it belongs to another cluster"),
        (Trust(is_open=True), cluster_trust(2), "is not accepted: it belongs to another cluster"),
        (cluster_trust(1), Trust(is_open=True), "is not accepted: it has no certificate"),
        (closed(), cluster_trust(2), "this host has no certificate yet"),
        (cluster_trust(1), closed(), "is not accepted: it has no certificate"),
        (cluster_trust(1, until_s=-1), cluster_trust(2), "refuses this one: our certificate has expired"),
        (cluster_trust(1), cluster_trust(2, until_s=-1), "is not accepted: its certificate has expired"),
        (cluster_trust(3), cluster_trust(2), "refuses this one: a signature is not right"),
        (cluster_trust(1), cluster_trust(3), "is not accepted: a signature is not right"),
    ],
)
async def test_who_is_answered(tmp_path: Path, of_client: Trust, of_server: Trust, reason: str) -> None:
    client, server = make(tmp_path, 1, of_client), make(tmp_path, 2, of_server)
    async with serving(server) as address:
        if not reason:
            reply = await client.request(address, Question("hello"), Answer)
            assert reply.text == f"hello from {identity(1).node_id}"
            return
        with pytest.raises(UnavailableError, match=reason):
            await client.request(address, Question("hello"), Answer)
    assert server.counters["served"] == 0


async def test_a_revoked_host_is_not_answered(tmp_path: Path) -> None:
    """Nor over a connection that was kept."""
    trust = cluster_trust(2)
    client, server = make(tmp_path, 1, cluster_trust(1)), make(tmp_path, 2, trust)
    async with serving(server) as address, serving(client):
        await client.request(address, Question("hello"), Answer)
        trust.update_revocations(RevocationList.issue(AUTHORITY, 1, EPOCH_S, {identity(1).node_id: (1, EPOCH_S)}))
        with pytest.raises(UnavailableError, match="our certificate was revoked"):
            await client.request(address, Question("hello"), Answer)
    assert server.counters["dropped.stranger"] == 1


async def test_a_host_that_was_revoked_is_asked_nothing(tmp_path: Path) -> None:
    trust = cluster_trust(1)
    client, server = make(tmp_path, 1, trust), make(tmp_path, 2, cluster_trust(2))
    async with serving(server) as address, serving(client):
        await client.request(address, Question("hello"), Answer)
        assert len(client._kept) == 1
        trust.update_revocations(RevocationList.issue(AUTHORITY, 1, EPOCH_S, {identity(2).node_id: (1, EPOCH_S)}))
        with pytest.raises(UnavailableError, match="is not accepted: it was revoked"):
            await client.request(address, Question("hello"), Answer)


async def test_connections_end_with_the_certificates_that_were_shown(tmp_path: Path) -> None:
    now = 0.0
    client, server = make(tmp_path, 1, cluster_trust(1, until_s=100)), make(tmp_path, 2, cluster_trust(2))
    server._tls._clock = lambda: now
    async with serving(server) as address, serving(client):
        await client.request(address, Question("hello"), Answer)
        now = 101.0
        with pytest.raises(UnavailableError, match="refuses this one: our certificate has expired"):
            await client.request(address, Question("hello"), Answer)
    assert client.counters["asked_again"] == 1


async def test_a_new_certificate_is_shown_at_once(tmp_path: Path) -> None:
    trust = cluster_trust(2, until_s=-1)
    client, server = make(tmp_path, 1, cluster_trust(1)), make(tmp_path, 2, trust)
    async with serving(server) as address:
        with pytest.raises(UnavailableError, match="expired"):
            await client.request(address, Question("hello"), Answer)
        trust.enrol(AUTHORITY.public_key, certificate(2, serial=2))
        await client.request(address, Question("hello"), Answer)


async def test_another_node_at_the_address(tmp_path: Path) -> None:
    client, server = make(tmp_path, 1, cluster_trust(1)), make(tmp_path, 2, cluster_trust(2))
    async with serving(server) as address:
        await client.request(record_of(2, address), Question("hello"), Answer)
        with pytest.raises(UnavailableError, match="the key of another node"):
            await client.request(record_of(3, address), Question("hello"), Answer)


async def test_a_host_without_a_certificate_may_ask_what_strangers_may(tmp_path: Path) -> None:
    async def greet(message: Question, caller: Caller) -> Answer:
        assert message.text == identity(2).node_id
        return Answer(f"{caller.refusal!r} {caller.node_id}")

    client, server = make(tmp_path, 1, closed()), make(tmp_path, 2, cluster_trust(2))
    server.handle_strangers(Question, greet)
    cluster_id = cluster_id_of(AUTHORITY.public_key)
    async with serving(server) as address:
        reply = await client.introduce(address, cluster_id, lambda node_id: Question(node_id), Answer)
        assert "NO_CERTIFICATE" in reply.text
        assert identity(1).node_id in reply.text
        with pytest.raises(UnavailableError, match="another cluster"):
            await client.introduce(address, bytes(16), lambda node_id: Question(""), Answer)
        # Strangers may not say much.
        too_much = Question("x" * requests.MAX_STRANGER_BYTES)
        with pytest.raises(SbonError):
            await client.introduce(address, cluster_id, lambda node_id: too_much, Answer)


async def test_a_member_cannot_pass_for_another(tmp_path: Path) -> None:
    server = make(tmp_path, 2, cluster_trust(2))
    async with serving(server) as address, await trio.open_tcp_stream(*address) as plain:
        tls, _ = await PeerTls(identity(1), cluster_trust(1), lambda: 0.0).connect(plain, None)
        body = msgspec.Raw(msgspec.msgpack.encode(Question("")))
        envelope = RequestEnvelope(1, identity(3).node_id, 1, "", "Question", body)
        frames = FrameStream(tls)
        await frames.send(msgspec.msgpack.encode(envelope))
        assert await frames.receive() is None
    assert server.counters["dropped.malformed"] == 1


async def test_an_introduction_to_one_server_is_worth_nothing_at_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A member in the middle passes on what was said to it."""
    server = make(tmp_path, 2, cluster_trust(2))
    victim = PeerTls(identity(1), cluster_trust(1), lambda: 0.0)
    middle = PeerTls(identity(3), cluster_trust(3), lambda: 0.0)
    middle._refresh()
    said = victim._introduction(middle._own_der)
    monkeypatch.setattr(middle, "_introduction", lambda der: said)
    async with serving(server) as address, await trio.open_tcp_stream(*address) as plain:
        tls, _ = await middle.connect(plain, None)
        assert await tls.receive_some(1) == b""
    assert server.counters["dropped.malformed"] == 1


async def test_what_does_not_speak_tls(tmp_path: Path) -> None:
    client, server = make(tmp_path, 1, cluster_trust(1)), make(tmp_path, 2, cluster_trust(2))
    async with serving(server) as address:
        for said in (b"\0\0\0\5hello", b"GET / HTTP/1.1\r\n\r\n", bytes(1000)):
            async with await trio.open_tcp_stream(*address) as plain:
                await plain.send_all(said)
                await plain.send_eof()
                with trio.move_on_after(5):
                    while await plain.receive_some():
                        pass
        assert server.counters["dropped.broken"] == 3
        await client.request(address, Question("still here"), Answer)

    async def answer_plainly(stream: trio.SocketStream) -> None:
        await stream.send_all(b"220 mail.example.net ready\r\n")
        await stream.aclose()

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, answer_plainly, 0)
        with pytest.raises(UnavailableError, match="does not speak TLS"):
            await client.request(listeners[0].socket.getsockname()[:2], Question(""), Answer)
        nursery.cancel_scope.cancel()


async def test_a_server_that_is_not_sbon(tmp_path: Path) -> None:
    """Some other TLS server, with an X.509 certificate without our extension."""
    import daemon.peering.peer_tls as module

    own = PeerTls(identity(2), cluster_trust(2), lambda: 0.0)
    own._refresh()
    with pytest.raises(RemoteProtocolError, match=r"X\.509"):
        module._read_x509(b"not DER")
    with pytest.raises(RemoteProtocolError, match=r"X\.509"):
        module._read_x509(own._own_der[:-40])
    assert module._read_x509(own._own_der)[0] == identity(2).public_key
    assert own._server_context.minimum_version == ssl.TLSVersion.TLSv1_3
