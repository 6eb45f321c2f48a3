"""What a run is measured by: errors of predictions, time to detect a death, traffic.

*Relative error*: |predicted - true| / true for pairs of live honest nodes, predicted by a third party from the two
advertised records alone; pairs whose truth was never measured are left out.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Sequence

from daemon.simulation.figures import Delay, Mean, Spread, quantile
from daemon.simulation.nodes import advertised
from daemon.simulation.population import Population

#: Beside IPv4 (20) and UDP (8).
HEADER_BYTES = 28
#: All pairs are looked at up to this many, else a sample of as many, the same whenever the seed is.
MAX_PAIRS = 250_000
#: Enough to tell a median to a percent, every minute.
MINUTE_PAIRS = 30_000
CONVERGED_WITHIN = 0.2
#: The views are looked through this often while somebody is dead and not yet found to be.
WATCH_EVERY_S = 0.05
SCAN_EVERY_S = 1.0
#: Given up after this long: whoever is held as alive then is counted as unseen.
WATCH_FOR_S = 60.0


def relative_errors(population: Population, at_most: int) -> list[float]:
    endpoints = population.honest()
    coordinates = {endpoint: advertised(population.node(endpoint)) for endpoint in endpoints}
    truth_ms = population.world.network.truth_ms
    errors = []
    for a, b in _pairs(endpoints, at_most, population.seed):
        true_ms = truth_ms(a, b)
        if true_ms == true_ms:
            errors.append(abs(coordinates[a].rtt_ms(coordinates[b]) - true_ms) / true_ms)
    return errors


def _pairs(endpoints: Sequence[int], at_most: int, seed: int) -> list[tuple[int, int]]:
    count = len(endpoints)
    if count * (count - 1) // 2 <= at_most:
        return [(endpoints[i], endpoints[j]) for i in range(count) for j in range(i)]
    rng = random.Random(f"{seed}/pairs")
    pairs: list[tuple[int, int]] = []
    while len(pairs) < at_most:
        i, j = int(rng.random() * count), int(rng.random() * count)
        if i != j:
            pairs.append((endpoints[i], endpoints[j]))
    return pairs


def spread(errors: Sequence[float]) -> Spread | None:
    return Spread(round(quantile(errors, 0.5), 5), round(quantile(errors, 0.9), 5)) if errors else None


def minutes_to_converge(medians: Sequence[float]) -> float | None:
    """The first minute from which the median stays within 20 % of its final value; ``medians[0]`` is minute 1's."""
    if not medians:
        return None
    final = medians[-1]
    minute = len(medians)
    while minute > 1 and abs(medians[minute - 2] - final) <= CONVERGED_WITHIN * final:
        minute -= 1
    return float(minute)


