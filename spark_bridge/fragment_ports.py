"""The ports of one fragment: what feeds each of them, and what has come."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from pathlib import Path

from sbon.engine_messages import Connect, PortStatus, cursor_name
from sbon.errors import SbonError
from sbon.fragment import FragmentSpec, PortSpec
from spark_bridge.link_service import LinkService
from spark_bridge.port_inbox import PortInbox, Segment
from spark_bridge.puller import Puller, Target
from spark_bridge.relay import Relay

#: Later than what Spark begins with, and before what anybody's rows are of.
_LONG_AGO_MS = 1_000_000


class FragmentPorts:
    """Inboxes in ``folder``, and a puller for each producer that was connected, until :meth:`stop`."""

    def __init__(
        self,
        folder: Path,
        spec: FragmentSpec,
        wanted: threading.Event,
        arrived: Callable[[int, bool], None],
        own_links: LinkService | None = None,
    ) -> None:
        """``wanted``: nothing is pulled before it is set; ``arrived`` is called when a segment has come, and
        ``own_links`` are there, as for :class:`Puller`."""
        self._fragment_id = spec.fragment_id
        self._steps = spec.watermark_steps
        self._wanted = wanted
        self._arrived = arrived
        self._own_links = own_links
        self._ports = {port.name: port for port in spec.ports}
        self._inboxes = {
            port.name: PortInbox(folder / f"{port.name}.sqlite", port.producers, port.first_batches, port.switch)
            for port in spec.ports
        }
        self._pullers: dict[tuple[str, str], Puller] = {}

    @property
    def inboxes(self) -> Mapping[str, PortInbox]:
        """By port."""
        return self._inboxes

    def connect(self, command: Connect, lost: Callable[[str], None], read_for_good: Callable[[], int]) -> None:
        """Pull ``command.producer`` from where it runs now. See :class:`Puller` for the others."""
        port = self._ports.get(command.port)
        if port is None or command.producer not in port.producers:
            raise SbonError(f"{self._fragment_id} has no port {command.port} fed by {command.producer}")
        key = (command.port, command.producer)
        if key not in self._pullers:
            cursor = cursor_name(self._fragment_id, command.port)
            inbox = self._inboxes[command.port]
            self._pullers[key] = Puller(
                inbox, command.producer, cursor, self._wanted, lost, read_for_good, self._arrived, self._own_links
            )
        self._pullers[key].point_at(Target(command.address, command.producer_generation, command.through))

    def set(self, port: PortSpec) -> None:
        """It is fed as ``port`` says from now on. Raises SbonError if there is no such port."""
        if port.name not in self._ports:
            raise SbonError(f"{self._fragment_id} has no port {port.name}")
        if port.switch is not None:
            self._inboxes[port.name].follow(port.switch)
        self._ports[port.name] = port
        for name, producer in list(self._pullers):
            if name == port.name and producer not in port.producers:
                self._pullers.pop((name, producer)).stop()

    def relay(self, producer: str) -> Relay | None:
        """What is kept for others of what comes from there, None if it does not come here first."""
        pullers = [puller for (_, fed), puller in list(self._pullers.items()) if fed == producer]
        return next((relay for puller in pullers if (relay := puller.relay) is not None), None)

    def feed_nothing(self) -> None:
        """Have all ports say something, which gives no rows, but a watermark that makes a difference."""
        watermark_ms = _LONG_AGO_MS if self._steps is None else self._steps.next_ms(_LONG_AGO_MS)
        for port in self._ports.values():
            for producer in port.producers:
                inbox = self._inboxes[port.name]
                inbox.append(Segment(producer, 0, inbox.next_batch(producer), 0, watermark_ms, b""))
        self._arrived(0, False)

    def watermark_ms(self, ends: Mapping[str, int]) -> int | None:
        """Smallest watermark over the ports once so many segments of each were read; None while one has none."""
        known = [inbox.watermark_ms(ends.get(name, 0)) for name, inbox in self._inboxes.items()]
        certain = [watermark for watermark in known if watermark is not None]
        return min(certain) if len(certain) == len(known) else None

    def statuses(self, now: float) -> tuple[PortStatus, ...]:
        """Of what is connected, at monotonic time ``now``."""
        return tuple(
            PortStatus(
                port,
                producer,
                puller.bytes_in.per_s(now),
                puller.rows_in.per_s(now),
                int(puller.rows_in.total),
                puller.settled(now),
                self._ports[port].switch is not None and self._inboxes[port].has_passed(producer),
            )
            for (port, producer), puller in list(self._pullers.items())
        )

    def bytes_in(self) -> float:
        """That were pulled since the start."""
        return sum(puller.bytes_in.total for puller in list(self._pullers.values()))

    def bytes_once_stopped(self) -> int:
        """Size of the inboxes when nothing is pulled or written any more."""
        return sum(inbox.bytes_once_closed() for inbox in self._inboxes.values())

    def stop(self) -> None:
        """Nothing is pulled or written any more."""
        for puller in self._pullers.values():
            puller.stop()
        for inbox in self._inboxes.values():
            inbox.close()
