"""What searches find in the tables of an overlay that stands still, and why they miss what they miss.

    python -m tests.benchmarks.frozen_searches freeze TABLES [arguments of sbon simulate overlay]
    python -m tests.benchmarks.frozen_searches search TABLES [--searches 300] [--set PARALLEL=2] [--also-nearest 14]

*freeze* simulates an overlay as ``sbon simulate overlay`` does, without searches at its end unless they are asked for,
prints its figures as JSON, and writes down whom each node knows then. For large ones there is a compiled copy
(:mod:`tests.benchmarks.compiled`). *search* asks there, with the overlay's own :mod:`overlay.search`: a thousand
searches in 10,000 tables take minutes, where a run takes hours. Answers come after two predicted round trips (one to
shake hands), the dead do not answer, and nobody learns anything. ``--set`` changes a constant of :mod:`overlay.search`,
to see what it is good for. ``--also-nearest N`` and ``--also-hubs N`` let everybody know its N nearest, too, or the N
best hubs as seen from its place, whoever covers them: what would be found if nodes heard of all of those.

Prints, for the nearest and for least usage, recall@10, the hosts asked, the seconds taken (mean, 99th percentile), and
of those missed how many were

- *unheard*: nobody who was asked named them; *known to others*: to some host that was found and not asked,
- *found*, and not asked: what was known of them was out of date, or they would have been in the result,
- *asked*, and nevertheless not in the result, or taken for *dead*.
"""

from __future__ import annotations

import argparse
import heapq
import math
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from daemon.simulation.command import make_parser, overlay_scenario
from daemon.simulation.figures import quantile
from daemon.simulation.population import Population
from daemon.simulation.progress import progress
from daemon.simulation.scenario import Run
from daemon.simulation.searches import ENDS, KINDS, K, nearest_to, usage_between
from overlay import search as tuned
from overlay.identity import NodeId
from overlay.messages import Packed, SearchRequest
from overlay.naming import ID_END_BYTES, REPLY_FRAME_BYTES, fitting, with_ages
from overlay.packing import unpack
from overlay.pointers import hub_ms
from overlay.records import NodeRecord
from overlay.search import Search, best_by_turns
from overlay.session_wire import MAX_BODY_BYTES
from overlay.wire import encode
from sbon.objectives import Objective

ROUND_TRIPS: Final = 2.0
PATIENCE_S: Final = 2.5
BEGIN_S: Final = 1000.0


class Table(msgspec.Struct, frozen=True):
    """One node: what it says of itself, whom it would name and how many seconds ago those were alive, whom else a
    search of its own would start from, whom it lost, and how many dead it met lately."""

    own: Packed
    known: list[tuple[Packed, float]]
    samples: list[Packed]
    lost: list[NodeId]
    deaths: int


class Frozen(msgspec.Struct, frozen=True):
    dimensions: int
    tables: list[Table]


def freeze(population: Population) -> Frozen:
    """Whom all live nodes know just now."""
    tables = []
    for endpoint in population.live():
        node, now = population.node(endpoint), population.world.clock(endpoint)
        tables.append(
            Table(
                node._packed,
                [(packed, age_s) for _, packed, age_s in node._known_to_others()],
                [packed for _, packed in node._samples],
                list(node._lost),
                node._dead_met_lately(now),
            )
        )
    return Frozen(population.config.dimensions, tables)


# --- the hosts that stand still


