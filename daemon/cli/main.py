"""The command line: one table of verbs, and the way from an error to one line and an exit status.

Exit status: 0 done, 1 the user (or the world) is asked to do something, 2 a command line that cannot be read.
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from daemon.cli import verbs
from daemon.config import DEFAULT_SOCKET, DEFAULT_STATE_DIR
from daemon.durations import parse_duration_s, parse_moment_s
from sbon.errors import SbonError

INTERRUPTED = 130

EPILOG = """\
examples:
  sbon demo                                     see it work: five daemons on this machine
  sbon run --config /etc/sbon/sbon.toml         run a daemon
  sbon join 192.0.2.7:7400                      enter the overlay of the node there
  sbon nodes                                    who is there, and how far away
  sbon submit delays.sql                        start a query
  sbon simulate overlay --nodes 100             a hundred nodes in virtual time

`sbon VERB --help` has examples for each verb. The daemon to talk to is named by --socket or $SBON_SOCKET.
"""


@dataclass(frozen=True, slots=True)
class Verb:
    """``arguments`` are pairs for ArgumentParser.add_argument; ``examples`` are (command, what it does)."""

    name: str
    action: Callable[[argparse.Namespace], None]
    help: str
    examples: tuple[tuple[str, str], ...]
    arguments: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = field(default=())
    talks_to_daemon: bool = True


def _argument(*names: str, **settings: Any) -> tuple[tuple[str, ...], dict[str, Any]]:
    return names, settings


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 1")
    return int(text)


def _duration_s(text: str) -> float:
    try:
        return parse_duration_s(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _moment_s(text: str) -> float:
    try:
        return parse_moment_s(text, time.time())
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def _milliseconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0.0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds")
    return value


VERBS = (
    Verb(
        "run",
        verbs.run,
        "run a daemon in the foreground until SIGTERM or Ctrl-C",
        (
            ("sbon run --config sbon.toml", "logs go to stderr"),
            ("systemctl start sbon", "the same as a service, see deploy/"),
        ),
        (
            _argument(
                "--config", metavar="FILE", type=Path, required=True, help="its configuration, see deploy/sbon.toml"
            ),
            _argument("--verbose", action="store_true", help="log more"),
        ),
        talks_to_daemon=False,
    ),
    Verb(
        "prepare",
        verbs.prepare,
        "have engines start faster: once after an installation, a minute",
        (
            ("sbon prepare", "as the user who installed sbon: writes 200 MB beside it"),
            ("sbon prepare --again", "after another Java was installed, or the environment was moved"),
        ),
        (
            _argument("--again", action="store_true", help="even if it was done before"),
            _argument("--json", action="store_true", default=argparse.SUPPRESS, help="print JSON"),
        ),
        talks_to_daemon=False,
    ),
    Verb(
        "join",
        verbs.join,
        "enter the overlay of the node at HOST:PORT",
        (
            ("sbon join 192.0.2.7:7400", "one member is enough: it tells about the others"),
            ("sbon join 192.0.2.7:7400 --token sbon1-...", "the first time: brings back this host's certificate"),
        ),
        (
            _argument("address", metavar="HOST:PORT", help="where any member listens"),
            _argument("--token", metavar="TOKEN", help="what `sbon token` printed; - reads it from stdin"),
        ),
    ),
    Verb(
        "init",
        verbs.init,
        "make a cluster, with this host as its authority and first member",
        (
            ("sbon init --config sbon.toml", "while the daemon is stopped"),
            ("sbon init --dir /var/lib/sbon --name node-1", "the same, without its configuration"),
        ),
        (
            _argument("--config", metavar="FILE", type=Path, help="the daemon's configuration"),
            _argument("--dir", metavar="DIR", type=Path, help=f"its state_dir (default: {DEFAULT_STATE_DIR})"),
            _argument("--name", metavar="NAME", help="the node's name"),
        ),
        talks_to_daemon=False,
    ),
    Verb(
        "token",
        verbs.token,
        "print a token that lets one host join; on the host of the authority",
        (
            ("sbon token", "valid for an hour"),
            ("sbon token --name chicago --ttl 10m", "only for the host of that name"),
        ),
        (
            _argument("--name", metavar="NAME", help="the name that the host must have (default: any that is free)"),
            _argument("--ttl", metavar="TIME", type=_duration_s, default=3600.0, help="s, m, h or d (default: 1h)"),
        ),
    ),
    Verb(
        "renew",
        verbs.renew,
        "fetch a new certificate for this host now; it happens by itself in time",
        (("sbon renew", "prints until when it is valid"),),
    ),
    Verb(
        "revoke",
        verbs.revoke,
        "put a host out of the cluster; on the host of the authority",
        (("sbon revoke chicago", "it can come back with a new token only"),),
        (_argument("node", metavar="NODE", help="name or id of a host"),),
    ),
    Verb(
        "leave",
        verbs.leave,
        "leave the overlay; refused while operators run here",
        (("sbon leave", "the daemon goes on alone, until the next join"),),
    ),
    Verb(
        "status",
        verbs.status,
        "this node: coordinate, load, peers, operators",
        (
            ("sbon status", "as a table"),
            ("sbon status --json | jq .coordinate", "vector_ms, height_ms and error of the coordinate"),
        ),
    ),
    Verb(
        "nodes",
        verbs.nodes,
        "this node and those it knows, with address, round trip from here, load",
        (("sbon nodes", ""), ("sbon nodes --json | jq -r '.[].name'", "only the names")),
    ),
    Verb(
        "latency",
        verbs.latency,
        "predicted and measured round trip between two nodes",
        (("sbon latency new-york chicago", "asks one of the two if this node is neither"),),
        (
            _argument("a", metavar="A", help="name or id of a node"),
            _argument("b", metavar="B", help="name or id of a node"),
        ),
    ),
    Verb(
        "nearest",
        verbs.nearest,
        "the nearest nodes, by predicted round trip",
        (
            ("sbon nearest --k 3", "the three nearest to this node"),
            ("sbon nearest --k 1 chicago", "the one nearest to Chicago"),
        ),
        (
            _argument("--k", metavar="K", type=_count, default=10, help="how many (default: 10)"),
            _argument("node", metavar="NODE", nargs="?", help="nearest to which node (default: this one)"),
        ),
    ),
    Verb(
        "submit",
        verbs.submit,
        "start a query; prints its id",
        (
            ("sbon submit delays.sql", "INSERT INTO sink SELECT ... FROM streams"),
            ("echo 'INSERT INTO late SELECT * FROM flights WHERE dep_delay > 60' | sbon submit -", "from stdin"),
            ("sbon submit gate.sql --param 1234", "the value of the first ?; --param gate=B7 is that of :gate"),
            ("sbon submit delays.sql --until 2h", "ends by itself in two hours"),
            ("sbon submit delays.sql --from 2026-12-01T18:00+01:00", "nothing that happened before then"),
        ),
        (
            _argument("file", metavar="FILE.sql", help="the query, - for stdin"),
            _argument(
                "--param", metavar="[NAME=]VALUE", action="append", default=[], help="of :NAME, or of each ? in turn"
            ),
            _argument(
                "--from",
                dest="from_s",
                metavar="TIME",
                type=_moment_s,
                help="leave out event times before then, and windows that begin before",
            ),
            _argument(
                "--until", metavar="TIME", type=_moment_s, help="end then: 2h from now, or 2026-12-01T18:00+01:00"
            ),
        ),
    ),
    Verb(
        "streams",
        verbs.streams,
        "streams and sinks that queries can name, and what running operators put out",
        (
            ("sbon streams", "the derived ones are read by new queries that need the same join"),
            ("sbon streams --json | jq '.[] | select(.kind == \"derived\")'", "those alone"),
        ),
    ),
    Verb(
        "regions",
        verbs.regions,
        "the clusters of hosts that this node is in, from its own up to the one of all",
        (
            ("sbon regions", "with their coordinators and standbys, and what is below them"),
            ("sbon regions --json | jq -r '.regions[-1].coordinator'", "who is at the top"),
        ),
    ),
    Verb(
        "queries",
        verbs.queries,
        "all queries and how they do",
        (("sbon queries", "with network usage, now and if all operators were at the consumer"),),
    ),
    Verb(
        "operators",
        verbs.operators,
        "all operators: where they run, with rates",
        (
            ("sbon operators", ""),
            ("sbon operators --json | jq '.[] | select(.node == \"chicago\")'", "those at one node"),
        ),
    ),
    Verb(
        "links",
        verbs.links,
        "what flows between operators, as estimated and as measured",
        (
            ("sbon links", "PLACED BY says whether placement goes by what is measured yet"),
            ("sbon links --json | jq 'max_by(.in_transit_bytes)'", "the one that costs most"),
        ),
    ),
    Verb(
        "explain",
        verbs.explain,
        "why each operator of a query is where it is, and what the query shares with others",
        (("sbon explain q3f2a81", "its virtual point, the candidates and their costs, and the runner-up"),),
        (_argument("query", metavar="QUERY", help="id of a query, see `sbon queries`"),),
    ),
    Verb(
        "migrate",
        verbs.migrate,
        "move an operator to another node, by hand",
        (("sbon migrate q3f2a81-join1 chicago", "returns when it runs there"),),
        (
            _argument("fragment", metavar="FRAGMENT", help="id of a fragment, see `sbon operators`"),
            _argument("node", metavar="NODE", help="name or id of a node"),
        ),
    ),
    Verb(
        "cancel",
        verbs.cancel,
        "end a query",
        (("sbon cancel q3f2a81", "what its sink wrote stays"),),
        (_argument("query", metavar="QUERY", help="id of a query, see `sbon queries`"),),
    ),
    Verb(
        "events",
        verbs.events,
        "what happened at this node",
        (
            ("sbon events", "the latest"),
            ("sbon events --follow", "and those to come, until Ctrl-C"),
            ("sbon events --follow --json | jq 'select(.kind == \"path-changed\")'", "paths that changed"),
        ),
        (_argument("--follow", "-f", action="store_true", help="go on with events as they happen"),),
    ),
    Verb(
        "emulate",
        verbs.emulate,
        "pretend another round trip between two nodes that have [emulation]",
        (("sbon emulate new-york washington 240", "from now on it takes 240 ms"),),
        (
            _argument("a", metavar="A", help="name or id of a node"),
            _argument("b", metavar="B", help="name or id of a node"),
            _argument("rtt_ms", metavar="RTT_MS", type=_milliseconds, help="round trip in ms"),
        ),
    ),
)
DEMO = "demo"
SIMULATE = "simulate"
SIMULATE_HELP = "whole overlays of the same protocol in virtual time, from one seed"
DEMO_HELP = "see it work: five daemons on this machine, a query, a slow path, a move"


def make_parser() -> argparse.ArgumentParser:
    """The parser of all verbs but those that have their own (the demo, the simulator), and are only listed here."""
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        prog="sbon",
        description="A stream-based overlay network for Spark: continuous queries that find their place.",
        epilog=EPILOG,
        formatter_class=raw,
        allow_abbrev=False,
    )
    default = Path(os.environ.get("SBON_SOCKET") or DEFAULT_SOCKET)
    _add_common(parser, default, json_default=False)
    subparsers = parser.add_subparsers(metavar="VERB", required=True)
    for verb in VERBS:
        subparser = subparsers.add_parser(
            verb.name,
            help=verb.help,
            description=f"{verb.help[:1].upper()}{verb.help[1:]}.",
            epilog=_examples(verb),
            formatter_class=raw,
            allow_abbrev=False,
        )
        for names, settings in verb.arguments:
            subparser.add_argument(*names, **settings)
        if verb.talks_to_daemon:
            _add_common(subparser, argparse.SUPPRESS, json_default=argparse.SUPPRESS)
        subparser.set_defaults(action=verb.action)
    subparsers.add_parser(SIMULATE, help=SIMULATE_HELP)
    subparsers.add_parser(DEMO, help=DEMO_HELP)
    return parser


def _add_common(parser: argparse.ArgumentParser, socket: Path | str, json_default: bool | str) -> None:
    """The options that may stand before the verb, or after it."""
    parser.add_argument(
        "--socket",
        metavar="PATH",
        type=Path,
        default=socket,
        help=f"the daemon's control socket (default: $SBON_SOCKET, else {DEFAULT_SOCKET})",
    )
    parser.add_argument("--json", action="store_true", default=json_default, help="print JSON")


def _examples(verb: Verb) -> str:
    width = max(len(command) for command, _ in verb.examples)
    lines = (f"  {command:<{width}}  {what}".rstrip() for command, what in verb.examples)
    return "\n".join(["example:" if len(verb.examples) == 1 else "examples:", *lines])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    exit_status = 0
    try:
        exit_status = _carry_out(words)
        sys.stdout.flush()
    except* SbonError as group:
        print(f"sbon: error: {_first_line(group)}", file=sys.stderr)
        exit_status = 1
    except* KeyboardInterrupt:
        exit_status = INTERRUPTED
    except* BrokenPipeError:  # whoever read our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return exit_status


def _carry_out(words: Sequence[str]) -> int:
    if words[:1] == [DEMO]:
        from daemon.demo.command import main as demo  # slow to import

        return demo(words[1:])
    if words[:1] == [SIMULATE]:
        from daemon.simulation.command import main as simulate  # numpy

        return simulate(words[1:])
    parsed = make_parser().parse_args(words)
    action: Callable[[argparse.Namespace], None] = parsed.action
    action(parsed)
    return 0


def _first_line(group: BaseExceptionGroup[SbonError]) -> str:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return " ".join(str(error).split())


if __name__ == "__main__":
    sys.exit(main())
