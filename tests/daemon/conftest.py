"""Fixtures: the two ends of requests."""

from __future__ import annotations

from pathlib import Path

import pytest

from daemon.peering.requests import PeerRequests
from tests.daemon.request_peers import CLIENT, DIMENSIONS, SERVER, open_tls


@pytest.fixture
def client(tmp_path: Path) -> PeerRequests:
    return PeerRequests(open_tls(CLIENT), 1, tmp_path / "client", DIMENSIONS)


@pytest.fixture
def server(tmp_path: Path) -> PeerRequests:
    return PeerRequests(open_tls(SERVER), 1, tmp_path / "server", DIMENSIONS)
