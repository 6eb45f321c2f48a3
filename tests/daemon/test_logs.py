from __future__ import annotations

import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

from daemon.logs import LineFormatter, _stderr_is_journal
from daemon.notify import notify, watchdog_interval_s


def formatted(journal: bool, message: str = "moved", level: int = logging.INFO, **fields: Any) -> str:
    record = logging.LogRecord("sbon", level, "file", 1, message, None, None)
    record.fields = fields
    return LineFormatter(journal).format(record)


def test_lines_for_people_have_time_and_level() -> None:
    line = formatted(False, to="b", bytes=3, saved=0.123456789, why="it is near", nothing=None)
    assert line.endswith('info    moved to=b bytes=3 saved=0.123457 why="it is near" nothing=null')
    assert line[:2] == "20"


@pytest.mark.parametrize(
    ("level", "prefix"),
    [(logging.ERROR, "<3>"), (logging.WARNING, "<4>"), (logging.INFO, "<6>"), (logging.DEBUG, "<7>")],
)
def test_lines_for_the_journal_have_a_priority(level: int, prefix: str) -> None:
    assert formatted(True, level=level) == f"{prefix}moved"


def test_everything_is_one_line() -> None:
    assert "\n" not in formatted(False, "two\nlines", reason="more\nlines")
    try:
        raise ValueError("deep\ninside")
    except ValueError:
        record = logging.LogRecord("sbon", logging.ERROR, "file", 1, "failed", None, sys.exc_info())
    line = LineFormatter(True).format(record)
    assert "\n" not in line
    assert "ValueError: deep" in line


def test_the_journal_is_known_by_its_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with (tmp_path / "stderr").open("w") as stderr:
        monkeypatch.setattr(sys, "stderr", stderr)
        status = os.fstat(stderr.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        assert _stderr_is_journal()
        monkeypatch.setenv("JOURNAL_STREAM", "1:1")
        assert not _stderr_is_journal()


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, abstract: bool) -> None:
    name = f"sbon-test-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
        receiver.bind("\0" + name if abstract else name)
        monkeypatch.setenv("NOTIFY_SOCKET", "@" + name if abstract else name)
        notify("READY=1")
        assert receiver.recv(100) == b"READY=1"


def test_without_systemd_nothing_happens(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("NOTIFY_SOCKET", raising=False)
    notify("READY=1")
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "nobody"))
    notify("READY=1")


@pytest.mark.parametrize(
    ("usec", "pid", "expected"),
    [("60000000", "", 30.0), ("60000000", "1", None), ("", "", None), ("0", "", None), ("soon", "", None)],
)
def test_the_watchdog_is_fed_at_half_its_time(
    monkeypatch: pytest.MonkeyPatch, usec: str, pid: str, expected: float | None
) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", usec)
    monkeypatch.setenv("WATCHDOG_PID", pid)
    assert watchdog_interval_s() == expected


def test_the_watchdog_knows_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WATCHDOG_USEC", "2000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    assert watchdog_interval_s() == 1.0
