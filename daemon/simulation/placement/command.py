"""``sbon simulate placement``: its arguments, and what it prints (docs/placement.md)."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from daemon.simulation.arguments import names_among, several
from daemon.simulation.placement import networks, plot
from daemon.simulation.placement.embedding import embed
from daemon.simulation.placement.figures import PAPER, Penalty, PlacementReport, StrategyFigures
from daemon.simulation.placement.ground import OVERLOADED, Ground, GroundHost
from daemon.simulation.placement.networks import KnownNetwork
from daemon.simulation.placement.queries import SHAPES
from daemon.simulation.placement.run import Experiment, Results, run
from daemon.simulation.progress import Progress, progress
from overlay.config import OverlayConfig
from sbon.errors import SbonError
from sbon.placement import strategies

OVERLAY, EMBEDDING = "overlay", "embedding"
ALL, TRANSIT = "all", "transit"
#: Pairs whose predictions are looked at for the report.
MAX_PAIRS = 100_000


@dataclass(frozen=True)
class Numbers:
    whole: Callable[[str], int]
    natural: Callable[[str], int]
    minutes: Callable[[str], float]
    hours: Callable[[str], float]
    seconds: Callable[[str], float]
    share: Callable[[str], float]


def add_to(subparsers: Any, add_common: Callable[..., None], number: Numbers) -> argparse.ArgumentParser:
    """The command's arguments. ``number`` has the types that the other commands read numbers with."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "placement", help="strategies against the exact optimum", allow_abbrev=False
    )
    add_common(parser)
    parser.add_argument("--transit-stub", action="store_true", help="1,550 nodes after the founding paper's, not --rtt")
    parser.add_argument("--nodes", type=number.whole, metavar="N", help="how many (default: one for each site)")
    parser.add_argument("--queries", type=number.natural, metavar="K", default=1000, help="default: 1000")
    parser.add_argument(
        "--shape",
        type=names_among(SHAPES),
        metavar="A,B",
        default=("aggregate-4",),
        help=f"of {', '.join(SHAPES)} (aggregate-4); a report for each",
    )
    parser.add_argument(
        "--operators", type=number.natural, metavar="N", default=6, help="at most, not in aggregate-4 (6)"
    )
    parser.add_argument("--candidates", choices=(ALL, TRANSIT), default=ALL, help="who may run operators (all)")
    parser.add_argument(
        "--probes",
        type=several(number.natural),
        metavar="K,L",
        default=(10,),
        help="candidates measured per operator (10); a report for each",
    )
    parser.add_argument("--coordinates", choices=(OVERLAY, EMBEDDING), default=OVERLAY, help="default: overlay")
    parser.add_argument(
        "--minutes", type=number.minutes, metavar="M", default=10.0, help="the overlay's life before (10)"
    )
    parser.add_argument(
        "--strategies",
        type=names_among(strategies.NAMES),
        metavar="A,B",
        default=strategies.NAMES,
        help=f"of {', '.join(strategies.NAMES)}",
    )
    parser.add_argument(
        "--overloaded", type=number.share, metavar="P", default=0.0, help="share of the hosts that are overloaded (0)"
    )
    parser.add_argument("--seed", type=number.natural, metavar="S", default=1, help="all is drawn from it (default: 1)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw both distributions into an SVG file")
    return parser


def simulate(arguments: argparse.Namespace, config: OverlayConfig) -> int:
    """Print reports; the exit status."""
    seed = arguments.seed
    experiments = [
        Experiment(seed, arguments.queries, shape, arguments.operators, probes, arguments.strategies)
        for shape in arguments.shape
        for probes in arguments.probes
    ]
    if arguments.plot is not None and len(experiments) > 1:
        raise SbonError("--plot draws one report: give one --shape and one of --probes")
    began = time.monotonic()
    if arguments.transit_stub:
        network = networks.from_transit_stub(seed)
    else:
        network = networks.from_files(arguments.rtt, arguments.nodes, seed)
    with progress("simulating") as shown:
        ground = _ground(arguments, network, config, shown)
    for experiment in experiments:
        with progress("simulating") as shown:
            results = run(experiment, ground, lambda done, total: shown.show(done, total, "placing"))
        report = _report(experiment, arguments, network.name, ground, results, time.monotonic() - began)
        began = time.monotonic()
        if arguments.plot is not None:
            plot.write(arguments.plot, results)
        if arguments.json:
            print(msgspec.json.encode(report).decode(), flush=True)
        else:
            print_report(report)
    return 0


