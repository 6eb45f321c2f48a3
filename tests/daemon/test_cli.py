"""The command line as users have it: real processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import msgspec
import pytest

from daemon.cli.main import VERBS, main, make_parser
from tests.daemon.real_daemons import PATIENCE_S, free_port

SBON = [sys.executable, "-m", "daemon"]
#: Of the command itself, whatever the environment of the tests says.
ENVIRONMENT = {key: value for key, value in os.environ.items() if key not in ("SBON_SOCKET", "NOTIFY_SOCKET")}


def sbon(*words: str | Path, expect: int = 0, **environment: str) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        [*SBON, *map(str, words)], capture_output=True, text=True, timeout=PATIENCE_S, env=ENVIRONMENT | environment
    )
    assert done.returncode == expect, done.stderr
    return done


def error_of(*words: str | Path, expect: int = 1, **environment: str) -> str:
    """The one line on stderr of a command that fails."""
    done = sbon(*words, expect=expect, **environment)
    lines = done.stderr.splitlines()
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("sbon: error: ")
    return lines[0]


def write_config(folder: Path, name: str) -> Path:
    file = folder / f"{name}.toml"
    file.write_text(
        f'[node]\nname = "{name}"\nlisten = "127.0.0.1:{free_port()}"\nstate_dir = "{name}"\n'
        f'socket = "{name}.sock"\nload = 0.0\n[overlay]\nprobe_interval_s = 0.05\n'
    )
    return file


def ready(process: subprocess.Popen[str], notifications: socket.socket) -> None:
    """Wait for the daemon's READY=1, as systemd does."""
    notifications.settimeout(PATIENCE_S)
    while b"READY=1" not in notifications.recv(4096):
        assert process.poll() is None


@contextmanager
def daemon(config: Path) -> Iterator[subprocess.Popen[str]]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notifications, ExitStack() as stack:
        address = str(config.with_suffix(".notify"))
        Path(address).unlink(missing_ok=True)
        notifications.bind(address)
        process = stack.enter_context(
            subprocess.Popen(
                [*SBON, "run", "--config", str(config)],
                stderr=subprocess.PIPE,
                text=True,
                env=ENVIRONMENT | {"NOTIFY_SOCKET": address},
            )
        )
        try:
            ready(process, notifications)
            yield process
        finally:
            process.kill()


def address_of(status: str) -> str:
    return str(json.loads(status)["address"])


def wait_for_member(socket_path: Path, name: str) -> None:
    """Follow the daemon's events until it has seen ``name``."""
    follow = subprocess.Popen(
        [*SBON, "--socket", str(socket_path), "events", "--follow", "--json"], stdout=subprocess.PIPE, env=ENVIRONMENT
    )
    with follow:
        assert follow.stdout is not None
        for line in follow.stdout:
            event = json.loads(line)
            if event["kind"] == "member-joined" and event["fields"]["peer"] == name:
                break
        follow.terminate()


def test_a_daemon_is_run_joined_killed_and_finds_back(tmp_path: Path) -> None:
    a, b = write_config(tmp_path, "a"), write_config(tmp_path, "b")
    socket_a, socket_b = tmp_path / "a.sock", tmp_path / "b.sock"
    with daemon(a) as first:
        with daemon(b) as second:
            address = address_of(sbon("status", "--json", SBON_SOCKET=str(socket_a)).stdout)
            assert "joined the overlay of a" in sbon("--socket", socket_b, "join", address).stdout
            wait_for_member(socket_a, "b")
            nodes = json.loads(sbon("nodes", "--json", "--socket", socket_b).stdout)
            assert [node["name"] for node in nodes] == ["b", "a"]
            latency = json.loads(sbon("latency", "a", "b", "--json", "--socket", socket_b).stdout)
            assert set(latency) == {"a", "b", "predicted_rtt_ms", "measured_rtt_ms", "samples", "error"}
            assert "alive" in sbon("nodes", "--socket", socket_b).stdout
            assert "round trip a - b" in sbon("latency", "a", "b", "--socket", socket_b).stdout
            assert "hosts asked: 1" in sbon("nearest", "--k", "1", "--socket", socket_b).stdout
            assert json.loads(sbon("queries", "--json", "--socket", socket_b).stdout) == []
            assert json.loads(sbon("operators", "--json", "--socket", socket_b).stdout) == []
            assert "member-joined" in sbon("events", "--socket", socket_a).stdout
            second.send_signal(signal.SIGKILL)
            second.wait()
        with daemon(b):
            wait_for_member(socket_b, "a")
            assert json.loads(sbon("status", "--json", "--socket", socket_b).stdout)["peers"] == ["a"]
        first.send_signal(signal.SIGTERM)
        assert first.wait(PATIENCE_S) == 0
        assert first.stderr is not None
        log = first.stderr.read()
        assert "stopping on SIGTERM" in log
        assert "Traceback" not in log
    assert not socket_a.exists()


