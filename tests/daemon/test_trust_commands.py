"""The commands of docs/trust.md, as users have them: real processes."""

from __future__ import annotations

import json
import stat
import subprocess
from pathlib import Path

import pytest

from tests.daemon.real_daemons import PATIENCE_S
from tests.daemon.test_cli import ENVIRONMENT, SBON, address_of, daemon, error_of, sbon, write_config


def closed_config(folder: Path, name: str) -> Path:
    file = write_config(folder, name)
    file.write_text(file.read_text() + "[trust]\nopen = false\n")
    return file


def test_a_cluster_from_nothing(tmp_path: Path) -> None:
    a, b = closed_config(tmp_path, "a"), closed_config(tmp_path, "b")
    at_a, at_b = ("--socket", tmp_path / "a.sock"), ("--socket", tmp_path / "b.sock")
    assert "made the cluster" in sbon("init", "--config", a).stdout
    assert stat.S_IMODE((tmp_path / "a" / "authority" / "authority.key").stat().st_mode) == 0o600
    with daemon(a), daemon(b):
        member = address_of(sbon(*at_a, "status", "--json").stdout)
        assert "no certificate" in error_of(*at_b, "join", member)
        token = sbon(*at_a, "token", "--name", "b", "--ttl", "10m").stdout
        joined = subprocess.run(
            [*SBON, *map(str, at_b), "join", member, "--token", "-"],
            input=token,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            env=ENVIRONMENT,
        )
        assert joined.stdout.startswith("joined the overlay of a"), joined.stderr
        status = json.loads(sbon(*at_b, "status", "--json").stdout)
        assert (status["trust"], status["peers"]) == ("member", ["a"])
        assert "member of cluster" in sbon(*at_b, "status").stdout
        assert "valid until" in sbon(*at_b, "renew").stdout
        assert "not on this host" in error_of(*at_b, "token")
        assert "revoked b" in sbon(*at_a, "revoke", "b").stdout
        assert "revoked" in error_of(*at_b, "renew")
        assert "another daemon uses" in error_of("init", "--config", b)


def test_mistakes_with_init_and_token(tmp_path: Path) -> None:
    assert "Give --config FILE, or --name" in error_of("init")
    assert "give either" in error_of("init", "--config", write_config(tmp_path, "a"), "--name", "b")
    sbon("init", "--dir", tmp_path / "c", "--name", "c")
    assert "belongs to a cluster already" in error_of("init", "--dir", tmp_path / "c", "--name", "c")
    assert "not a duration" in sbon("token", "--ttl", "1", expect=2).stderr


@pytest.mark.parametrize("text", ["", "open = 3\n", 'authority = "nowhere"\n', "certificate_days = 0\n"])
def test_mistakes_in_the_configuration(tmp_path: Path, text: str) -> None:
    file = write_config(tmp_path, "a")
    file.write_text(file.read_text() + "[trust]\n" + text + ("" if text else "close = true\n"))
    assert "trust." in error_of("run", "--config", file)