class Hosts:
    """They, by node id."""

    def __init__(self, frozen: Frozen, also_nearest: int = 0, also_hubs: int = 0) -> None:
        """``also_nearest``, ``also_hubs``: of how many of its nearest, and of the best hubs, everybody knows, too."""
        self._dimensions = frozen.dimensions
        self._also_nearest, self._also_hubs = also_nearest, also_hubs
        self._others = cache(self._also_known_to)
        self.record = cache(self._unpacked)
        self.table = {self.record(table.own).node_id: table for table in frozen.tables}
        self.own = {node_id: self.record(table.own) for node_id, table in self.table.items()}

    def _unpacked(self, packed: Packed) -> NodeRecord:
        return unpack(packed, self._dimensions)

    def known_to(self, host: NodeId) -> Iterator[tuple[NodeRecord, Packed, float]]:
        """Whom it would name to others, and of whom it is to know besides."""
        for packed, age_s in self.table[host].known:
            yield self.record(packed), packed, age_s
        for node_id in self._others(host):
            yield self.own[node_id], self.table[node_id].own, 0.0

    def _also_known_to(self, host: NodeId) -> list[NodeId]:
        if not self._also_nearest and not self._also_hubs:
            return []
        here = self.own[host].coordinate
        away = [(here.rtt_ms(record.coordinate), record) for record in self.own.values() if record.node_id != host]
        hubs = ((hub_ms(record, away_ms), record.node_id) for away_ms, record in away)
        chosen = heapq.nsmallest(self._also_nearest, ((away_ms, record.node_id) for away_ms, record in away))
        chosen += heapq.nsmallest(self._also_hubs, hubs)
        known = {self.record(packed).node_id for packed, _ in self.table[host].known}
        return [node_id for node_id in dict.fromkeys(node_id for _, node_id in chosen) if node_id not in known]

    def answer(
        self, host: NodeId, asker: NodeId, objective: Objective, request: SearchRequest
    ) -> list[tuple[Packed, float]]:
        named = (one for one in self.known_to(host) if one[0].node_id != asker)
        room = MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(self.table[host].own)
        return list(with_ages(*fitting(best_by_turns(objective, named, request), room)))


class Asking:
    """One search by ``asker``, in virtual time: :attr:`seconds` when it is over."""

    def __init__(self, hosts: Hosts, asker: NodeId, objective: Objective, known: Sequence[NodeRecord]) -> None:
        self._hosts, self._asker, self._objective = hosts, asker, objective
        self._own, table = hosts.own[asker], hosts.table[asker]
        alone = SearchRequest(1, objective, record=table.own, is_new=True)
        room = max(0, MAX_BODY_BYTES - REPLY_FRAME_BYTES - len(encode(alone)))
        self.search = Search(
            objective,
            K,
            PATIENCE_S,
            tuned.MAX_CONTACTS,
            self._own.coordinate,
            room // (ID_END_BYTES + 1),
            deaths=table.deaths,
        )
        self.search.know(self._own, asked=True)
        for record, _, age_s in hosts.known_to(asker):
            self.search.know(record, BEGIN_S - age_s)
        for record in [*map(hosts.record, table.samples), *known]:
            if record.node_id != asker:
                self.search.know(record, BEGIN_S)
        self._answers: list[tuple[float, NodeId, SearchRequest]] = []
        self.seconds = self._go() - BEGIN_S

    def _go(self) -> float:
        now = BEGIN_S
        self._ask(now)
        while not self.search.is_over:
            now = min(self._answers[0][0] if self._answers else math.inf, max(now, self.search.next_timer()))
            self.search.expire(now)
            while self._answers and self._answers[0][0] <= now:
                self._take(*heapq.heappop(self._answers))
            self._ask(now)
        return now

    def _ask(self, now: float) -> None:
        if asked := self.search.to_ask(now):
            request = SearchRequest(1, self._objective, *self.search.known())
            for record in asked:
                host = self._hosts.own.get(record.node_id)
                if host is not None:
                    rtt_s = self._own.coordinate.rtt_ms(host.coordinate) / 1000.0
                    heapq.heappush(self._answers, (now + ROUND_TRIPS * rtt_s, record.node_id, request))

    def _take(self, now: float, host: NodeId, request: SearchRequest) -> None:
        if not self.search.answered(host):
            return
        self.search.know(self._hosts.own[host], now, asked=True)
        lost = self._hosts.table[self._asker].lost
        for packed, age_s in self._hosts.answer(host, self._asker, self._objective, request):
            record = self._hosts.record(packed)
            if record.node_id not in lost:
                self.search.know(record, now - age_s, asked=record.node_id == self._asker)

    # --- what became of it

    def fate(self, node_id: NodeId) -> str:
        """Why one of the best is not in the result."""
        if node_id in self.search._dead:
            return "dead"
        found = self.search._found.get(node_id)
        if found is not None:
            return "asked" if found.asked else "found"
        not_asked = (known.record.node_id for known in self.search._found.values() if not known.asked)
        known = any(
            node_id == record.node_id
            for host in not_asked
            if host in self._hosts.own
            for record, _, _ in self._hosts.known_to(host)
        )
        return "unheard, known to others" if known else "unheard"


# --- what they find


class Figures(msgspec.Struct):
    recall_at_10: float
    contacts_mean: float
    contacts_p99: float
    seconds_mean: float
    seconds_p99: float
    missed: dict[str, int]


