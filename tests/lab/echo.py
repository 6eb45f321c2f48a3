"""Small programs to be run on the lab's hosts, to see what the network does: echo, ping, and a bulk transfer.

echo.py serve PORT               answer datagrams, and count what comes over TCP
echo.py ping ADDRESS PORT COUNT  print the round trips in ms as JSON, null for what was lost
echo.py push ADDRESS PORT BYTES  print the seconds until the other end has had them all
"""

from __future__ import annotations

import json
import selectors
import socket
import sys
import time

_LOST_AFTER_S = 1.0
_CHUNK = bytes(1 << 20)


def serve(port: int) -> None:
    with (
        socket.socket(type=socket.SOCK_DGRAM) as udp,
        socket.create_server(("0.0.0.0", port)) as tcp,
        selectors.DefaultSelector() as selector,
    ):
        udp.bind(("0.0.0.0", port))
        selector.register(udp, selectors.EVENT_READ)
        selector.register(tcp, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is udp:
                    data, source = udp.recvfrom(2048)
                    udp.sendto(data, source)
                else:
                    _swallow(tcp.accept()[0])


def _swallow(connection: socket.socket) -> None:
    with connection:
        while connection.recv(1 << 20):
            pass
        connection.sendall(b"!")


def ping(address: str, port: int, count: int) -> list[float | None]:
    found: list[float | None] = []
    with socket.socket(type=socket.SOCK_DGRAM) as udp:
        udp.connect((address, port))
        for number in range(count):
            started_s = time.perf_counter()
            udp.send(number.to_bytes(4))
            found.append(_await_echo(udp, number, started_s))
    return found


def _await_echo(udp: socket.socket, number: int, started_s: float) -> float | None:
    while (left_s := started_s + _LOST_AFTER_S - time.perf_counter()) > 0:
        udp.settimeout(left_s)
        try:
            data = udp.recv(2048)
        except TimeoutError:
            return None
        except ConnectionRefusedError:  # nobody listens there yet
            time.sleep(0.05)
            return None
        if int.from_bytes(data) == number:
            return (time.perf_counter() - started_s) * 1000
    return None


def push(address: str, port: int, size_bytes: int) -> float:
    with socket.create_connection((address, port)) as connection:
        started_s = time.perf_counter()
        left_bytes = size_bytes
        while left_bytes > 0:
            left_bytes -= connection.send(_CHUNK[:left_bytes])
        connection.shutdown(socket.SHUT_WR)
        connection.recv(1)
        return time.perf_counter() - started_s


def main(verb: str, *arguments: str) -> None:
    if verb == "serve":
        serve(int(arguments[0]))
    elif verb == "ping":
        print(json.dumps(ping(arguments[0], int(arguments[1]), int(arguments[2]))))
    else:
        print(push(arguments[0], int(arguments[1]), int(arguments[2])))


if __name__ == "__main__":
    main(*sys.argv[1:])
