"""``sbon simulate regions``: the hierarchy of clusters forms, loses hosts, and puts itself right (docs/planning.md)."""

from __future__ import annotations

import argparse
import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np

from daemon.simulation import transit_stub
from daemon.simulation.placement import networks
from daemon.simulation.placement.command import Numbers
from daemon.simulation.placement.embedding import embed
from daemon.simulation.regions import RegionWorld
from overlay.config import OverlayConfig
from sbon.errors import SbonError

DEFAULT_NODES = 128
#: In virtual time: how often is looked whether all is well, how long that may take, and how long it rests then.
LOOK_S = 5.0
LONGEST_S = 3600.0
REST_S = 600.0


class RegionsReport(msgspec.Struct, frozen=True):
    """``clusters``: by level. ``formed_s`` and ``healed_s``: until every host is in one cluster of a hierarchy with one
    top, from the start and from the loss of ``killed`` hosts, the top among them. ``most_known``: members of all
    clusters that one node leads. ``nearness``: mean path within clusters over that between any two hosts."""

    seed: int
    network: str
    hosts: int
    max_cs: int
    period_s: float
    clusters: tuple[int, ...]
    formed_s: float
    killed: int
    healed_s: float
    most_known: int
    nearness: float
    requests_per_node_minute: float
    seconds: float


def add_to(subparsers: Any, add_common: Callable[..., None], number: Numbers) -> argparse.ArgumentParser:
    """The command's arguments."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "regions", help="the hierarchy of clusters at run time", allow_abbrev=False
    )
    add_common(parser)
    parser.add_argument(
        "--transit-stub", type=number.whole, metavar="N", help=f"about N nodes, not --rtt (default: {DEFAULT_NODES})"
    )
    parser.add_argument("--nodes", type=number.whole, metavar="N", help="of --rtt, how many (default: the sites)")
    parser.add_argument("--max-cs", type=number.whole, metavar="N", default=32, help="hosts in a cluster (32)")
    parser.add_argument("--period", type=number.seconds, metavar="S", default=30.0, help="of reports, in s (30)")
    parser.add_argument("--loss", type=number.share, metavar="P", default=0.0, help="of all requests (0 to 1)")
    parser.add_argument("--kill", type=number.share, metavar="P", default=0.1, help="share of the hosts (0.1)")
    parser.add_argument("--seed", type=number.natural, metavar="S", default=1, help="all is drawn from it (default: 1)")
    return parser


def simulate(arguments: argparse.Namespace, config: OverlayConfig) -> int:
    """Print a report; the exit status: 1 if it does not come to rest."""
    began = time.monotonic()
    if arguments.max_cs < 4:
        raise SbonError(f"--max-cs {arguments.max_cs}: at least 4")
    if arguments.rtt:
        if arguments.transit_stub is not None:
            raise SbonError("--transit-stub and --rtt are two networks: give one of them")
        network = networks.from_files(arguments.rtt, arguments.nodes, arguments.seed)
    else:
        shape = transit_stub.Shape.of(arguments.transit_stub or DEFAULT_NODES)
        network = networks.from_transit_stub(arguments.seed, shape)
    hosts = len(network.rtt_ms)
    coordinates = embed(network.rtt_ms, config, arguments.seed).coordinates
    names = [f"n{number}" for number in range(hosts)]
    world = RegionWorld(
        dict(zip(names, coordinates, strict=True)),
        max_cs=arguments.max_cs,
        period_s=arguments.period,
        loss=arguments.loss,
        seed=arguments.seed,
    )
    for name in names:
        world.start(name)
    formed_s = _until_well(world)
    before = world.requests
    world.run(world.now_s + REST_S)
    requests = 60.0 * (world.requests - before) / REST_S / hosts
    clusters = world.clusters()
    known = Counter[str]()
    for _, name, members in clusters:
        known[name] += len(members)
    lowest = [[int(name[1:]) for name in members] for level, _, members in clusters if level == 1]
    near = _mean_path(network.rtt_ms, lowest)
    lost = {*world.tops(), *random.Random(f"{arguments.seed}/kill").sample(names, round(arguments.kill * hosts))}
    for name in lost:
        world.kill(name)
    report = RegionsReport(
        seed=arguments.seed,
        network=network.name,
        hosts=hosts,
        max_cs=arguments.max_cs,
        period_s=arguments.period,
        clusters=tuple(count for _, count in sorted(Counter(level for level, _, _ in clusters).items())),
        formed_s=formed_s,
        killed=len(lost),
        healed_s=_until_well(world),
        most_known=max(known.values()),
        nearness=round(near / _mean_path(network.rtt_ms, [list(range(hosts))]), 3),
        requests_per_node_minute=round(requests, 2),
        seconds=round(time.monotonic() - began, 1),
    )
    print(msgspec.json.encode(report).decode() if arguments.json else _as_text(report))
    return 0


def _until_well(world: RegionWorld) -> float:
    """Seconds until nothing is wrong. Raises SbonError, saying what is, if that takes too long."""
    began_s = world.now_s
    while world.now_s < began_s + LONGEST_S:
        world.run(world.now_s + LOOK_S)
        if not world.faults():
            return world.now_s - began_s
    raise SbonError(f"after {LONGEST_S:g} s something is wrong still: {'; '.join(world.faults())}")


def _mean_path(rtt_ms: Any, groups: list[list[int]]) -> float:
    paths = [rtt_ms[np.ix_(group, group)][np.triu_indices(len(group), 1)] for group in groups]
    return float(np.mean(np.concatenate(paths)))


def _as_text(report: RegionsReport) -> str:
    clusters = " and ".join(str(count) for count in report.clusters)
    return (
        f"{report.network}: {report.hosts} hosts in {clusters} clusters of at most {report.max_cs}\n"
        f"paths within clusters are {report.nearness:g} times as long as those between any two hosts\n"
        f"a node that leads knows {report.most_known} members at most, and sends {report.requests_per_node_minute:g} "
        f"requests a minute on average\n"
        f"all was well {report.formed_s:g} s after the start, and {report.healed_s:g} s after {report.killed} hosts "
        f"were lost, the top among them (reports every {report.period_s:g} s)\n\ntook {report.seconds:g} s"
    )
