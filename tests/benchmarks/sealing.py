"""What sessions cost: seal, open and shake hands, with the real and with the fake cipher suite.

    python -m tests.benchmarks.sealing [--datagrams 50000]

Prints JSON: microseconds for each datagram of 100 bytes, milliseconds for a whole handshake, both ends together.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable

from tests.overlay.session_nodes import SessionNode, Wire, cluster_trust

HANDSHAKES = 50


def measure(make: Callable[[int], SessionNode], datagrams: int) -> dict[str, float]:
    pairs = [(make(1), make(2)) for _ in range(HANDSHAKES)]
    started = time.perf_counter()
    for a, b in pairs:
        Wire(a, b).open(a, b)
    opened = time.perf_counter()
    a, b = pairs[-1]
    sealed = [a.sessions.seal(b.node_id, bytes(100), 0.0) for _ in range(datagrams)]
    done = time.perf_counter()
    for data in sealed:
        b.sessions.receive(data, a.address, 0.0)
    end = time.perf_counter()
    return {
        "handshake_ms": (opened - started) / HANDSHAKES * 1e3,
        "seal_us": (done - opened) / datagrams * 1e6,
        "open_us": (end - done) / datagrams * 1e6,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--datagrams", type=int, default=50_000)
    datagrams = parser.parse_args().datagrams
    real = measure(lambda number: SessionNode(number, trust=cluster_trust(number)), datagrams)
    fake = measure(SessionNode, datagrams)
    print(json.dumps({"real": real, "fake": fake}, indent=1))


if __name__ == "__main__":
    main()
