"""``sbon simulate planning``: its arguments, and what it prints (docs/planning.md)."""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from daemon.simulation import transit_stub
from daemon.simulation.arguments import names_among
from daemon.simulation.placement import networks
from daemon.simulation.placement.command import EMBEDDING, OVERLAY, Numbers
from daemon.simulation.placement.networks import KnownNetwork
from daemon.simulation.planning import overlay_view, plot, search_space
from daemon.simulation.planning.figures import PlannerFigures, PlanningReport, SearchSpaceReport
from daemon.simulation.planning.run import OPTIMAL, Ground, Plans, Results, plans_by, run
from daemon.simulation.planning.workloads import Width, Workload, airline, synthetic
from daemon.simulation.progress import progress
from overlay.config import OverlayConfig
from sbon.errors import SbonError
from sbon.placement.optimum import Truth
from sbon.planning import planners
from sbon.planning.hierarchy import build
from sbon.planning.problem import JoinQuery

FULL = "full"
DEFAULT_NODES = 128
DEFAULT_QUERIES = {Workload.SYNTHETIC: 100, Workload.AIRLINE: 300}
#: The enumeration of all trees takes too long with more.
MAX_OPTIMAL_HOSTS = 400


def add_to(subparsers: Any, add_common: Callable[..., None], number: Numbers) -> argparse.ArgumentParser:
    """The command's arguments. ``number`` has the types that the other commands read numbers with."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "planning", help="planners of join order, reuse and hosts against the optimum", allow_abbrev=False
    )
    add_common(parser)
    parser.add_argument(
        "--transit-stub", type=number.whole, metavar="N", help=f"about N nodes, not --rtt (default: {DEFAULT_NODES})"
    )
    parser.add_argument("--nodes", type=number.whole, metavar="N", help="of --rtt, how many (default: the sites)")
    parser.add_argument(
        "--workload", type=Workload, choices=[*Workload], default=Workload.SYNTHETIC, help="default: synthetic"
    )
    parser.add_argument(
        "--width", type=Width, choices=[*Width], default=Width.FIXED, help="of joined airline records (fixed)"
    )
    parser.add_argument("--queries", type=number.natural, metavar="K", help="default: 100 synthetic, 300 airline")
    parser.add_argument("--view", choices=(FULL, OVERLAY), default=FULL, help="what planners know (full)")
    parser.add_argument(
        "--coordinates", choices=(OVERLAY, EMBEDDING), default=OVERLAY, help="where --view overlay has them from"
    )
    parser.add_argument(
        "--minutes", type=number.minutes, metavar="M", default=10.0, help="the overlay's life before (10)"
    )
    parser.add_argument(
        "--planners",
        type=names_among(planners.NAMES),
        metavar="A,B",
        default=planners.NAMES,
        help=f"of {', '.join(planners.NAMES)}",
    )
    parser.add_argument("--max-cs", type=number.whole, metavar="N", default=32, help="hosts in a cluster (32)")
    parser.add_argument("--replan", action="store_true", help="then plan running queries anew, once each at most")
    parser.add_argument(
        "--search-space", action="store_true", help="plans looked at on 64 to 1,024 nodes, and their bounds, instead"
    )
    parser.add_argument("--seed", type=number.natural, metavar="S", default=1, help="all is drawn from it (default: 1)")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="draw cost by query, or search spaces, into an SVG")
    return parser


def simulate(arguments: argparse.Namespace, config: OverlayConfig) -> int:
    """Print a report; the exit status."""
    if arguments.queries == 0:
        raise SbonError("--queries 0: give at least one")
    if arguments.search_space:
        return _simulate_search_space(arguments)
    began = time.monotonic()
    network = _network(arguments)
    queries = _queries(arguments, len(network.rtt_ms))
    with progress("simulating") as shown:
        ground, asking = _ground(arguments, config, network, shown)
        results = _results(arguments, queries, ground, asking, shown)
    optimal = results.get(OPTIMAL)
    optimal_cost = None if optimal is None else optimal.costs[-1]
    report = PlanningReport(
        seed=arguments.seed,
        network=network.name,
        hosts=len(network.rtt_ms),
        workload=arguments.workload,
        width=arguments.width if arguments.workload == Workload.AIRLINE else None,
        queries=len(queries),
        view=arguments.view,
        max_cs=arguments.max_cs,
        levels=tuple(len(clusters) for clusters in ground.hierarchy.levels),
        optimal_cost=None if optimal_cost is None else round(optimal_cost, 3),
        planners={name: result.figures(optimal_cost) for name, result in results.items()},
        seconds=round(time.monotonic() - began, 1),
    )
    if arguments.plot is not None:
        plot.write_costs(arguments.plot, {name: result.costs for name, result in results.items()})
    _print(report, arguments.json, print_report)
    return 0


def _network(arguments: argparse.Namespace) -> KnownNetwork:
    if arguments.rtt:
        if arguments.transit_stub is not None:
            raise SbonError("--transit-stub and --rtt are two networks: give one of them")
        return networks.from_files(arguments.rtt, arguments.nodes, arguments.seed)
    shape = transit_stub.Shape.of(arguments.transit_stub or DEFAULT_NODES)
    return networks.from_transit_stub(arguments.seed, shape)


def _queries(arguments: argparse.Namespace, hosts: int) -> list[JoinQuery]:
    rng = random.Random(f"{arguments.seed}/queries")
    count = arguments.queries or DEFAULT_QUERIES[arguments.workload]
    if arguments.workload == Workload.AIRLINE:
        return airline(count, hosts, rng, arguments.width)
    return synthetic(count, hosts, rng)


def _ground(
    arguments: argparse.Namespace, config: OverlayConfig, network: KnownNetwork, shown: Any
) -> tuple[Ground, Plans | None]:
    """The network as it is and as it is believed to be; how joint asks, where it has to."""
    rng = random.Random(f"{arguments.seed}/clusters")
    if arguments.view == FULL:
        truth = Truth.of([f"n{index}" for index in range(len(network.rtt_ms))], network.rtt_ms)
        return Ground(truth, truth, build(truth.one_way_s, arguments.max_cs, rng)), None
    if arguments.coordinates == EMBEDDING:
        placed = overlay_view.by_embedding(network, config, arguments.seed)
    else:
        placed = overlay_view.by_overlay(network, config, arguments.seed, arguments.minutes, shown)
    believed = overlay_view.believed(placed)
    hierarchy = build(believed.one_way_s, arguments.max_cs, rng)
    return Ground(placed.truth, believed, hierarchy), overlay_view.plans_by_asking(placed)


def _results(
    arguments: argparse.Namespace, queries: list[JoinQuery], ground: Ground, asking: Plans | None, shown: Any
) -> dict[str, Results]:
    """By planner; ``optimal`` first, on the network as it is, where there are not too many hosts."""
    names = [name for name in arguments.planners if name != OPTIMAL]
    seen_all = Ground(ground.truth, ground.truth, ground.hierarchy)
    small = len(ground.truth.node_ids) <= MAX_OPTIMAL_HOSTS
    todo = [(OPTIMAL, plans_by(OPTIMAL), seen_all)] if small else []
    todo += [(name, asking if name == "joint" and asking is not None else plans_by(name), ground) for name in names]
    done = 0

    def show(count: int) -> None:
        nonlocal done
        done += count
        shown.show(done, len(todo) * len(queries), "planning")

    moves = len(queries) if arguments.replan else 0
    return {name: run(queries, there, plans, show, moves if name == "joint" else 0) for name, plans, there in todo}


def _simulate_search_space(arguments: argparse.Namespace) -> int:
    began = time.monotonic()
    count = arguments.queries or DEFAULT_QUERIES[Workload.SYNTHETIC]
    with progress("simulating") as shown:
        found = search_space.compare(arguments.seed, count, arguments.max_cs, shown)
    report = SearchSpaceReport(
        seed=arguments.seed,
        queries=count,
        streams=search_space.STREAMS,
        max_cs=arguments.max_cs,
        networks=found,
        seconds=round(time.monotonic() - began, 1),
    )
    if arguments.plot is not None:
        plot.write_search_spaces(arguments.plot, found)
    _print(report, arguments.json, print_search_space)
    return 0


# --- text


def _print(report: Any, as_json: bool, as_text: Callable[[Any], None]) -> None:
    if as_json:
        print(msgspec.json.encode(report).decode())
    else:
        as_text(report)


def print_report(report: PlanningReport) -> None:
    width = f", joined records of {report.width} width" if report.width else ""
    clusters = " and ".join(str(count) for count in report.levels)
    print(f"{report.network}: {report.hosts} hosts in {clusters} clusters of at most {report.max_cs}")
    print(f"{report.queries} queries ({report.workload}{width}), view: {report.view}\n")
    print(f"{'':<22}{'bytes in':>11}{'above':>9}{'joins':>7}{'filters':>8}{'reused':>7}{'plans per':>11}{'ms per':>8}")
    print(f"{'':<22}{'transit':>11}{'optimal':>9}{'':>22}{'query':>11}{'query':>8}")
    for name, figures in report.planners.items():
        print(f"{name:<22}{_line(figures)}")
        if figures.measured_paths_per_query is not None:
            print(f"  {figures.measured_paths_per_query:g} paths measured for each query")
        if figures.replanned_cost is not None:
            saved = 1.0 - figures.replanned_cost / figures.cumulative_cost
            what = f"{100.0 * saved:.1f} % less, {figures.replanned_moves} queries moved"
            print(f"{'  replanned':<22}{figures.replanned_cost:11.5g}  {what}")
    print(f"\ntook {report.seconds:g} s")


def _line(figures: PlannerFigures) -> str:
    above = "" if figures.above_optimal is None else f"{100.0 * figures.above_optimal:.1f} %"
    operators = f"{figures.joins:7}{figures.filters:8}{figures.reused:7}"
    work = f"{figures.plans:11.3g}{figures.milliseconds_per_query:8.2f}"
    return f"{figures.cumulative_cost:11.5g}{above:>9}{operators}{work}"


def print_search_space(report: SearchSpaceReport) -> None:
    print(f"{report.queries} queries over {report.streams} streams each, clusters of at most {report.max_cs}")
    print("plans to choose from, per query\n")
    heads = ("hosts", "levels", "bottom-up", "npc", "top-down", "bound", "exhaustive")
    print("".join(f"{head:>11}" for head in heads))
    for row in report.networks:
        counts = (row.bottom_up, row.npc, row.top_down, row.bound, row.exhaustive)
        print(f"{row.hosts:11}{row.height:11}" + "".join(f"{count:11.3g}" for count in counts))
    print(f"\ntook {report.seconds:g} s")
