"""Whether real daemons predict round trips as well as simulated ones: the same twelve sites, settings and time.

    sudo python -m tests.benchmarks.lab_error [--labs 4] [--seconds 180] [--set probe_interval_s=0.2]

One overlay of twelve is one draw of many: a site that settles on the wrong side of the others stays there for minutes.
So several labs run, side by side, and as many seeds several times over are simulated. Prints JSON: the median relative
error of each, and the ratio of their means.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path

from tests.lab.daemons import WideArea, running, see
from tests.lab.lab import Lab, why_impossible
from tests.lab.simulated import median_errors
from tests.truth import cloud_region_names, cloud_regions

SEEDS_PER_LAB = 4
JOIN_S = 120.0


def in_labs(labs: int, settings: Mapping[str, float], seconds: float) -> list[list[float]]:
    """For each lab the median error after ``seconds``, and at each of five moments before."""
    rtt_ms, names = cloud_regions(), cloud_region_names()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        areas: list[WideArea] = []
        for number in range(labs):
            lab = stack.enter_context(Lab(rtt_ms, seed=number))
            (folder / str(number)).mkdir()
            areas.append(stack.enter_context(running(lab, names, rtt_ms, folder / str(number), settings)))
        started_s = time.monotonic()
        for area in areas:
            area.until(lambda: see(area.nodes, set(names)), JOIN_S)  # noqa: B023 (called at once)
        course: list[list[float]] = [[] for _ in areas]
        for step in range(1, 7):
            time.sleep(max(0.0, started_s + seconds * step / 6 - time.monotonic()))
            for area, medians in zip(areas, course, strict=True):
                medians.append(statistics.median(area.relative_errors(rtt_ms)))
        return course


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Prediction errors in the lab, and in the simulator.")
    parser.add_argument("--labs", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=180.0)
    parser.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", help="a setting of [overlay]")
    parsed = parser.parse_args(arguments)
    problem = why_impossible()
    if problem is not None:
        sys.exit(f"lab_error: error: no wide-area lab here: {problem}")
    settings = {name: float(value) for name, _, value in (word.partition("=") for word in parsed.set)}
    course = in_labs(parsed.labs, settings, parsed.seconds)
    simulated = median_errors(settings, parsed.seconds, range(1, parsed.labs * SEEDS_PER_LAB + 1))
    real = [medians[-1] for medians in course]
    figures = {
        "settings": settings,
        "seconds": parsed.seconds,
        "lab": {"mean": round(statistics.fmean(real), 4), "medians": [round(error, 4) for error in real]},
        "lab_course": [[round(error, 4) for error in medians] for medians in course],
        "simulator": {
            "mean": round(statistics.fmean(simulated), 4),
            "medians": [round(error, 4) for error in simulated],
        },
        "ratio": round(statistics.fmean(real) / statistics.fmean(simulated), 2),
    }
    print(json.dumps(figures, indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