def test_what_the_daemon_refuses(tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    socket_path = tmp_path / "a.sock"
    at = ("--socket", socket_path)
    with daemon(config) as running:
        assert 'no node "atlantis" is known' in error_of("latency", "a", "atlantis", *at)
        assert "cannot join" in error_of("join", f"127.0.0.1:{free_port()}", *at)
        assert "cannot read" in error_of("submit", tmp_path / "nowhere.sql", *at)
        assert "there is no query q1" in error_of("explain", "q1", *at)
        assert "there is no query q1" in error_of("cancel", "q1", *at)
        assert "there is no fragment f1" in error_of("migrate", "f1", "a", *at)
        (tmp_path / "bad.sql").write_text("INSERT INTO nothing SELECT")
        assert error_of("submit", tmp_path / "bad.sql", *at)
        assert "another daemon uses the state directory" in error_of("run", "--config", config)
        assert running.poll() is None


def test_starts_that_fail(tmp_path: Path) -> None:
    config = write_config(tmp_path, "a")
    text = config.read_text()
    assert "cannot read" in error_of("run", "--config", tmp_path / "nowhere.toml")
    config.write_text(text + "[engine]\nmemory = 3\n")
    assert "engine.memory is not a setting" in error_of("run", "--config", config)
    config.write_text(text)
    port = int(text.partition("127.0.0.1:")[2].partition('"')[0])
    with socket.socket(type=socket.SOCK_DGRAM) as taken:
        taken.bind(("127.0.0.1", port))
        assert f"UDP 127.0.0.1:{port} is in use" in error_of("run", "--config", config)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", port))
        taken.listen()
        assert f"TCP 127.0.0.1:{port} is in use" in error_of("run", "--config", config)


def test_no_daemon(tmp_path: Path) -> None:
    message = error_of("status", "--socket", tmp_path / "nothing.sock")
    assert "no daemon listens at" in message
    assert "sbon run" in message
    assert str(tmp_path) in error_of("status", SBON_SOCKET=str(tmp_path / "nothing.sock"))


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["fly"],
        ["join"],
        ["nearest", "--k", "none"],
        ["nearest", "--k", "0"],
        ["emulate", "a", "b", "-3"],
        ["emulate", "a", "b", "nan"],
        ["status", "extra"],
        ["run"],
    ],
)
def test_command_lines_that_cannot_be_read(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(words)
    assert caught.value.code == 2
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.parametrize("verb", [verb.name for verb in VERBS])
def test_every_verb_teaches_with_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main([verb, "--help"])
    assert caught.value.code == 0
    assert f"  sbon {verb}" in capsys.readouterr().out


def test_the_examples_can_be_read() -> None:
    """What help shows is parsed by the same parser."""
    parser = make_parser()
    for verb in VERBS:
        for command, _ in verb.examples:
            words = command.partition("sbon ")[2].partition(" | ")[0].split()
            if command.startswith("sbon "):
                parser.parse_args(words)


def test_options_stand_before_the_verb_or_after_it() -> None:
    parser = make_parser()
    for words in (["--socket", "x", "--json", "status"], ["status", "--json", "--socket", "x"]):
        parsed = parser.parse_args(words)
        assert (parsed.socket, parsed.json) == (Path("x"), True)


def test_a_reader_that_has_seen_enough_is_no_error(tmp_path: Path) -> None:
    with daemon(write_config(tmp_path, "a")):
        read, write = os.pipe()
        os.close(read)
        done = subprocess.run(
            [*SBON, "status", "--socket", str(tmp_path / "a.sock")],
            stdout=write,
            stderr=subprocess.PIPE,
            env=ENVIRONMENT,
        )
        os.close(write)
    assert done.stderr == b""


def test_json_is_one_line_per_object(tmp_path: Path) -> None:
    with daemon(write_config(tmp_path, "a")):
        lines = sbon("events", "--json", "--socket", tmp_path / "a.sock").stdout.splitlines()
    assert [msgspec.json.decode(line)["kind"] for line in lines] == ["started"]
