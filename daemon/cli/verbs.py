"""What each verb of the command line does: ask the daemon, and show the answer.

A verb returns nothing and raises SbonError; :mod:`daemon.cli.main` has the table of them.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import trio

from daemon.cli import tables
from daemon.config import DEFAULT_STATE_DIR, TrustConfig, load_config
from daemon.control.client import ControlClient
from daemon.control.messages import (
    Cancel,
    Done,
    Emulate,
    Explain,
    Join,
    Latency,
    Leave,
    Links,
    MakeToken,
    Migrate,
    Nearest,
    Nodes,
    Operators,
    Queries,
    Regions,
    Renew,
    RequestFor,
    Revoke,
    Status,
    Streams,
    Submit,
)
from daemon.logs import set_up_logs
from sbon.engine_messages import ClassArchive
from sbon.errors import SbonError

R = TypeVar("R", bound=msgspec.Struct)
Arguments = argparse.Namespace


def run(arguments: Arguments) -> None:
    from daemon.process import run_until_signal  # not needed by the other verbs, and slow to import

    config = load_config(arguments.config)
    set_up_logs(verbose=arguments.verbose)
    trio.run(run_until_signal, config)


def prepare(arguments: Arguments) -> None:
    command = [sys.executable, "-P", "-m", "spark_bridge.class_training", *(["--again"] if arguments.again else [])]
    print("Java keeps the classes that engines load: about a minute", file=sys.stderr, flush=True)
    training = subprocess.run(command, check=False, capture_output=True, text=True)  # Java and Spark say a lot
    if training.returncode:
        why = next((line for line in reversed(training.stderr.splitlines()) if line.strip()), "it was killed")
        raise SbonError(f"{why}; engines start as slowly as before, nothing else is the worse for it")
    made = msgspec.json.decode(training.stdout.splitlines()[-1], type=ClassArchive)
    size = f"{made.bytes / 1e6:.0f} MB"
    _show(arguments, made, lambda made: print(f"{made.archive}: {size}{'' if made.is_new else ', was there already'}"))


def _ask(arguments: Arguments, request: RequestFor[R]) -> R:
    async def ask() -> R:
        async with ControlClient.open(arguments.socket) as client:
            return await client.request(request)

    return trio.run(ask)


def _show(arguments: Arguments, reply: R, show: Callable[[R], None], as_json: Callable[[R], Any] = lambda r: r) -> None:
    if arguments.json:
        _print_json(as_json(reply))
    else:
        show(reply)


def _print_json(value: Any) -> None:
    print(msgspec.json.encode(value).decode(), flush=True)


def _say(arguments: Arguments, request: RequestFor[Done]) -> None:
    _show(arguments, _ask(arguments, request), lambda reply: print(reply.message))


def join(arguments: Arguments) -> None:
    token = sys.stdin.readline() if arguments.token == "-" else arguments.token
    _say(arguments, Join(arguments.address, token))


def init(arguments: Arguments) -> None:
    from daemon.trust.authority import init_cluster  # not needed by the other verbs, and slow to import

    trust = TrustConfig()
    if arguments.config is not None:
        if arguments.dir is not None or arguments.name is not None:
            raise SbonError("--config has the folder and the name: give either it, or --dir and --name")
        config = load_config(arguments.config)
        state_dir, name, trust = config.node.state_dir, config.node.name, config.trust
    elif arguments.name is None:
        raise SbonError("whose cluster? Give --config FILE, or --name NAME (the node's name in its configuration)")
    else:
        state_dir, name = arguments.dir or DEFAULT_STATE_DIR, arguments.name
    authority = init_cluster(state_dir, name, trust.certificate_days * 86400, time.time())
    print(f"made the cluster {authority.cluster_id.hex()[:16]}; its authority is in {state_dir / 'authority'}")


def token(arguments: Arguments) -> None:
    reply = _ask(arguments, MakeToken(arguments.name, arguments.ttl))
    _show(arguments, reply, lambda reply: print(reply.token))


def renew(arguments: Arguments) -> None:
    _say(arguments, Renew())


def revoke(arguments: Arguments) -> None:
    _say(arguments, Revoke(arguments.node))


def leave(arguments: Arguments) -> None:
    _say(arguments, Leave())


def status(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Status()), tables.show_status)


def nodes(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Nodes()), tables.show_nodes, lambda reply: reply.nodes)


def nearest(arguments: Arguments) -> None:
    reply = _ask(arguments, Nearest(arguments.k, arguments.node))
    _show(arguments, reply, tables.show_nearest, lambda reply: reply.nodes)


def latency(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Latency(arguments.a, arguments.b)), tables.show_latency)


def emulate(arguments: Arguments) -> None:
    _say(arguments, Emulate(arguments.a, arguments.b, arguments.rtt_ms))


def submit(arguments: Arguments) -> None:
    text = _read_query(arguments.file)
    if arguments.param:
        text = _with_values(text, arguments.param)
    _show(
        arguments, _ask(arguments, Submit(text, arguments.until, arguments.from_s)), lambda reply: print(reply.query_id)
    )


def _with_values(text: str, parameters: Sequence[str]) -> str:
    from sbon.sql.parameters import bind  # needs sqlglot, which is large

    named = {}
    values = []
    for parameter in parameters:
        name, equals, value = parameter.partition("=")
        if equals and name.isidentifier():
            named[name] = value
        else:
            values.append(parameter)
    return bind(text, values, named)


def _read_query(file: str) -> str:
    try:
        return sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except OSError as error:
        raise SbonError(f"cannot read {file}: {error.strerror}: give a file with a query in it") from error
    except UnicodeDecodeError as error:
        raise SbonError(f"{file} is not text in UTF-8: give a file with a query in it") from error


def streams(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Streams()), tables.show_streams, lambda reply: reply.streams)


def regions(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Regions()), tables.show_regions)


def queries(arguments: Arguments) -> None:
    reply = _ask(arguments, Queries())
    _show(arguments, reply, tables.show_queries, lambda reply: reply.queries)


def operators(arguments: Arguments) -> None:
    reply = _ask(arguments, Operators())
    _show(arguments, reply, tables.show_operators, lambda reply: reply.operators)


def links(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Links()), tables.show_links, lambda reply: reply.links)


def explain(arguments: Arguments) -> None:
    _show(arguments, _ask(arguments, Explain(arguments.query)), tables.show_explanation)


def migrate(arguments: Arguments) -> None:
    _say(arguments, Migrate(arguments.fragment, arguments.node))


def cancel(arguments: Arguments) -> None:
    _say(arguments, Cancel(arguments.query))


def events(arguments: Arguments) -> None:
    async def watch() -> None:
        async with (
            ControlClient.open(arguments.socket) as client,
            aclosing(client.watch(follow=arguments.follow)) as items,
        ):
            async for event in items:
                if arguments.json:
                    _print_json(event)
                else:
                    print(tables.event_line(event), flush=True)

    trio.run(watch)
