"""``sbon simulate``: its arguments, and what it prints (docs/simulator.md)."""

from __future__ import annotations

import argparse
import gc
import os
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec

from daemon.simulation import regions_command, text
from daemon.simulation.adaptation import command as adaptation
from daemon.simulation.fault_runs import Outcome
from daemon.simulation.figures import FailedSeed, FaultsReport, Mean, OverlayReport, Spread, quantile
from daemon.simulation.latency import Matrix, load
from daemon.simulation.liars import BY_NAME
from daemon.simulation.many_seeds import Plan, outcomes
from daemon.simulation.ownership import command as ownership
from daemon.simulation.placement import command as placement
from daemon.simulation.planning import command as planning
from daemon.simulation.progress import Progress, progress
from daemon.simulation.scenario import Run, Scenario
from overlay.config import OverlayConfig
from sbon.errors import SbonError

WORST = "worst"
MAX_NODES = 100_000
MAX_JOBS = 1024
MAX_MINUTES = 30 * 24 * 60.0

EXAMPLES = """\
examples:
  sbon simulate overlay --nodes 100 --minutes 5                     a small one over 44 cloud regions
  sbon simulate overlay --rtt rtt.npz --minutes 30 --seed 7 --json  the sites of a matrix of your own
  sbon simulate overlay --nodes 1000 --arrivals 7.5 --minutes 15    nodes come one after the other, not all at once
  sbon simulate overlay --nodes 1000 --minutes 10 --crashes 100     how long a death goes unseen
  sbon simulate faults --seeds 1..100 --nodes 30..60                everything that can go wrong
  sbon simulate ownership --seeds 1..100                            moves, crashes and splits: nothing lost
  sbon simulate placement --transit-stub --candidates transit       the founding paper's table
  sbon simulate planning --workload airline                         join order, reuse and hosts decided together
  sbon simulate regions --transit-stub 1024                         clusters of hosts, coordinators and standbys
  sbon simulate adaptation --jitter 0.1 --hours 24 --queries 20     nothing changes: nothing should move
"""

#: A world of nodes is a large heap with hardly any cycles: looking through it took 40 % of the time at 10,000 nodes,
#: and with a tenth of this number still a quarter.
OBJECTS_BEFORE_COLLECTION = 10_000_000


def main(words: Sequence[str]) -> int:
    """``sbon simulate`` with the arguments ``words``; its exit status: 1 if a checker had something to say."""
    arguments = make_parser().parse_args(words)
    gc.set_threshold(OBJECTS_BEFORE_COLLECTION)
    status: int = arguments.action(arguments)
    return status


