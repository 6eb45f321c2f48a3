"""The router process: makes a namespace with a TUN device for each host, and moves packets between them.

Its standard input is a Unix socket (SOCK_SEQPACKET, a msgpack message each) with the lab at its other end. The first
message is :class:`Start`; every message is answered, by :class:`Report`. When the lab's end is closed, which the kernel
does for a lab that is killed, the router ends, and its namespaces vanish with it.
"""

from __future__ import annotations

import gc
import os
import random
import selectors
import socket
import time
from contextlib import suppress
from ipaddress import IPv4Address, IPv4Network

import msgspec

from tests.lab import namespaces
from tests.lab.network import WideAreaNetwork

#: Host number n has the address n + 1 of it.
NETWORK = IPv4Network("10.77.0.0/16")
MAX_HOSTS = 200
MAX_MESSAGE_BYTES = 1 << 20
_BASE = int(NETWORK.network_address) + 1
#: Taken from one device at once: a host that sends as fast as it can must not delay what is due.
_BATCH_PACKETS = 32
_PRIORITY = 1


class Start(msgspec.Struct, frozen=True, tag=True):
    """``rtt_ms`` from row to column."""

    rtt_ms: list[list[float]]
    seed: int


class SetRtt(msgspec.Struct, frozen=True, tag=True):
    a: int
    b: int
    rtt_ms: float


class SetJitter(msgspec.Struct, frozen=True, tag=True):
    jitter_ms: float


class SetLoss(msgspec.Struct, frozen=True, tag=True):
    a: int
    b: int
    probability: float


class Cut(msgspec.Struct, frozen=True, tag=True):
    a: int
    b: int


class Heal(msgspec.Struct, frozen=True, tag=True):
    a: int
    b: int


class GiveReport(msgspec.Struct, frozen=True, tag=True):
    pass


Command = Start | SetRtt | SetJitter | SetLoss | Cut | Heal | GiveReport


class Report(msgspec.Struct, frozen=True):
    """``namespaces`` are the router's descriptors of the hosts' namespaces, in order."""

    namespaces: list[int]
    counters: dict[str, int]
    late_ms_max: float
    late_ms_mean: float


def address_of(host: int) -> str:
    return str(IPv4Address(_BASE + host))


class Router:
    """Everything of the process. :meth:`run` returns when the lab is gone."""

    def __init__(self, lab: socket.socket, start: Start) -> None:
        self._lab = lab
        self._network = WideAreaNetwork(start.rtt_ms, random.Random(start.seed))
        self._namespaces: list[int] = []
        self._tuns: list[int] = []
        home = namespaces.current()
        for host in range(len(start.rtt_ms)):
            self._namespaces.append(namespaces.leave_for_new())
            self._tuns.append(namespaces.open_tun(address_of(host), str(NETWORK.netmask)))
        namespaces.enter(home)

    def run(self) -> None:
        # Not epoll, which counts in whole milliseconds.
        with selectors.SelectSelector() as selector:
            selector.register(self._lab, selectors.EVENT_READ, None)
            for host, tun in enumerate(self._tuns):
                selector.register(tun, selectors.EVENT_READ, host)
            self._answer()
            while True:
                for destination, packet in self._network.arrived(time.monotonic()):
                    self._deliver(destination, packet)
                wait_s = self._network.next_due() - time.monotonic()
                for key, _ in selector.select(min(max(wait_s, 0.0), 60.0)):
                    if key.data is not None:
                        self._take_from(key.data)
                    elif not self._obey():
                        return

    def _take_from(self, source: int) -> None:
        with suppress(BlockingIOError):
            for _ in range(_BATCH_PACKETS):
                packet = os.read(self._tuns[source], 65536)
                destination = int.from_bytes(packet[16:20]) - _BASE
                # Nothing but IPv4 between hosts: no multicast, and none of what IPv6 says to itself.
                if packet[0] >> 4 == 4 and 0 <= destination < len(self._tuns):
                    self._network.send(packet, source, destination, time.monotonic())

    def _deliver(self, destination: int, packet: bytes) -> None:
        try:
            os.write(self._tuns[destination], packet)
        except OSError:
            self._network.counters["undeliverable"] += 1

    def _obey(self) -> bool:
        """Carry out the lab's next command; False when there will be none."""
        message = self._lab.recv(MAX_MESSAGE_BYTES)
        if not message:
            return False
        match msgspec.msgpack.decode(message, type=Command):
            case SetRtt(a, b, rtt_ms):
                self._network.set_rtt(a, b, rtt_ms)
            case SetJitter(jitter_ms):
                self._network.set_jitter(jitter_ms)
            case SetLoss(a, b, probability):
                self._network.set_loss(a, b, probability)
            case Cut(a, b):
                self._network.cut(a, b)
            case Heal(a, b):
                self._network.heal(a, b)
        self._answer()
        return True

    def _answer(self) -> None:
        network = self._network
        mean_s = network.late_s_total / max(1, network.counters["delivered"])
        report = Report(self._namespaces, dict(network.counters), network.late_s_max * 1000, mean_s * 1000)
        self._lab.send(msgspec.msgpack.encode(report))


def main() -> None:
    # When the machine is busy the network has to be on time all the same: hosts may be slow, light is not.
    with suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(_PRIORITY))
    gc.disable()  # there are no cycles
    with socket.socket(fileno=0) as lab:
        Router(lab, msgspec.msgpack.decode(lab.recv(MAX_MESSAGE_BYTES), type=Start)).run()


if __name__ == "__main__":
    main()
