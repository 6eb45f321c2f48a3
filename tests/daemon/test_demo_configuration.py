"""The demo's generated configuration files are ones that the daemon accepts, and say what the scenario says."""

from __future__ import annotations

from pathlib import Path

from daemon.config import load_config
from daemon.demo.configuration import configuration
from daemon.demo.scenario import make_scenario


def test_every_generated_file_is_accepted_and_means_the_same(tmp_path: Path) -> None:
    scenario = make_scenario(tmp_path, tmp_path / 'out with "quotes" and é', 36_000.0)
    for site in scenario.sites:
        file = tmp_path / f"{site.name}.toml"
        file.write_text(configuration(site, scenario), encoding="utf-8")
        config = load_config(file)
        assert config.node.name == site.name
        assert config.node.socket == site.socket
        assert config.node.accept_operators is site.accepts_operators
        assert config.stream == site.streams
        assert config.sink == site.sinks
        assert config.emulation is not None
        for other in scenario.sites:
            if other is not site:
                assert config.emulation.rtt_ms[other.name] == scenario.rtt_ms[site.index][other.index]
