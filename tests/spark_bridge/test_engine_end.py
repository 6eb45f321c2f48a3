"""How an engine notices that its daemon is gone."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any, cast

import pytest

from spark_bridge.engine import Engine, EngineSettings


@pytest.mark.parametrize("has_unread", [False, True])
def test_an_engine_that_runs_nothing_ends_with_its_daemon(tmp_path: Path, has_unread: bool) -> None:
    """Also when it was killed with words of the engine unread: then the connection does not just close."""
    path = tmp_path / "engine.sock"
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(path))
        listener.listen()
        engine = Engine(EngineSettings("east", path, tmp_path))
        engine._socket.connect(str(path))
        engine._fragments = cast(Any, object())
        daemon, _ = listener.accept()
        if has_unread:
            engine._socket.sendall(b"x")
        reading = threading.Thread(target=engine._read_calls)
        reading.start()
        daemon.close()
        reading.join(10.0)
        engine._socket.close()
    assert engine._ending.is_set()
