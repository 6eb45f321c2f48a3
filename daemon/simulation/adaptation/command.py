"""``sbon simulate adaptation``: its arguments, and what it prints (docs/placement.md)."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from daemon.config import PlacementConfig
from daemon.fragments.local_policy import policy_of
from daemon.simulation.adaptation.changing import ChangingGround, routes_changed
from daemon.simulation.adaptation.figures import AdaptationReport
from daemon.simulation.adaptation.run import A_DIFFERENCE, Run, Setting, Twins
from daemon.simulation.latency import Matrix, load
from daemon.simulation.placement.command import Numbers
from daemon.simulation.placement.networks import from_slice
from daemon.simulation.placement.queries import SHAPES
from daemon.simulation.progress import progress
from overlay.config import OverlayConfig
from sbon.placement import strategies

#: Route changes are spread over so many moments.
CHANGES = 24
#: A saving below this share cannot be recovered in part: there is nothing to be had.
LEAST_SAVING = 1e-4


def add_to(subparsers: Any, add_common: Callable[..., None], number: Numbers) -> argparse.ArgumentParser:
    """The command's arguments. ``number`` has the types that the other commands read numbers with."""
    parser: argparse.ArgumentParser = subparsers.add_parser(
        "adaptation", help="migrating queries and pinned twins while the network changes", allow_abbrev=False
    )
    add_common(parser)
    parser.add_argument("--queries", type=number.natural, metavar="K", default=100, help="default: 100")
    parser.add_argument("--shape", choices=tuple(SHAPES), default="aggregate-4", help="default: aggregate-4")
    parser.add_argument(
        "--operators", type=number.natural, metavar="N", default=6, help="at most, not in aggregate-4 (6)"
    )
    parser.add_argument("--hours", type=number.hours, metavar="H", help="virtual ones (default: 1 for each slice)")
    parser.add_argument(
        "--route-changes",
        type=number.share,
        metavar="P",
        default=0.0,
        help="share of the hosts whose routes change (0)",
    )
    parser.add_argument(
        "--jitter", type=number.share, metavar="P", default=0.0, help="mean of what samples are longer by, a share (0)"
    )
    parser.add_argument(
        "--probes", type=number.natural, metavar="K", default=10, help="candidates measured in a search (10)"
    )
    parser.add_argument(
        "--first", choices=strategies.NAMES, default="sbon", help="strategy of the first placement (default: sbon)"
    )
    parser.add_argument("--look-s", type=number.seconds, metavar="S", default=60.0, help="between two looks (60)")
    parser.add_argument(
        "--state-kb", type=number.natural, metavar="KB", default=100, help="state that moves with an operator (100)"
    )
    parser.add_argument("--seed", type=number.natural, metavar="S", default=1, help="all is drawn from it (default: 1)")
    return parser


def simulate(arguments: argparse.Namespace, config: OverlayConfig) -> int:
    """Print a report; the exit status."""
    began = time.monotonic()
    slices = load(arguments.rtt)
    setting = Setting(
        seed=arguments.seed,
        queries=max(1, arguments.queries),
        shape=arguments.shape,
        max_operators=arguments.operators,
        probes=arguments.probes,
        hours=arguments.hours or float(len(slices)),
        look_s=arguments.look_s,
        state_bytes=1000 * arguments.state_kb,
        policy=policy_of(PlacementConfig()),
        first=arguments.first,
        probe_interval_s=config.probe_interval_s,
    )
    matrices = [from_slice(slices[index : index + 1]) for index in range(len(slices))]
    ground = ChangingGround(matrices[0], config, setting.seed, arguments.jitter, setting.look_s)
    with progress("simulating") as shown:
        run = Run(setting, ground, _truth(matrices, setting, arguments.route_changes))
        run.go(lambda done, total: shown.show(done, total, "queries run"))
    report = _report(run, setting, arguments, slices.shape, time.monotonic() - began)
    if arguments.json:
        print(msgspec.json.encode(report).decode())
    else:
        print_report(report)
    return 0


