"""``sbon demo``: its arguments, its course from scratch folder to verdict, its report."""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import TypeVar

import msgspec
import trio

from daemon.demo.check import Verdict, compare_with_reference
from daemon.demo.conductor import Conductor, Course
from daemon.demo.processes import running_daemons
from daemon.demo.scenario import DEFAULT_SPEEDUP, QUERY, Scenario, make_scenario
from daemon.demo.usage import TrueNetwork, usage_bytes
from daemon.demo.view import PlainView, Scene, TerminalView, View, usage_text
from sbon.errors import SbonError

T = TypeVar("T")


class InterruptedDemo(Exception):
    """A signal asked the demo to end."""

    def __init__(self, number: int) -> None:
        super().__init__(signal.Signals(number).name)
        self.number = number


class Report(msgspec.Struct, frozen=True):
    """What ``--json`` prints. Network usages are bytes in transit, all at the mean measured rates of the links.

    ``before`` is before the path became slow; ``after``, ``if_stayed`` and ``at_consumer`` are with the slow path.
    ``downtime_ms`` is that of the longest move: from the stop of a fragment to its start on the new host.
    """

    nodes: int
    migrations: int
    rows: int
    identical: bool
    network_usage_before: float | None
    network_usage_after: float | None
    network_usage_if_stayed: float | None
    network_usage_at_consumer: float | None
    downtime_ms: float | None
    seconds: float
    difference: str | None
    placement_before: dict[str, str]
    placement_after: dict[str, str]


def main(words: Sequence[str]) -> int:
    """``sbon demo`` with the arguments ``words``; its exit status."""
    parser = argparse.ArgumentParser(
        prog="sbon demo",
        description="Five daemons on this machine with the round trips of five cities between them: flights and"
        " weather of July 2013 are joined where it costs least, a path becomes slow, the operators move, the result is"
        " checked.",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep result/*.parquet and query.sql in DIR")
    parser.add_argument("--json", action="store_true", help="print one JSON object at the end, progress on stderr")
    parser.add_argument(
        "--speedup",
        type=positive,
        default=DEFAULT_SPEEDUP,
        metavar="X",
        help=f"event seconds per second (default {DEFAULT_SPEEDUP:g}: July 2013 in a minute and a half)",
    )
    parser.add_argument("--keep", action="store_true", help="keep the daemons' folders (configurations, logs, state)")
    return run_demo(parser.parse_args(words))


def positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError("must be a number above 0")
    return value


def run_demo(arguments: argparse.Namespace) -> int:
    """Run the demo; the exit status: 0 if the result is identical. Raises SbonError if it cannot be run."""
    started = time.monotonic()
    scratch = Path(tempfile.mkdtemp(prefix="sbon-demo-"))
    try:
        out = (arguments.out or scratch).absolute()
        scenario = prepare(scratch, out, arguments.speedup)
        network = TrueNetwork(scenario)
        scene = Scene(network)
        live = sys.stdout.isatty() and not arguments.json
        view: View = TerminalView(scene) if live else PlainView(scene)
        try:
            course, verdict = trio.run(
                until_signal, lambda: demonstrate(scenario, network, scene, view, arguments.speedup)
            )
        except BaseExceptionGroup as group:
            raise meant_error(group) from None
        report = make_report(scenario, network, course, verdict, time.monotonic() - started)
        if arguments.json:
            print(msgspec.json.encode(report).decode())
        else:
            print_report(report, out if arguments.out else None)
        return 0 if report.identical else 1
    except InterruptedDemo as interrupted:
        print(f"sbon demo: ended by {interrupted}", file=sys.stderr)
        return 128 + interrupted.number
    finally:
        if arguments.keep:
            print(f"the daemons' folders are kept in {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def prepare(scratch: Path, out: Path, speedup: float) -> Scenario:
    """Make the folders, and take away the result of an earlier run. SbonError if ``out`` cannot be written."""
    scenario = make_scenario(scratch, out, speedup)
    try:
        scenario.result.mkdir(parents=True, exist_ok=True)
        for old in scenario.result.glob("*.parquet"):
            old.unlink()
        (out / "query.sql").write_text(QUERY, encoding="utf-8")
    except OSError as error:
        raise SbonError(f"cannot write to {error.filename}: {error.strerror}: give another folder with --out") from None
    return scenario


async def demonstrate(
    scenario: Scenario, network: TrueNetwork, scene: Scene, view: View, speedup: float
) -> tuple[Course, Verdict]:
    """Daemons up, the course, daemons down, the check."""
    with view:
        view.say("starting five daemons")
        async with running_daemons(scenario):
            course = await Conductor(scenario, QUERY, network, scene, view).conduct(speedup)
        scene.phase = "checking the result against plain Spark over the whole files"
        view.say(scene.phase)
        scratch = scenario.sites[0].folder.parent
        return course, await compare_with_reference(scenario.result, QUERY, scenario.streams, scratch)


async def until_signal(main: Callable[[], Awaitable[T]]) -> T:
    """Await ``main()``; SIGINT and SIGTERM cancel it, so that what it started is ended, and raise InterruptedDemo."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_raise_on_signal)
        result = await main()
        nursery.cancel_scope.cancel()
    return result


async def _raise_on_signal() -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        async for number in signals:
            raise InterruptedDemo(number)


def meant_error(group: BaseExceptionGroup[BaseException]) -> BaseException:
    """The one error in ``group`` that is for the user, or the group itself if there is none: a bug of ours."""
    kinds: tuple[type[Exception], ...] = (InterruptedDemo, SbonError)
    for kind in kinds:
        found: BaseException | None = group.subgroup(kind)
        while isinstance(found, BaseExceptionGroup):
            found = found.exceptions[0]
        if found is not None:
            return found
    return group


def make_report(scenario: Scenario, network: TrueNetwork, course: Course, verdict: Verdict, seconds: float) -> Report:
    """The figures; those about the change are None if the replay was over before it."""
    links = course.rates.links()
    changed = course.placement_before is not None
    before = course.placement_before or course.placement
    at_consumer = dict.fromkeys(course.unpinned, scenario.consumer.name)
    return Report(
        nodes=len(scenario.sites),
        migrations=course.migrations,
        rows=verdict.rows,
        identical=verdict.identical,
        network_usage_before=usage_bytes(links, before, TrueNetwork(scenario)),
        network_usage_after=usage_bytes(links, course.placement, network) if changed else None,
        network_usage_if_stayed=usage_bytes(links, before, network) if changed else None,
        network_usage_at_consumer=usage_bytes(links, course.placement, network, at_consumer),
        downtime_ms=max(course.downtimes_ms, default=None),
        seconds=round(seconds, 1),
        difference=verdict.difference,
        placement_before=before,
        placement_after=course.placement,
    )


def print_report(report: Report, out: Path | None) -> None:
    """The figures as sentences, on stdout."""
    print(
        f"{report.rows} rows; " + ("identical to the reference" if report.identical else f"WRONG: {report.difference}")
    )
    print(f"{report.migrations} moves, the longest downtime {report.downtime_ms or 0:.0f} ms")
    usages = {
        "before the path became slow": report.network_usage_before,
        "after the moves": report.network_usage_after,
        "had the operators stayed": report.network_usage_if_stayed,
        "everything at the consumer": report.network_usage_at_consumer,
    }
    print("network usage: " + ", ".join(f"{usage_text(usage)} {when}" for when, usage in usages.items()))
    print(f"{report.seconds:.0f} s" + (f"; the result is in {out / 'result'}" if out else ""))
