"""sd_notify: tell systemd how the service does (sd_notify(3)). Without systemd every call does nothing."""

from __future__ import annotations

import os
import socket


def notify(state: str) -> None:
    """Send ``state``, such as "READY=1", to $NOTIFY_SOCKET. What cannot be sent is lost: the service goes on."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address.startswith(("/", "@")):
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(state.encode(), "\0" + address[1:] if address[0] == "@" else address)
        except OSError:
            return


def watchdog_interval_s() -> float | None:
    """How often "WATCHDOG=1" is due: half of what systemd allows; None if it does not watch this process."""
    allowed_us, pid = os.environ.get("WATCHDOG_USEC", ""), os.environ.get("WATCHDOG_PID", "")
    if not allowed_us.isdigit() or int(allowed_us) == 0 or pid not in ("", str(os.getpid())):
        return None
    return int(allowed_us) / 2e6
