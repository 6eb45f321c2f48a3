"""What the simulator says of the overlay that the lab runs: the same sites, settings and time."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from tests.truth import CLOUD_REGIONS

#: Simulations that run at the same time, each a process of its own.
AT_ONCE = 2


def median_errors(settings: Mapping[str, float], seconds: float, seeds: Iterable[int]) -> list[float]:
    """:func:`median_error` of each seed."""
    with ThreadPoolExecutor(AT_ONCE) as pool:
        return list(pool.map(lambda seed: median_error(settings, seconds, seed), seeds))


def median_error(settings: Mapping[str, float], seconds: float, seed: int) -> float:
    """The median relative error of an overlay of the twelve cloud regions after so many virtual seconds."""
    command = [sys.executable, "-m", "daemon", "simulate", "overlay", "--json", "--searches", "0"]
    command += ["--rtt", str(CLOUD_REGIONS), "--minutes", str(seconds / 60.0), "--seed", str(seed)]
    command += [f"--set={name}={value}" for name, value in settings.items()]
    finished = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120.0)
    return float(json.loads(finished.stdout)["relative_error"]["median"])