def measure(hosts: Hosts, kind: str, searches: int, seed: int) -> Figures:
    """Searches of one kind, drawn as in simulations."""
    rng, everyone = random.Random(f"{seed}/{kind}"), sorted(hosts.own)
    hits, of, missed = 0, 0, Counter[str]()
    contacts, seconds = [], []
    with progress(kind) as shown:
        for number in range(searches):
            asker = rng.choice(everyone)
            objective, known = _nearest(hosts, everyone, rng) if kind == "nearest" else _usage(hosts, everyone, rng)
            asking = Asking(hosts, asker, objective, known)
            costs = ((objective.cost(record), record.node_id) for record in hosts.own.values())
            best = heapq.nsmallest(K, (cost for cost in costs if math.isfinite(cost[0])))
            result = {record.node_id for record in asking.search.result()}
            hits += sum(node_id in result for _, node_id in best)
            of += len(best)
            missed.update(asking.fate(node_id) for _, node_id in best if node_id not in result)
            contacts.append(asking.search.contacts)
            seconds.append(asking.seconds)
            shown.show(number + 1, searches, f"recall {hits / of:.4f}")
    return Figures(
        round(hits / of, 5),
        sum(contacts) / searches,
        quantile(contacts, 0.99),
        round(sum(seconds) / searches, 2),
        round(quantile(seconds, 0.99), 2),
        dict(missed),
    )


def _nearest(hosts: Hosts, everyone: Sequence[NodeId], rng: random.Random) -> tuple[Objective, list[NodeRecord]]:
    return nearest_to(hosts.own[rng.choice(everyone)]), []


def _usage(hosts: Hosts, everyone: Sequence[NodeId], rng: random.Random) -> tuple[Objective, list[NodeRecord]]:
    records = [hosts.own[node_id] for node_id in rng.sample(everyone, rng.randint(*ENDS))]
    return usage_between(records, rng), records


# --- the two commands


def _freeze(tables: Path, words: Sequence[str]) -> None:
    arguments = make_parser().parse_args(["overlay", "--searches", "0", *words])
    if arguments.liars:
        raise SystemExit("--liars: what liars know is not written down: leave it out")
    scenario = overlay_scenario(arguments)
    with progress("simulating") as shown:
        run = Run(scenario, shown)
        report = run.go()
    print(msgspec.json.encode(report).decode())
    tables.write_bytes(msgspec.msgpack.encode(freeze(run.population)))


def _search(arguments: argparse.Namespace) -> None:
    for name, value in arguments.set:
        setattr(tuned, name, value)
    try:
        frozen = msgspec.msgpack.decode(arguments.tables.read_bytes(), type=Frozen)
    except (OSError, msgspec.MsgspecError) as error:
        raise SystemExit(f"{arguments.tables}: {error}: name a file that `freeze` has written") from error
    hosts = Hosts(frozen, arguments.also_nearest, arguments.also_hubs)
    for kind in arguments.kinds:
        figures = measure(hosts, kind, arguments.searches, arguments.seed)
        print(kind, msgspec.json.encode(figures).decode(), flush=True)


def _setting(word: str) -> tuple[str, float]:
    """A constant of :mod:`overlay.search`, and what it is to be: a number of the same type."""
    name, _, value = word.partition("=")
    now = getattr(tuned, name, None)
    if not isinstance(now, int | float):
        raise argparse.ArgumentTypeError(f"{word!r}: there is no number of that name in overlay/search.py")
    return name, type(now)(value)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="What searches find in an overlay that stands still, and what not.")
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("freeze", help="simulate an overlay, and write down whom its nodes know").add_argument(
        "tables", type=Path
    )
    search = commands.add_parser("search", help="search there")
    search.add_argument("tables", type=Path)
    search.add_argument("--searches", type=int, default=300, help="of each kind (default: 300)")
    search.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    search.add_argument("--seed", type=int, default=5)
    search.add_argument("--also-nearest", type=int, default=0, metavar="N", help="everybody knows its N nearest, too")
    search.add_argument("--also-hubs", type=int, default=0, metavar="N", help="and the N best hubs around")
    search.add_argument(
        "--set", action="append", default=[], type=_setting, metavar="NAME=VALUE", help="of overlay/search.py"
    )
    arguments, others = parser.parse_known_args(words)
    if arguments.command == "freeze":
        _freeze(arguments.tables, others)
    elif others:
        parser.error(f"unknown arguments: {' '.join(others)}")
    else:
        _search(arguments)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
