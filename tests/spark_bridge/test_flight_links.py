"""Links without Spark: a log is served, and pulled by whoever may."""

from __future__ import annotations

import errno
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest
from pyarrow import flight

from sbon.engine_messages import FlightAddress
from spark_bridge.flight_links import LinkServer, connect
from spark_bridge.link_credentials import LinkCredentials, to_pem
from spark_bridge.link_log import LinkLog
from spark_bridge.link_service import LinkService, PullRequest, Served
from spark_bridge.port_inbox import PortInbox
from spark_bridge.puller import Puller, Target
from spark_bridge.relay import Relay

PATIENCE_S = 30.0


class Fragments:
    """A directory with one log."""

    def __init__(self, folder: Path) -> None:
        self.log = LinkLog(folder, "f", ("c",), 1 << 20)
        self.stopping = threading.Event()

    def served(self, fragment_id: str) -> Served | None:
        return Served(self.log, 1, self.stopping) if fragment_id == "f" else None

    def relayed(self, fragment_id: str) -> Relay | None:
        return None


@pytest.fixture
def fragments(tmp_path: Path) -> Fragments:
    made = Fragments(tmp_path / "log")
    for batch_id in range(3):
        rows = pa.table({"value": [float(batch_id)] * 10})
        made.log.append(1, batch_id, rows, event_time=None, watermark_ms=None, end_of_stream=False)
    return made


@pytest.fixture
def server(fragments: Fragments) -> Iterator[LinkServer]:
    with LinkServer("127.0.0.1", LinkService(fragments)) as made:
        yield made
        fragments.stopping.set()
        fragments.log.wake()


def has_ipv6() -> bool:
    try:
        with socket.socket(socket.AF_INET6) as tried:
            tried.bind(("::1", 0))
    except OSError:
        return False
    return True


def pull(address: FlightAddress, folder: Path, want: int, own: LinkService | None = None) -> tuple[int, str]:
    """How many segments came, and why no more did."""
    lost: list[str] = []
    told = threading.Event()

    def note(reason: str) -> None:
        lost.append(reason)
        told.set()

    inbox = PortInbox(folder / "inbox", ("f",))
    wanted = threading.Event()
    wanted.set()
    puller = Puller(inbox, "f", "c", wanted, note, lambda: inbox.read_for_good().get("f", -1), own_links=own)
    puller.point_at(Target(address, 1))
    try:
        for _ in range(int(PATIENCE_S / 0.05)):
            if inbox.next_batch("f") >= want or told.wait(0.05):
                break
    finally:
        puller.stop()
    return inbox.next_batch("f"), " ".join(lost[:1])


def test_segments_come_over_tls(server: LinkServer, tmp_path: Path) -> None:
    assert pull(server.address, tmp_path, want=3) == (3, "")


@pytest.mark.skipif(not has_ipv6(), reason="this host has no IPv6")
def test_links_work_over_ipv6(fragments: Fragments, tmp_path: Path) -> None:
    with LinkServer("::1", LinkService(fragments)) as server:
        assert pull(server.address, tmp_path, want=3) == (3, "")
        fragments.stopping.set()
        fragments.log.wake()


def test_a_reader_in_the_same_engine_needs_no_network(fragments: Fragments, tmp_path: Path) -> None:
    own = LinkService(fragments)
    nowhere = FlightAddress("192.0.2.1", 1, own.credentials.certificate, own.credentials.secret)
    try:
        assert pull(nowhere, tmp_path, want=3, own=own) == (3, "")
        before, reason = pull(nowhere._replace(secret=b""), tmp_path, want=4, own=own)
        assert before == 3
        assert "knows this engine's secret" in reason
    finally:
        fragments.stopping.set()
        fragments.log.wake()


