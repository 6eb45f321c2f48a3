"""The five configuration files of the demo: what a user would write, with the distances of the five cities added."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from daemon.demo.scenario import Scenario, Site

#: Probes often, because everything happens within two minutes here.
OVERLAY = {"probe_interval_s": 0.2}
PLACEMENT = {"period_s": 2.0, "rest_s": 5.0}
#: Four Sparks start at once and live for two minutes, perhaps on two slow cores that others use too: they look for work
#: less often, and do without Java's second compiler, which halves the processor time of a short life.
ENGINE = {
    "idle_s": 600.0,
    "trigger_ms": 1500,
    "spark": {"spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1"},
}
#: Five daemons on one host must look idle to each other: the demo is about the network.
LOAD = 0.0


def configuration(
    site: Site,
    scenario: Scenario,
    placement: Mapping[str, float] = PLACEMENT,
    engine: Mapping[str, Any] = ENGINE,
) -> str:
    """The TOML text for ``site``."""
    others = (other for other in scenario.sites if other is not site)
    rtt_ms = {other.name: scenario.rtt_ms[site.index][other.index] for other in others}
    node = {
        "name": site.name,
        "listen": site.address,
        "state_dir": str(site.folder / "state"),
        "socket": str(site.socket),
        "accept_operators": site.accepts_operators,
        "load": LOAD,
    }
    tables: list[tuple[str, Any]] = [
        ("[node]", node),
        ("[overlay]", OVERLAY),
        ("[placement]", placement),
        ("[engine]", engine),
        ("[emulation]", {"rtt_ms": rtt_ms}),
        *(("[[stream]]", msgspec.to_builtins(stream)) for stream in site.streams),
        *(("[[sink]]", msgspec.to_builtins(sink)) for sink in site.sinks),
    ]
    return toml(tables)


def toml(tables: Iterable[tuple[str, Mapping[str, Any]]]) -> str:
    """A configuration of (heading, table) pairs."""
    lines = []
    for heading, table in tables:
        lines += [heading, *(f"{key} = {toml_value(value)}" for key, value in table.items()), ""]
    return "\n".join(lines)


def toml_value(value: Any) -> str:
    """``value`` (text, number, truth, dict of these) as TOML; a JSON string is also a TOML string."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {toml_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(value, ensure_ascii=False)