class DeathWatch:
    """How long the dead are held as alive: from the crash until no live node has it among its members."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._holders: dict[int, set[int]] = {}
        self._died_at: dict[int, float] = {}
        self._last_held_at: dict[int, float] = {}
        self._next_scan_at = 0.0
        self.delays_s: list[float] = []
        self.unseen = 0
        self._running = False

    def watch(self, endpoint: int) -> None:
        """The node there has just crashed."""
        now = self._population.world.now
        self._died_at[endpoint] = self._last_held_at[endpoint] = now
        self._holders[endpoint] = set()
        self._next_scan_at = now
        if not self._running:
            self._running = True
            self._look()

    def _look(self) -> None:
        world = self._population.world
        now = world.now
        if now >= self._next_scan_at:
            self._next_scan_at = now + SCAN_EVERY_S
            self._scan()
        for dead in list(self._died_at):
            self._look_at(dead, now)
        self._running = bool(self._died_at)
        if self._running:
            world.call_at(now + WATCH_EVERY_S, self._look)

    def _look_at(self, dead: int, now: float) -> None:
        population = self._population
        identity, boot_id = population.identities[dead].node_id, population.boot_ids[dead]
        held = set()
        for holder in self._holders[dead]:
            if population.is_live(holder):
                record = population.node(holder).known(identity)
                if record is not None and record.boot_id == boot_id:
                    held.add(holder)
        self._holders[dead] = held
        if held:
            self._last_held_at[dead] = now
        silent_s = now - self._last_held_at[dead]
        if silent_s > 2.0 * SCAN_EVERY_S or now - self._died_at[dead] > WATCH_FOR_S:
            if held:
                self.unseen += 1
            else:
                self.delays_s.append(self._last_held_at[dead] - self._died_at[dead] + WATCH_EVERY_S)
            for table in (self._died_at, self._last_held_at, self._holders):
                del table[dead]

    def _scan(self) -> None:
        """Who holds whom: somebody may have been told of the dead since it died."""
        dead_ids = {self._population.identities[dead].node_id: dead for dead in self._died_at}
        for endpoint in self._population.live():
            for record in self._population.node(endpoint).members():
                dead = dead_ids.get(record.node_id)
                if dead is not None:
                    self._holders[dead].add(endpoint)

    def result(self) -> Delay | None:
        unseen = self.unseen + len(self._died_at)
        if not self.delays_s:
            return Delay(None, None, 0, unseen) if unseen else None
        median, p99 = (round(quantile(self.delays_s, q), 2) for q in (0.5, 0.99))
        return Delay(median, p99, len(self.delays_s), unseen)


class Traffic:
    """Bytes and messages per node and second from :meth:`begin` to :meth:`end`, of nodes that lived all that time."""

    def __init__(self, population: Population) -> None:
        self._population = population
        self._began_at = self._ended_at = math.inf
        self._before: dict[int, tuple[int, int]] = {}
        self._counters: dict[int, Counter[str]] = {}
        self.bytes_per_s: list[float] = []
        self.messages_per_s: list[float] = []
        self.by_kind: Counter[str] = Counter()
        self._counted = 0
        self._bytes_before = 0

    @property
    def running(self) -> bool:
        return bool(self._before) and self._ended_at == math.inf

    def begin(self) -> None:
        self._began_at = self._population.world.now
        for endpoint in self._population.honest():
            self._before[endpoint] = self._counts(endpoint)
            self._counters[endpoint] = Counter(self._population.node(endpoint).counters)

    def end(self) -> None:
        population = self._population
        self._ended_at = population.world.now
        for endpoint, (bytes_before, messages_before) in self._before.items():
            if population.is_live(endpoint) and population.started_at[endpoint] <= self._began_at:
                bytes_now, messages_now = self._counts(endpoint)
                self.bytes_per_s.append((bytes_now - bytes_before) / self.duration_s)
                self.messages_per_s.append((messages_now - messages_before) / self.duration_s)
                self.by_kind.update(population.node(endpoint).counters)
                self.by_kind.subtract(self._counters[endpoint])
                self._counted += 1

    def last_minute(self) -> float:
        """To be called each minute: mean bytes per live node and second since the last call."""
        world = self._population.world
        bytes_now = sum(self._counts(endpoint)[0] for endpoint in range(len(world.nodes)))
        mean = (bytes_now - self._bytes_before) / 60.0 / max(1, len(self._population.live()))
        self._bytes_before = bytes_now
        return round(mean, 1)

    @property
    def duration_s(self) -> float:
        return self._ended_at - self._began_at

    def _counts(self, endpoint: int) -> tuple[int, int]:
        world = self._population.world
        messages = world.sent_messages[endpoint] + world.received_messages[endpoint]
        return world.sent_bytes[endpoint] + world.received_bytes[endpoint] + HEADER_BYTES * messages, messages

    def bytes_figures(self) -> Mean | None:
        values = self.bytes_per_s
        return Mean(round(sum(values) / len(values), 1), round(quantile(values, 0.99), 1)) if values else None

    def messages_mean(self) -> float | None:
        values = self.messages_per_s
        return round(sum(values) / len(values), 2) if values else None

    def per_node_and_s(self, prefix: str) -> dict[str, float]:
        """The nodes' own counters of that prefix, without it, by node and second."""
        if not self._counted:
            return {}
        scale = self._counted * self.duration_s
        return {
            name.removeprefix(prefix): round(count / scale, 3)
            for name, count in sorted(self.by_kind.items())
            if name.startswith(prefix) and count
        }