def _truth(matrices: Sequence[Matrix], setting: Setting, share: float) -> Callable[[int], Matrix | None]:
    """By look: the slices one after the other, each for as long, and the routes changed up to then."""
    looks = setting.looks
    changed = routes_changed(matrices[0], share, CHANGES, setting.seed)
    last = (0, 0)

    def at(look: int) -> Matrix | None:
        nonlocal last
        now = (look * len(matrices) // looks, look * CHANGES // looks if share else 0)
        if now == last:
            return None
        last = now
        return matrices[now[0]] * changed(now[1])

    return at


def _report(
    run: Run, setting: Setting, arguments: argparse.Namespace, shape: tuple[int, ...], seconds: float
) -> AdaptationReport:
    pinned, migrating, best = (sum(twins.usage[kind] for twins in run.twins) for kind in range(3))
    late_ms, delay_ms = (sum(twins.delay_ms[kind] for twins in run.twins) for kind in range(2))
    count, effort = len(run.twins), run.effort
    saving = pinned - migrating
    query_hours = count * setting.looks * setting.look_s / 3600.0
    return AdaptationReport(
        seed=setting.seed,
        network=", ".join(file.name for file in arguments.rtt) or "built-in (44 cloud regions)",
        hosts=shape[1],
        queries=count,
        shape=setting.shape,
        first=setting.first,
        hours=setting.hours,
        jitter=arguments.jitter,
        route_changes=arguments.route_changes,
        usage_saved=round(saving / pinned, 5),
        delay_saved=round(1.0 - delay_ms / late_ms, 5),
        omniscient_usage_saved=round(1.0 - best / pinned, 5),
        recovered=round(saving / (pinned - best), 4) if pinned - best > LEAST_SAVING * pinned else None,
        moves_per_query=round(sum(twins.moves for twins in run.twins) / count, 3),
        omniscient_moves_per_query=round(sum(twins.best_moves for twins in run.twins) / count, 3),
        moves_after_convergence=sum(twins.late_moves for twins in run.twins),
        queries_that_gain=_share(run.twins, lambda saved: saved >= A_DIFFERENCE),
        queries_that_lose=_share(run.twins, lambda saved: saved <= -A_DIFFERENCE),
        move_usage=round(sum(twins.move_usage for twins in run.twins) / saving, 5) if saving > 0.0 else None,
        searches_per_query_hour=round(effort.searches / query_hours, 2),
        candidates_measured_per_query_hour=round(effort.measured / query_hours, 2),
        milliseconds_per_look=round(1000.0 * effort.seconds / max(1, effort.looks), 3),
        seconds=round(seconds, 1),
    )


def _share(all_twins: Sequence[Twins], is_so: Callable[[float], bool]) -> float:
    """Of the queries, by what each saves."""
    return round(sum(is_so(1.0 - twins.usage[1] / twins.usage[0]) for twins in all_twins) / len(all_twins), 4)


def print_report(report: AdaptationReport) -> None:
    print(f"{report.network}: {report.hosts} hosts, {report.queries} queries ({report.shape}), {report.hours:g} hours")
    recovered = "there is nothing to save" if report.recovered is None else f"{report.recovered:.1%}"
    rows = [
        ("usage saved", f"{report.usage_saved:.2%} (the omniscient: {report.omniscient_usage_saved:.2%})"),
        ("share of that recovered", recovered),
        ("delay saved", f"{report.delay_saved:.2%}"),
        ("moves per query", f"{report.moves_per_query:.2f} (the omniscient: {report.omniscient_moves_per_query:.2f})"),
        ("moves after the first hour", f"{report.moves_after_convergence}, all queries"),
        ("queries that gain, lose", f"{report.queries_that_gain:.0%}, {report.queries_that_lose:.0%}"),
        ("searches, hosts measured", f"{report.searches_per_query_hour:g}, "
         f"{report.candidates_measured_per_query_hour:g} per query and hour"),
        ("a look of the optimizer", f"{report.milliseconds_per_look:g} ms"),
    ]  # fmt: skip
    for name, value in rows:
        print(f"{name:<28} {value}")
    print(f"\ntook {report.seconds:g} s")
