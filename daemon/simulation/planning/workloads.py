"""The two workloads of Seshadri et al. (TPDS'09, section 4.1): queries in the order in which they are submitted.

*Synthetic*: :data:`STREAMS` streams at random hosts; rates, and the selectivities of joins, uniform; a query joins
three to six of them (two to five joins), any of its streams with any other, and its sink is a random host. The join of
a set ``S`` has ``product of the rates x (geometric mean of the selectivities of its pairs) ^ (|S| - 1)``.

*Airline*: the five sources of the paper's figure 5, 80 % queries of gate agents (Q1), 15 % of terminals (Q2), 5 % of
monitors, over any of the sources. Rates of joins follow from the figure: within a minute there are so many records of
each flight (or destination) that a source has, and a join has one record for each combination. Joins of WEATHER and
SALES alone are by destination. What a query selects (a flight, a terminal) is selected behind its last join, so that
its joins can be shared by all; that is what the paper's *telescoping* comes to. Records have 100 bytes, as in the
paper; joined ones have either 100 bytes, too, or as many as their parts together (``Width``).
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from sbon.planning.problem import JoinQuery
from sbon.planning.signature import Signature

STREAMS = 10
LEAST_STREAMS, MOST_STREAMS = 3, 6
LEAST_RATE, MOST_RATE = 1_000.0, 100_000.0  # bytes/s
#: Of the join of two streams of average rate: its rate over theirs.
MOST_SELECTIVITY = 2.0

RECORD_BYTES = 100.0


class Workload(StrEnum):
    SYNTHETIC = "synthetic"
    AIRLINE = "airline"


class Width(StrEnum):
    """How wide a joined record is."""

    FIXED = "fixed"
    SUM = "sum"


def synthetic(
    queries: int,
    hosts: int,
    rng: random.Random,
    streams: int = STREAMS,
    joined: tuple[int, int] = (LEAST_STREAMS, MOST_STREAMS),
) -> list[JoinQuery]:
    """Queries over ``streams`` streams on ``hosts`` hosts, each over some of them, from ``joined`` to ``joined``."""
    homes = [rng.randrange(hosts) for _ in range(streams)]
    rates = [rng.uniform(LEAST_RATE, MOST_RATE) for _ in range(streams)]
    mean_rate = (LEAST_RATE + MOST_RATE) / 2.0
    shares = {
        pair: rng.uniform(0.0, MOST_SELECTIVITY) / mean_rate for pair in itertools.combinations(range(streams), 2)
    }

    def rate(chosen: Sequence[int]) -> float:
        product = math.prod(rates[stream] for stream in chosen)
        pairs = [shares[pair] for pair in itertools.combinations(chosen, 2)]
        return product * math.prod(pairs) ** (2.0 / len(chosen)) if pairs else product

    found = []
    for number in range(1, queries + 1):
        chosen = sorted(rng.sample(range(streams), rng.randint(*joined)))
        sets = [[chosen[i] for i in range(len(chosen)) if mask >> i & 1] for mask in range(1 << len(chosen))]
        signatures = [Signature(",".join(map(str, each))) for each in sets]
        found.append(
            JoinQuery(
                name=f"q{number}",
                hosts=tuple(homes[stream] for stream in chosen),
                rates=tuple(rate(each) if each else 0.0 for each in sets),
                signatures=tuple(signatures),
                sink=rng.randrange(hosts),
                result_rate=rate(chosen),
                result=signatures[-1],
            )
        )
    return found


@dataclass(frozen=True, slots=True)
class Source:
    """``keys`` flights or destinations have ``per_key`` records each in a window of ``window_min`` minutes."""

    name: str
    records_per_min: float
    per_key: float
    window_min: float
    by_destination: bool = False

    @property
    def keys(self) -> float:
        return self.records_per_min * self.window_min / self.per_key


#: Figure 5: rate, and the records that one flight or destination has in the window.
SOURCES = (
    Source("FLIGHTS", 1500.0 / 5.0, 1.0, 5.0),
    Source("CHECKINS", 240.0, 2.0, 1.0),
    Source("BAGGAGE", 500.0, 4.0, 1.0),
    Source("WEATHER", 450.0 / 5.0, 1.0, 5.0, by_destination=True),
    Source("SALES", 70.0, 1.0, 1.0, by_destination=True),
)
FLIGHTS, CHECKINS, BAGGAGE, WEATHER, SALES = range(5)
GATE = (FLIGHTS, CHECKINS, BAGGAGE)
TERMINAL = (FLIGHTS, CHECKINS, BAGGAGE, WEATHER)
#: What monitors can join: check-ins and baggage do not know where a flight goes, only FLIGHTS does.
COMBINATIONS = tuple(
    chosen
    for count in range(2, len(SOURCES) + 1)
    for chosen in itertools.combinations(range(len(SOURCES)), count)
    if FLIGHTS in chosen or len({SOURCES[source].by_destination for source in chosen}) == 1
)
GATE_SHARE, TERMINAL_SHARE = 0.80, 0.15
FLIGHT_NUMBERS, TERMINALS = 1500, 10
#: Of the flights of a terminal those of one carrier.
CARRIER_SHARE = 0.5
#: Minutes from one result to the next.
SLIDE_MIN = 1.0
MOST_SLIDE_MIN = 5


def airline(queries: int, hosts: int, rng: random.Random, width: Width) -> list[JoinQuery]:
    """Queries over the five sources on ``hosts`` hosts."""
    homes = [rng.randrange(hosts) for _ in SOURCES]
    gates = [rng.randrange(hosts) for _ in range(queries)]
    return [_airline_query(number, homes, gate, rng, width) for number, gate in enumerate(gates, start=1)]


def _airline_query(number: int, homes: Sequence[int], sink: int, rng: random.Random, width: Width) -> JoinQuery:
    drawn = rng.random()
    chosen: tuple[int, ...]
    if drawn < GATE_SHARE:
        chosen, share = GATE, 1.0 / FLIGHT_NUMBERS
        selects, slide_min = f"flight {rng.randrange(FLIGHT_NUMBERS)}", SLIDE_MIN
    elif drawn < GATE_SHARE + TERMINAL_SHARE:
        chosen, share = TERMINAL, CARRIER_SHARE / TERMINALS
        selects, slide_min = f"terminal {rng.randrange(TERMINALS)} of DL", SLIDE_MIN
    else:
        chosen = rng.choice(COMBINATIONS)
        share, slide_min = 1.0, float(rng.randint(1, MOST_SLIDE_MIN))
        selects = ""
    sets = [[chosen[i] for i in range(len(chosen)) if mask >> i & 1] for mask in range(1 << len(chosen))]
    body = "" if slide_min == SLIDE_MIN else f" every {slide_min:g} min"
    signatures = [
        Signature(" ".join(SOURCES[source].name for source in each) + (body if len(each) > 1 else "")) for each in sets
    ]
    rates = [_airline_rate(each, slide_min, width) for each in sets]
    return JoinQuery(
        name=f"q{number}",
        hosts=tuple(homes[source] for source in chosen),
        rates=tuple(rates),
        signatures=tuple(signatures),
        sink=sink,
        result_rate=rates[-1] * share,
        result=Signature(signatures[-1].body, frozenset({selects} if selects else ())),
    )


def _airline_rate(chosen: Sequence[int], slide_min: float, width: Width) -> float:
    """Bytes/s of the join of some sources; infinity where nothing joins them."""
    sources = [SOURCES[source] for source in chosen]
    if not sources:
        return 0.0
    if len(sources) == 1:
        return sources[0].records_per_min / 60.0 * RECORD_BYTES
    by_flight = [source for source in sources if not source.by_destination]
    by_destination = [source for source in sources if source.by_destination]
    if by_flight and by_destination and FLIGHTS not in chosen:
        return math.inf
    records = math.prod(source.per_key for source in sources)
    keys = [source.keys for source in by_flight]
    if by_destination:
        destinations = SOURCES[WEATHER].keys
        known = math.prod(source.keys / destinations for source in by_destination)  # share that all of them know
        records *= min(keys) * known if keys else destinations * known
    else:
        records *= min(keys)
    record_bytes = RECORD_BYTES * (len(sources) if width is Width.SUM else 1)
    return records / (60.0 * slide_min) * record_bytes
