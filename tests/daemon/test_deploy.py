from __future__ import annotations

import configparser
import shutil
import subprocess
from pathlib import Path

import pytest

DEPLOY = Path(__file__).parents[2] / "deploy"


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed on this machine")
def test_systemd_accepts_the_unit() -> None:
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(DEPLOY / "sbon.service")], capture_output=True, text=True
    )
    if "sbon.service" not in done.stderr and done.returncode != 0:
        pytest.skip(f"systemd-analyze cannot work on this machine: {done.stderr.strip()}")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(
    shutil.which("systemd-sysusers") is None, reason="systemd-sysusers is not installed on this machine"
)
def test_systemd_accepts_the_user() -> None:
    subprocess.run(
        ["systemd-sysusers", "--dry-run", str(DEPLOY / "sbon.sysusers.conf")], check=True, capture_output=True
    )


def test_the_unit_is_of_the_promised_kind() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(DEPLOY / "sbon.service")
    service = unit["Service"]
    assert (service["Type"], service["User"]) == ("notify", "sbon")
    assert {"WatchdogSec", "StateDirectory", "RuntimeDirectory", "ProtectSystem", "NoNewPrivileges"} <= set(service)