def make_parser() -> argparse.ArgumentParser:
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="sbon simulate",
        description="Whole overlays of the shipped protocol in virtual time, from one seed.",
        epilog=EXAMPLES,
        formatter_class=raw,
        allow_abbrev=False,
    )
    subparsers = parser.add_subparsers(metavar="WHAT", required=True)
    overlay = subparsers.add_parser("overlay", help="an overlay, measured", allow_abbrev=False)
    _add_common(overlay)
    overlay.add_argument("--nodes", type=_whole, metavar="N", help="how many (default: one for each site)")
    overlay.add_argument("--minutes", type=_minutes, metavar="M", default=10.0, help="virtual ones (default: 10)")
    overlay.add_argument(
        "--arrivals",
        type=_minutes,
        metavar="M",
        default=0.0,
        help="nodes come within the first M minutes, the more the more there are (default: all in ten seconds)",
    )
    overlay.add_argument("--seed", type=_natural, metavar="S", default=1, help="all is drawn from it (default: 1)")
    overlay.add_argument("--loss", type=_share, metavar="P", default=0.0, help="of all datagrams (0 to 1)")
    overlay.add_argument(
        "--asymmetric-loss",
        type=_share_and_loss,
        metavar="SHARE:P",
        default=(0.0, 0.0),
        help="a share of the nodes loses P of what it sends, or of what is sent to it",
    )
    overlay.add_argument("--jitter-ms", type=_milliseconds, metavar="MS", default=0.0, help="mean of an exponential")
    overlay.add_argument("--churn-per-minute", type=_share, metavar="P", default=0.0, help="share that is replaced")
    overlay.add_argument(
        "--churn-from", type=_minute, metavar="M", default=1.0, help="minute of the first (default: 1)"
    )
    overlay.add_argument("--crashes", type=_natural, metavar="K", default=0, help="single ones, one after the other")
    overlay.add_argument("--liars", type=_share, metavar="P", default=0.0, help="share of the nodes that lie together")
    overlay.add_argument(
        "--attack",
        choices=[*BY_NAME, WORST],
        default=WORST,
        help="what the liars do; worst: one run for each, and the worst is shown beside all medians (default)",
    )
    overlay.add_argument("--searches", type=_natural, metavar="K", default=200, help="of each kind, at the end")
    overlay.add_argument(
        "--searches-per-minute", type=_natural, metavar="K", default=0, help="of each kind, each minute (default: 0)"
    )
    overlay.add_argument("--play", action="store_true", help="play the slices of the matrix in order")
    overlay.set_defaults(action=simulate_overlay)
    faults = subparsers.add_parser("faults", help="a mix of faults for each of many seeds", allow_abbrev=False)
    _add_common(faults)
    faults.add_argument("--seeds", type=_range, metavar="A..B", default=(1, 20), help="default: 1..20")
    faults.add_argument("--nodes", type=_range, metavar="A..B", default=(30, 60), help="default: 30..60")
    faults.add_argument(
        "--jobs", type=_jobs, metavar="J", default=os.cpu_count() or 1, help="processes (default: one for each core)"
    )
    faults.set_defaults(action=simulate_faults)
    ownership.add_to(subparsers, _range).set_defaults(action=simulate_ownership)
    numbers = placement.Numbers(_whole, _natural, _minutes, _hours, _seconds, _share)
    placement.add_to(subparsers, _add_common, numbers).set_defaults(action=simulate_placement)
    planning.add_to(subparsers, _add_common, numbers).set_defaults(action=simulate_planning)
    regions_command.add_to(subparsers, _add_common, numbers).set_defaults(action=simulate_regions)
    adaptation.add_to(subparsers, _add_common, numbers).set_defaults(action=simulate_adaptation)
    return parser


