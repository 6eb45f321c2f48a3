"""Network namespaces without names: made, equipped with a TUN device, and entered. Linux, root, standard library only.

A namespace lives as long as a process is in it or a descriptor of it is open, so nothing is left of a lab however its
processes end. As a script (:data:`SCRIPT`) this file does what a process can only do to itself:

    namespaces.py enter NAMESPACE PARENT COMMAND...  see :func:`become`
    namespaces.py try                                print :func:`why_impossible`

(`ip netns` would do some of it, but bare machines lack it, and its namespaces have names that outlive everybody.)
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import signal
import socket
import struct
import sys

#: Bare, because it starts once for each process on a host.
SCRIPT = (sys.executable, "-I", "-S", __file__)
TUN = "/dev/net/tun"
DEVICE = "wan0"

# linux/sched.h, linux/prctl.h, linux/if_tun.h, linux/sockios.h, linux/if.h
_CLONE_NEWNET = 0x40000000
_PR_SET_PDEATHSIG = 1
_TUNSETIFF = 0x400454CA
_IFF_TUN = 0x0001
_IFF_NO_PI = 0x1000
_SIOCGIFFLAGS = 0x8913
_SIOCSIFFLAGS = 0x8914
_SIOCSIFADDR = 0x8916
_SIOCSIFNETMASK = 0x891C
_SIOCSIFTXQLEN = 0x8943
_IFF_UP = 0x1
#: Packets that the kernel keeps for a router that is busy; the default of 500 is 750 kB.
_QUEUE_PACKETS = 2000

_libc = ctypes.CDLL(None, use_errno=True)


def _call(function: str, *arguments: int) -> None:
    """os.setns and os.unshare are in Python 3.12 and later."""
    if getattr(_libc, function)(*arguments):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), function)


def leave_for_new() -> int:
    """Put this thread into a new, empty network namespace; a descriptor of it."""
    _call("unshare", _CLONE_NEWNET)
    return current()


def current() -> int:
    """A descriptor of this thread's network namespace."""
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter(namespace: int) -> None:
    """Put this thread into ``namespace``, a descriptor. Sockets that are open already stay where they are."""
    _call("setns", namespace, _CLONE_NEWNET)


def die_with_parent(parent: int) -> None:
    """Have the kernel kill this process when its parent (a process id) ends, however that happens."""
    _call("prctl", _PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:  # it ended before we asked
        os.kill(os.getpid(), signal.SIGKILL)


def open_tun(address: str, network_mask: str) -> int:
    """A TUN device in this thread's namespace that carries all of the network to which ``address`` belongs.

    A read of the descriptor, which does not block, gives an IP packet that somebody in the namespace has sent; a write
    delivers one to it. The device goes when the descriptor is closed. Loopback is up as well: hosts talk to themselves.
    """
    tun = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI))
        with socket.socket(type=socket.SOCK_DGRAM) as control:
            for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, network_mask)):
                sockaddr = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton(value))
                fcntl.ioctl(control, request, struct.pack("16s16s8x", DEVICE.encode(), sockaddr))
            fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), _QUEUE_PACKETS))
            for device in (DEVICE, "lo"):
                asked = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16s24x", device.encode()))
                (flags,) = struct.unpack_from("H", asked, 16)
                fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), flags | _IFF_UP))
    except BaseException:
        os.close(tun)
        raise
    return tun


def why_impossible() -> str | None:
    """Why there can be no lab here, or None. Tries it, so it is for a process of its own."""
    try:
        leave_for_new()
        open_tun("10.0.0.1", "255.0.0.0")
    except OSError as error:
        return f"network namespaces with {TUN} are needed (root, CAP_NET_ADMIN): {error.filename}: {error.strerror}"
    return None


def main(verb: str, *arguments: str) -> None:
    if verb == "try":
        print(why_impossible() or "")
    else:
        become(*arguments)


def become(namespace: str, parent: str, *command: str) -> None:
    """Become ``command`` inside ``namespace`` (the path of a descriptor), to be killed when ``parent`` ends."""
    die_with_parent(int(parent))
    enter(os.open(namespace, os.O_RDONLY | os.O_CLOEXEC))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(*sys.argv[1:])
