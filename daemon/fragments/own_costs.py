"""What fragments cost this host, as the engine has measured it, in place of what they were reckoned to take."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from daemon.fragments.hosted_fragment import HostedFragment
from daemon.fragments.hosting import Hosting
from sbon.engine_messages import FragmentStatus
from sbon.placement.capacity import Demand


def statuses(hosting: Hosting) -> dict[str, FragmentStatus | None]:
    """The engine's latest word on each fragment here."""
    return {fragment.fragment_id: hosting.status(fragment.fragment_id) for fragment in hosting.fragments}


def demand(hosting: Hosting, fragment: HostedFragment) -> Demand:
    """What a fragment takes: of the processors what is measured; memory cannot be told apart between fragments."""
    status, reckoned = hosting.status(fragment.fragment_id), fragment.record.assignment.taken
    if status is None or status.cpu_cores is None:
        return reckoned
    return msgspec.structs.replace(reckoned, cpu_cores=status.cpu_cores)


def demands(hosting: Hosting) -> dict[str, Demand]:
    """Of all fragments here."""
    return {fragment.fragment_id: demand(hosting, fragment) for fragment in hosting.fragments}


def share(group: tuple[str, ...], here: Mapping[str, FragmentStatus | None]) -> float:
    """Which part of the host's load is that of a group, between 0 and 1; ``here`` are all fragments there.

    By what each uses of the processors, or by number while that is not known of all.
    """
    used = {name: status.cpu_cores for name, status in here.items() if status and status.cpu_cores is not None}
    whole = sum(used.values())
    if len(used) < len(here) or whole <= 0.0:
        return len(group) / max(1, len(here))
    return sum(used.get(name, 0.0) for name in group) / whole
