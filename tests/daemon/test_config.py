from __future__ import annotations

from pathlib import Path

import pytest

from daemon.config import Config, load_config, parse_address
from sbon.errors import ConfigurationError

NODE = '[node]\nname = "a"\nlisten = "127.0.0.1:7400"\n'
STREAM = '[[stream]]\nname = "flights"\nformat = "replay"\nschema = "ts TIMESTAMP"\nevent_time = "ts"\n'
SINK = '[[sink]]\nname = "delays"\nformat = "parquet"\n'


def load(folder: Path, text: str) -> Config:
    file = folder / "node.toml"
    file.write_text(text)
    return load_config(file)


def test_the_least_configuration(tmp_path: Path) -> None:
    config = load(tmp_path, NODE)
    assert config.node.listen_address == ("127.0.0.1", 7400)
    assert config.emulation is None
    assert config.node.accept_operators


def test_relative_paths_are_relative_to_the_file(tmp_path: Path) -> None:
    text = NODE + 'state_dir = "state"\nsocket = "s.sock"\n' + STREAM + 'options = { path = "f.csv" }\n' + SINK
    config = load(tmp_path, text + 'options = { path = "out" }\n')
    assert config.node.state_dir == tmp_path / "state"
    assert config.node.socket == tmp_path / "s.sock"
    assert config.stream[0].options["path"] == str(tmp_path / "f.csv")
    assert config.sink[0].options["path"] == str(tmp_path / "out")


def test_paths_with_a_scheme_stay(tmp_path: Path) -> None:
    config = load(tmp_path, NODE + STREAM + 'options = { path = "s3://bucket/f" }\n')
    assert config.stream[0].options["path"] == "s3://bucket/f"


def test_an_empty_emulation_table_switches_it_on(tmp_path: Path) -> None:
    assert load(tmp_path, NODE + "[emulation]\n").emulation is not None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[node", "is not TOML"),
        ("", "node is missing"),
        ('[node]\nname = "a"\n', "node.listen is missing"),
        ("node = 3", "node: expected table, got int"),
        (NODE + "lod = 1\n", "node.lod is not a setting: node can have name, listen, advertise"),
        (NODE + "[engin]\n", "engin is not a setting: the file can have node, overlay, trust, capacity, placement"),
        (NODE + "[engine]\nmemory_mb = '1G'\n", "engine.memory_mb: expected int, got str"),
        (NODE + "[engine]\nmemory_mb = 1\n", "engine.memory_mb: expected int >= 384"),
        (NODE + "[overlay]\ndimensions = 99\n", "overlay.dimensions must be 1 to 8, not 99"),
        (NODE + "[overlay]\nprobe_interval_s = 0\n", "overlay.probe_interval_s must be more than 0"),
        (NODE + "[placement]\ncandidates = 0\n", "placement.candidates: expected int >= 1"),
        (NODE + "load = 'busy'\n", 'write "host", or a number'),
        (NODE + "load = 100.5\n", 'node.load: expected float <= 100.0: write "host", or a number'),
        (
            NODE + "[placement]\nstrategy = 'relaxation'\ncandidates = 65\n",
            "placement.candidates: at most 64 are possible with the strategy relaxation",
        ),
        ("[node]\nname = \"a\\n\"\nlisten = '127.0.0.1:1'\n", "use letters, digits"),
        (NODE + "state_dir = 3\n", "node.state_dir: expected a path in quotes, got 3"),
        (NODE + "accept_operators = 'yes'\n", "node.accept_operators: expected bool, got str"),
        (NODE + f"socket = '/{'x' * 120}'\n", "node.socket: "),
        ("[node]\nname = 'a b'\nlisten = '127.0.0.1:1'\n", "use letters, digits"),
        ("[node]\nname = 'a'\nlisten = '127.0.0.1'\n", 'node.listen: "127.0.0.1" is not an address: write HOST:PORT'),
        ("[node]\nname = 'a'\nlisten = '127.0.0.1:99999'\n", "write HOST:PORT"),
        ("[node]\nname = 'a'\nlisten = '0.0.0.0:7400'\n", "node.advertise is missing"),
        (NODE + STREAM + "speed = 3\n", "stream[0].speed is not a setting: stream[0] can have name, format"),
        (NODE + STREAM + "options = { speedup = 3 }\n", "values of options are written in quotes"),
        (NODE + STREAM + STREAM, 'stream.name: "flights" is there 2 times'),
        (NODE + SINK + SINK, 'sink.name: "delays" is there 2 times'),
        (NODE + SINK.replace("delays", "the delays"), "cannot be used in SQL"),
        (NODE + "[emulation.rtt_ms]\nb = -1\n", "write a round trip in ms"),
    ],
)
def test_mistakes_are_told_in_one_line_with_file_and_key(tmp_path: Path, text: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        load(tmp_path, text)
    message = str(caught.value)
    assert expected in message
    assert str(tmp_path / "node.toml") in message
    assert "\n" not in message


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"cannot read .*nowhere\.toml"):
        load_config(tmp_path / "nowhere.toml")


def test_a_file_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "node.toml").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigurationError, match="is not TOML"):
        load_config(tmp_path / "node.toml")


@pytest.mark.parametrize(("text", "expected"), [("[::1]:7", ("::1", 7)), ("host.example:7400", ("host.example", 7400))])
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


def test_the_default_configuration_is_valid_and_shows_the_defaults(tmp_path: Path) -> None:
    text = (Path(__file__).parents[2] / "deploy" / "sbon.toml").read_text()
    as_it_is = load(tmp_path, text)
    settings = [line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in text.splitlines()]
    uncommented = load(tmp_path, "\n".join(line for line in settings if not line.startswith("advertise")))
    for section in ("node", "overlay", "placement", "engine"):
        assert getattr(uncommented, section) == getattr(as_it_is, section)
    assert uncommented.stream[0].name == "flights"
    assert uncommented.emulation is not None