def _add_common(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--rtt",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help=".npz or .csv of round trips in ms; several are slices in order (default: 44 cloud regions)",
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="a setting of [overlay], as in the daemon's configuration",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


# --- arguments


def _natural(word: str) -> int:
    if not word.isascii() or not word.isdigit():
        raise argparse.ArgumentTypeError(f"{word!r} is not a whole number")
    return int(word)


def _jobs(word: str) -> int:
    value = _natural(word)
    if not 1 <= value <= MAX_JOBS:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of processes: 1 to {MAX_JOBS}")
    return value


def _whole(word: str) -> int:
    value = _natural(word)
    if not 2 <= value <= MAX_NODES:
        raise argparse.ArgumentTypeError(f"{word!r} is not a number of nodes: 2 to {MAX_NODES}")
    return value


def _float(word: str, least: float, most: float, what: str) -> float:
    try:
        value = float(word)
    except ValueError:
        value = -1.0
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{word!r} is not {what}")
    return value


def _minutes(word: str) -> float:
    return _float(word, 0.5, MAX_MINUTES, f"a number of minutes (0.5 to {MAX_MINUTES:g})")


def _minute(word: str) -> float:
    return _float(word, 0.0, MAX_MINUTES, f"a minute (0 to {MAX_MINUTES:g})")


def _milliseconds(word: str) -> float:
    return _float(word, 0.0, 10_000.0, "a number of milliseconds (0 to 10000)")


def _hours(word: str) -> float:
    return _float(word, 0.01, MAX_MINUTES / 60.0, f"a number of hours (0.01 to {MAX_MINUTES / 60.0:g})")


def _seconds(word: str) -> float:
    return _float(word, 1.0, 3600.0, "a number of seconds (1 to 3600)")


def _share(word: str) -> float:
    return _float(word, 0.0, 1.0, "a share (0 to 1)")


def _share_and_loss(word: str) -> tuple[float, float]:
    share, colon, loss = word.partition(":")
    if not colon:
        raise argparse.ArgumentTypeError(f"{word!r} is not SHARE:P, as in 0.05:0.5")
    return _share(share), _share(loss)


def _range(word: str) -> tuple[int, int]:
    match = re.fullmatch(r"([0-9]+)(?:\.\.([0-9]+))?", word)
    if match is None:
        raise argparse.ArgumentTypeError(f"{word!r} is not A..B, as in 1..20")
    first, last = int(match[1]), int(match[2] or match[1])
    if last < first:
        raise argparse.ArgumentTypeError(f"{word!r} is empty: the smaller number comes first")
    return first, last


def _config(settings: Sequence[str]) -> OverlayConfig:
    """Raises SbonError for a setting that there is not, or that cannot be."""
    values: dict[str, Any] = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        if not equals:
            raise SbonError(f"--set {setting}: give NAME=VALUE, as in --set probe_interval_s=0.5")
        values[name.strip()] = value.strip()
    try:
        config = msgspec.convert(values, OverlayConfig, strict=False)
        config.check()
    except (msgspec.ValidationError, ValueError) as error:
        raise SbonError(f"--set: {error}: see [overlay] in deploy/sbon.toml") from error
    return config


# --- one overlay


def overlay_scenario(arguments: argparse.Namespace) -> Scenario:
    """Raises SbonError for arguments that do not go together."""
    if arguments.arrivals >= arguments.minutes:
        raise SbonError(f"--arrivals {arguments.arrivals:g}: fewer than --minutes {arguments.minutes:g}")
    if arguments.churn_per_minute and arguments.arrivals + arguments.churn_from >= arguments.minutes:
        raise SbonError(f"--churn-from {arguments.churn_from:g}: the run ends before: give more --minutes")
    slices = load(arguments.rtt)
    share, loss = arguments.asymmetric_loss
    return Scenario(
        slices=slices,
        network=_name(arguments.rtt, slices),
        nodes=arguments.nodes or slices.shape[1],
        minutes=arguments.minutes,
        seed=arguments.seed,
        config=_config(arguments.set),
        loss=arguments.loss,
        asymmetric_share=share,
        asymmetric_loss=loss,
        jitter_ms=arguments.jitter_ms,
        churn_per_minute=arguments.churn_per_minute,
        churn_from_minute=arguments.churn_from,
        crashes=arguments.crashes,
        searches=arguments.searches,
        searches_per_minute=arguments.searches_per_minute,
        play=arguments.play,
        arrival_minutes=arguments.arrivals,
    )


def simulate_overlay(arguments: argparse.Namespace) -> int:
    scenario = overlay_scenario(arguments)
    _say_seed(f"seed {scenario.seed}", arguments)
    with progress("simulating") as shown:
        if not arguments.liars:
            report = Run(scenario, shown).go()
        elif arguments.attack != WORST:
            report = Run(replace(scenario, liars=arguments.liars, attack=arguments.attack), shown).go()
        else:
            report = _worst(scenario, arguments.liars, shown)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        text.print_overlay(report)
    return 1 if report.violations else 0


def _worst(scenario: Scenario, liars: float, shown: Progress) -> OverlayReport:
    """The run with the attack that harms most, and the errors with each; "none" is the run without liars."""
    began = time.monotonic()
    spreads: dict[str, Spread] = {}
    worst: OverlayReport | None = None
    for name in (None, *BY_NAME):
        report = Run(replace(scenario, liars=liars if name else 0.0, attack=name), shown).go()
        if report.relative_error is not None:
            spreads[name or "none"] = report.relative_error
            if name and (worst is None or report.relative_error.median > spreads[str(worst.attack)].median):
                worst = report
    if worst is None:
        raise SbonError("no pair of honest nodes was left to be measured: simulate more nodes")
    return msgspec.structs.replace(worst, attacks=spreads, seconds=round(time.monotonic() - began, 1))


def _name(files: Sequence[Path], slices: Matrix) -> str:
    names = ", ".join(file.name for file in files) or "built-in (44 cloud regions)"
    return f"{names}: {slices.shape[1]} sites, {slices.shape[0]} slice{'s' if len(slices) > 1 else ''}"


def _say_seed(line: str, arguments: argparse.Namespace) -> None:
    """First of all: what a run that does not end can be repeated with."""
    print(line, file=sys.stderr if arguments.json else sys.stdout, flush=True)


def _say_seeds(arguments: argparse.Namespace) -> None:
    _say_seed("seeds {}..{}".format(*arguments.seeds), arguments)


# --- placement and planning


def simulate_placement(arguments: argparse.Namespace) -> int:
    config = _config(arguments.set)
    _say_seed(f"seed {arguments.seed}", arguments)
    return placement.simulate(arguments, config)


def simulate_planning(arguments: argparse.Namespace) -> int:
    config = _config(arguments.set)
    _say_seed(f"seed {arguments.seed}", arguments)
    return planning.simulate(arguments, config)


def simulate_regions(arguments: argparse.Namespace) -> int:
    config = _config(arguments.set)
    _say_seed(f"seed {arguments.seed}", arguments)
    return regions_command.simulate(arguments, config)


# --- adaptation


def simulate_adaptation(arguments: argparse.Namespace) -> int:
    config = _config(arguments.set)
    _say_seed(f"seed {arguments.seed}", arguments)
    return adaptation.simulate(arguments, config)


# --- many seeds


def simulate_ownership(arguments: argparse.Namespace) -> int:
    _say_seeds(arguments)
    return ownership.simulate(arguments)


def simulate_faults(arguments: argparse.Namespace) -> int:
    slices, config = load(arguments.rtt), _config(arguments.set)
    least, most = arguments.nodes
    if not 2 <= least <= most <= MAX_NODES:
        raise SbonError(f"--nodes {least}..{most}: 2 to {MAX_NODES} are possible")
    _say_seeds(arguments)
    began = time.monotonic()
    done: list[Outcome] = []
    failed: list[FailedSeed] = []
    first, last = arguments.seeds
    seeds = range(first, last + 1)
    with progress("simulating") as shown, outcomes(Plan(slices, config, least, most), seeds, arguments.jobs) as coming:
        for outcome in coming:
            done.append(outcome)
            if outcome.problems:
                failed.append(FailedSeed(outcome.seed, outcome.problems, _replay(arguments, outcome.seed)))
                print(f"seed {outcome.seed} failed: {failed[-1].command}", file=sys.stderr, flush=True)
            shown.show(len(done), len(seeds), f"seed {outcome.seed}, {len(failed)} failed")
    report = _faults_report(arguments, done, failed, time.monotonic() - began)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        text.print_faults(report)
    return 1 if failed else 0


def _replay(arguments: argparse.Namespace, seed: int) -> str:
    words = ["sbon simulate faults", f"--seeds {seed}", "--nodes {}..{}".format(*arguments.nodes)]
    words += [f"--rtt {file}" for file in arguments.rtt]
    words += [f"--set {setting}" for setting in arguments.set]
    return " ".join(words)


def _faults_report(
    arguments: argparse.Namespace, done: list[Outcome], failed: list[FailedSeed], seconds: float
) -> FaultsReport:
    healed = [outcome.healed_s for outcome in done if outcome.healed_s is not None]
    settled = [outcome.settled_s for outcome in done if outcome.settled_s is not None]
    node_hours = sum(outcome.node_seconds for outcome in done) / 3600.0
    cpu_s = sum(outcome.cpu_s for outcome in done)
    digest = 0
    for outcome in done:
        digest = (digest * 31 + outcome.digest) & 0xFFFFFFFF
    return FaultsReport(
        seeds="{}..{}".format(*arguments.seeds),
        runs=len(done),
        failed=tuple(failed),
        healed_s=_mean(healed),
        settled_s=_mean(settled),
        false_removals=sum(outcome.false_removals for outcome in done),
        deliveries=sum(outcome.deliveries for outcome in done),
        digest=f"{digest:08x}",
        node_hours=round(node_hours, 2),
        seconds=round(seconds, 1),
        node_hours_per_cpu_minute=round(node_hours / (cpu_s / 60.0), 1),
    )


def _mean(values: Sequence[float]) -> Mean | None:
    return Mean(round(sum(values) / len(values), 1), quantile(values, 0.99)) if values else None
