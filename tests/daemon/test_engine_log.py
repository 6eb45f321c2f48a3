"""The log of engines: within bounds while one writes to it, and its last words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from daemon.fragments.engine_log import MAX_LOG_BYTES, EngineLog

MEMORY_MB = 256


@pytest.fixture
def log(tmp_path: Path) -> EngineLog:
    return EngineLog(tmp_path / "engine.log")


def before(log: EngineLog) -> bytes:
    return log.path.with_suffix(".log.1").read_bytes()


def test_a_small_log_goes_on_and_its_latest_engine_has_the_last_words(log: EngineLog) -> None:
    for words in (b"sbon engine n: the first\n", b"one\ntwo\n\nthree\n"):
        with log.open() as output:
            output.write(words)
    assert log.last_words(MEMORY_MB) == "two / three"
    assert log.path.read_bytes() == b"sbon engine n: the first\none\ntwo\n\nthree\n"
    log.open().close()
    assert log.last_words(MEMORY_MB) == "", "the next one has said nothing yet"


def test_a_large_log_begins_anew_with_the_next_engine(log: EngineLog) -> None:
    with log.open() as output:
        output.write(b"lost" + MAX_LOG_BYTES * b"a")
    with log.open() as output:
        output.write(b"new\n")
    assert log.path.read_bytes() == b"new\n"
    assert before(log) == MAX_LOG_BYTES * b"a", "the end of what was written before is kept, no more"
    assert log.last_words(MEMORY_MB) == "new"


def test_a_log_is_cut_while_its_engine_writes(log: EngineLog) -> None:
    """Its position is the file's end, not a place far behind it: that would be a hole of that size."""
    log.path.write_bytes(b"of an earlier engine\n")
    command = f"import sys; print({MAX_LOG_BYTES} * 'a', flush=True); input(); print('sbon engine n: the end')"
    with log.open() as output:
        engine = subprocess.Popen([sys.executable, "-c", command], stdin=subprocess.PIPE, stdout=output, text=True)
    while log.path.stat().st_size < MAX_LOG_BYTES + 1:
        assert engine.poll() is None
    log.bound()
    assert log.path.stat().st_size == 0
    engine.communicate("\n", timeout=30.0)
    assert log.path.read_bytes() == b"sbon engine n: the end\n"
    assert log.last_words(MEMORY_MB) == "sbon engine n: the end"
    assert len(before(log)) == MAX_LOG_BYTES


def test_a_log_is_cut_although_there_is_no_room_for_what_it_said(log: EngineLog) -> None:
    log.path.with_suffix(".log.1").mkdir()
    log.path.write_bytes((MAX_LOG_BYTES + 1) * b"a")
    with pytest.raises(OSError, match="directory"):
        log.bound()
    assert log.path.stat().st_size == 0


def test_that_java_had_no_memory_says_more_than_what_came_after(log: EngineLog) -> None:
    with log.open() as output:
        output.write(b"Terminating due to java.lang.OutOfMemoryError: Java heap space\nsbon engine n: lost Java\n")
    words = log.last_words(MEMORY_MB)
    assert "Java heap space" in words
    assert f"its heap is {MEMORY_MB} MB" in words
