"""``sbon simulate ownership``: many seeds of :mod:`daemon.simulation.ownership.run`."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable

import msgspec

from daemon.simulation.ownership.run import OwnershipRun


class OwnershipReport(msgspec.Struct, frozen=True):
    """``failed`` maps a seed to what it violated; the counts are sums over all seeds."""

    seeds: str
    runs: int
    failed: dict[int, str]
    rows: int
    takeovers: int
    generations: int
    keeper_changes: int
    crashes: int
    cuts: int


def add_to(
    subparsers: argparse._SubParsersAction[argparse.ArgumentParser], to_range: Callable[[str], tuple[int, int]]
) -> argparse.ArgumentParser:
    """The command's arguments."""
    parser = subparsers.add_parser(
        "ownership",
        help="who owns what while hosts crash and the network splits",
        description="The daemon's rules of ownership, leases and replicas, with a modelled engine, under a mix of "
        "faults: nothing may be lost or doubled, and nothing may run twice.",
        allow_abbrev=False,
    )
    parser.add_argument("--seeds", type=to_range, metavar="A..B", default=(1, 100), help="default: 1..100")
    parser.add_argument("--json", action="store_true", help="print JSON")
    return parser


def simulate(arguments: argparse.Namespace) -> int:
    """Print a report; the exit status: 1 if a seed has failed."""
    first, last = arguments.seeds
    failed: dict[int, str] = {}
    outcomes = []
    for seed in range(first, last + 1):
        outcome = OwnershipRun(seed).go()
        outcomes.append(outcome)
        if outcome.error is not None:
            failed[seed] = outcome.error
            print(f"seed {seed} failed: {outcome.error}", file=sys.stderr, flush=True)
    report = OwnershipReport(
        seeds=f"{first}..{last}",
        runs=len(outcomes),
        failed=failed,
        rows=sum(outcome.rows for outcome in outcomes),
        takeovers=sum(outcome.takeovers for outcome in outcomes),
        generations=sum(outcome.generations for outcome in outcomes),
        keeper_changes=sum(outcome.keeper_changes for outcome in outcomes),
        crashes=sum(outcome.crashes for outcome in outcomes),
        cuts=sum(outcome.cuts for outcome in outcomes),
    )
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        for name, value in msgspec.structs.asdict(report).items():
            if name not in ("seeds", "failed"):
                print(f"{name:14} {value}")
        print(f"{'failed':14} {len(failed)}")
    return 1 if failed else 0