def _report(
    experiment: Experiment,
    arguments: argparse.Namespace,
    network: str,
    ground: Ground,
    results: Mapping[str, Results],
    seconds: float,
) -> PlacementReport:
    return PlacementReport(
        seed=experiment.seed,
        network=network,
        hosts=len(ground.hosts),
        candidates=int(ground.truth.takes.sum()),
        queries=experiment.queries,
        shape=experiment.shape,
        probes=experiment.probes,
        coordinates=arguments.coordinates,
        overloaded=arguments.overloaded,
        relative_error=_relative_error(ground, experiment.seed),
        strategies={name: result.figures() for name, result in results.items()},
        paper=PAPER if arguments.transit_stub and experiment.shape == "aggregate-4" else None,
        seconds=round(seconds, 1),
    )


def _ground(arguments: argparse.Namespace, network: KnownNetwork, config: OverlayConfig, shown: Progress) -> Ground:
    takes = network.transit if arguments.candidates == TRANSIT else None
    if arguments.candidates == TRANSIT and takes is None:
        raise SbonError("--candidates transit needs --transit-stub: no other network has transit nodes")
    count = len(network.rtt_ms)
    rng = random.Random(f"{arguments.seed}/overloaded")
    loaded = frozenset(rng.sample(range(count), round(arguments.overloaded * count)))
    if arguments.coordinates == OVERLAY:
        from daemon.simulation.placement.overlay_ground import grow

        return grow(network, config, arguments.seed, arguments.minutes, takes, shown, loaded)
    embedding = embed(network.rtt_ms, config, arguments.seed)
    hosts = [
        GroundHost(f"n{index}", coordinate, OVERLOADED * (index in loaded), takes is None or index in takes)
        for index, coordinate in enumerate(embedding.coordinates)
    ]
    return Ground(hosts, network.rtt_ms, embedding.peers, network.route)


def _relative_error(ground: Ground, seed: int) -> float:
    """The median over pairs of hosts of |predicted - true| / true."""
    count = len(ground.hosts)
    rng = np.random.default_rng(seed)
    pairs = rng.integers(0, count, (MAX_PAIRS, 2))
    rows, columns = pairs[pairs[:, 0] != pairs[:, 1]].T
    predicted_ms = ground.places.rtt_ms(ground.places)[rows, columns]
    true_ms = ground.rtt_ms[rows, columns]
    return round(float(np.median(np.abs(predicted_ms - true_ms) / true_ms)), 5)


def print_report(report: PlacementReport) -> None:
    print(f"{report.network}: {report.hosts} hosts, {report.candidates} take operators")
    print(
        f"{report.queries} queries ({report.shape}), {report.probes} candidates measured at most per operator, "
        f"coordinates of the {report.coordinates}: median error {100.0 * report.relative_error:.1f} %\n"
    )
    paper = report.paper
    heads = "".join(f"{head:>7}" for head in ("mean", "p50", "p80", "p90"))
    work = f"{'measured':>8} {'samples':>8} {'ms per':>7}", f"{'per op.':>8} {'per q.':>8} {'query':>7}"
    print(f"{'':<11} {'usage penalty, %':>27}  {'delay penalty, %':>27}  {work[0]}{'  the paper:' if paper else ''}")
    print(f"{'':<11}{heads}  {heads}  {work[1]}{' usage, delay' if paper else ''}")
    for name, figures in report.strategies.items():
        penalties = f"{_penalty(figures.network_usage_penalty)}  {_penalty(figures.delay_penalty)}"
        usage, delay = (paper or {}).get(name, (None, None))
        its = "" if usage is None or delay is None else f" {100.0 * usage:5.0f} {100.0 * delay:6.0f}"
        print(f"{name:<11}{penalties}  {_work(figures)}{its}")
    if report.overloaded:
        print(f"\n{report.overloaded:.0%} of the hosts are overloaded; operators there, of all queries:")
        print(", ".join(f"{name} {figures.operators_on_overloaded}" for name, figures in report.strategies.items()))
    print(f"\ntook {report.seconds:g} s", flush=True)


def _penalty(penalty: Penalty) -> str:
    return "".join(f"{100.0 * share:7.1f}" for share in (penalty.mean, penalty.p50, penalty.p80, penalty.p90))


def _work(figures: StrategyFigures) -> str:
    return (
        f"{figures.candidates_measured_per_operator:8.2f} {figures.rtt_samples_per_query:8.1f} "
        f"{figures.milliseconds_per_query:7.1f}"
    )