@pytest.mark.parametrize("is_local", [True, False])
@pytest.mark.parametrize("broken", ["acknowledge", "_whole_segment"])
def test_a_disk_that_fails_for_a_moment_ends_no_link(
    fragments: Fragments, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_local: bool, broken: str
) -> None:
    works, failed = getattr(fragments.log, broken), threading.Event()

    def fail_once(*arguments: object) -> object:
        if failed.is_set():
            return works(*arguments)
        failed.set()
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(fragments.log, broken, fail_once)
    service, lost = LinkService(fragments), list[str]()
    inbox, wanted = PortInbox(tmp_path / "inbox", ("f",)), threading.Event()
    wanted.set()
    with LinkServer("127.0.0.1", service) as server:
        puller = Puller(inbox, "f", "c", wanted, lost.append, lambda: 0, own_links=service if is_local else None)
        puller.point_at(Target(server.address, 1))
        try:
            for _ in range(int(PATIENCE_S / 0.05)):
                if inbox.next_batch("f") == 3 and fragments.log._cursors["c"] == 0:
                    break
                time.sleep(0.05)
            assert inbox.next_batch("f") == 3
            assert fragments.log._cursors["c"] == 0
            assert "No space left on device" in lost[0]
        finally:
            puller.stop()
            fragments.stopping.set()
            fragments.log.wake()


def test_who_does_not_know_the_secret_gets_nothing(server: LinkServer, tmp_path: Path) -> None:
    for secret in (b"", bytes(16), server.address.secret[:-1]):
        came, reason = pull(server.address._replace(secret=secret), tmp_path, want=1)
        assert came == 0
        assert "knows this engine's secret" in reason


def test_another_engine_at_the_address_is_not_believed(server: LinkServer, tmp_path: Path) -> None:
    other = LinkCredentials.generate().certificate
    came, reason = pull(server.address._replace(certificate=other), tmp_path, want=1)
    assert came == 0
    assert reason
    came, reason = pull(server.address._replace(certificate=b"nonsense"), tmp_path, want=1)
    assert came == 0
    assert reason


def test_nothing_is_said_in_the_clear(server: LinkServer) -> None:
    with flight.connect(f"grpc+tcp://127.0.0.1:{server.port}") as client:
        request = PullRequest("f", 1, "c", 0, server.address.secret)
        with pytest.raises(pa.ArrowException):
            list(client.do_action(flight.Action("pull", msgspec.msgpack.encode(request)), timeout(2.0)))


def timeout(seconds: float) -> flight.FlightCallOptions:
    return flight.FlightCallOptions(timeout=seconds)


def test_any_bytes_as_a_request_are_an_error_of_the_caller(server: LinkServer) -> None:
    with connect(server.address) as client:
        for kind, body in (("pull", b"\xc1"), ("pull", b""), ("acknowledge", b"\x91" * 500), ("x", b"")):
            with pytest.raises(flight.FlightServerError):
                list(client.do_action(flight.Action(kind, body)))


def test_certificates_differ_and_are_small() -> None:
    first, second = LinkCredentials.generate(), LinkCredentials.generate()
    assert first.certificate != second.certificate
    assert first.secret != second.secret
    assert len(first.certificate) < 400
    assert to_pem(first.certificate) == first.certificate_pem
    assert "secret" not in repr(first)


class Silent:
    """A directory that never answers: a host that is cut off, with its connections."""

    def __init__(self) -> None:
        self.asked = threading.Event()
        self.ending = threading.Event()

    def served(self, fragment_id: str) -> Served | None:
        self.asked.set()
        self.ending.wait()
        return None

    def relayed(self, fragment_id: str) -> Relay | None:
        return None


def test_who_waits_for_a_host_that_is_cut_off_is_pointed_at_another_one(server: LinkServer, tmp_path: Path) -> None:
    silent = Silent()
    inbox = PortInbox(tmp_path / "inbox", ("f",))
    wanted = threading.Event()
    wanted.set()
    with LinkServer("127.0.0.1", LinkService(silent)) as gone:
        puller = Puller(inbox, "f", "c", wanted, lambda _: None, lambda: -1)
        try:
            puller.point_at(Target(gone.address, 1))
            assert silent.asked.wait(PATIENCE_S)
            puller.point_at(Target(server.address, 1))
            for _ in range(int(PATIENCE_S / 0.05)):
                if inbox.next_batch("f") == 3:
                    break
                time.sleep(0.05)
            assert inbox.next_batch("f") == 3
        finally:
            puller.stop()
            silent.ending.set()
