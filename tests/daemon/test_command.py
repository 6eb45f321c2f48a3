"""The console command, when another package is called ``daemon`` too."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import daemon
from sbon.command import foreign_daemon

COMMAND = [sys.executable, "-P", "-c", "import sys; from sbon.command import main; sys.exit(main())", "--help"]


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(COMMAND, capture_output=True, text=True, env=os.environ | environment)


def test_ours_is_run() -> None:
    assert foreign_daemon() is None
    done = run()
    assert done.returncode == 0
    assert "sbon submit" in done.stdout


def test_another_package_on_the_path_is_told_in_one_line_and_not_run(tmp_path: Path) -> None:
    (tmp_path / "daemon").mkdir()
    (tmp_path / "daemon" / "__init__.py").write_text("print('run!')")
    done = run(PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert done.stdout == ""
    assert len(done.stderr.splitlines()) == 1
    assert "finds another package" in done.stderr


def test_another_package_installed_over_ours_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(daemon, "DISTRIBUTION")
    assert "was installed over sbon's" in (foreign_daemon() or "")
