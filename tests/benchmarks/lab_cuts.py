"""How long real daemons take to find out that a host is cut off, and to have it back once it is healed.

    sudo python -m tests.benchmarks.lab_cuts [--set probe_interval_s=0.2]

Twelve hosts in the lab; each in turn is cut off from all others, and healed. Prints JSON, in seconds: `gone` until no
other node knows it any more, `alone` until it knows nobody, `back` from the mending until all know all again. Views are
looked at five times a second.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.lab.daemons import Node, WideArea, running, see
from tests.lab.lab import Lab, why_impossible
from tests.truth import cloud_region_names, cloud_regions

PATIENCE_S = 180.0
#: Between one return and the next cut.
REST_S = 5.0


def cut_and_heal(area: WideArea, node: Node) -> tuple[float, float, float]:
    """(gone, alone, back)"""
    others = area.others(node)
    area.lab.isolate(node.host)
    gone_s = area.until(lambda: all(node.name not in other.nodes() for other in others), PATIENCE_S)
    alone_s = gone_s + area.until(lambda: len(node.nodes()) == 1, PATIENCE_S)
    area.lab.reconnect(node.host)
    back_s = area.until(lambda: see(area.nodes, {each.name for each in area.nodes}), PATIENCE_S)
    return gone_s, alone_s, back_s


def run(settings: Mapping[str, float]) -> list[tuple[float, float, float]]:
    rtt_ms, names = cloud_regions(), cloud_region_names()
    with (
        tempfile.TemporaryDirectory() as folder,
        Lab(rtt_ms) as lab,
        running(lab, names, rtt_ms, Path(folder), settings) as area,
    ):
        area.until(lambda: see(area.nodes, set(names)), PATIENCE_S)
        results = []
        for node in area.nodes:
            time.sleep(REST_S)
            results.append(cut_and_heal(area, node))
        return results


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Detection and return of hosts that are cut off, in the lab.")
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of [overlay]")
    parsed = parser.parse_args(arguments)
    problem = why_impossible()
    if problem is not None:
        sys.exit(f"lab_cuts: error: no wide-area lab here: {problem}")
    settings = {name: float(value) for name, _, value in (word.partition("=") for word in parsed.set)}
    results = run(settings)
    figures = {
        name: {"median": round(statistics.median(values), 1), "max": round(max(values), 1)}
        for name, values in zip(("gone_s", "alone_s", "back_s"), zip(*results, strict=True), strict=True)
    }
    print(json.dumps({"settings": settings, "cuts": len(results), **figures}, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
