"""What fragments may let out, as the engine is told: for as long as their leases last, and what their replicas have."""

from __future__ import annotations

from pathlib import Path

from daemon.fragments.engine_supervisor import EngineSupervisor
from daemon.fragments.hosted_fragment import HostedFragment
from sbon.engine_messages import Bounds, Permit


class Permits:
    """``snapshots`` is the folder under which the engine puts them, one folder for each fragment."""

    def __init__(self, node_id: str, supervisor: EngineSupervisor, snapshots: Path) -> None:
        self._node_id = node_id
        self._supervisor = supervisor
        self.snapshots = snapshots

    def bounds(self, fragment: HostedFragment) -> Bounds:
        """As they are now."""
        lease, replication = fragment.lease, fragment.replication
        is_replicated = replication is not None and bool(replication.required)
        return Bounds(
            until_s=None if lease is None else lease.until_s,
            safe_batch=None if replication is None else replication.safe_batch,
            snapshots=str(self.snapshots / fragment.fragment_id)
            if is_replicated or fragment.copies.snapshot_readers
            else None,
        )

    async def tell(self, fragment: HostedFragment) -> int:
        """Tell the engine. Returns the fragment's newest batch: nothing later was let out before."""
        command = Permit(fragment.fragment_id, fragment.generation, self._node_id, self.bounds(fragment))
        return (await self._supervisor.call(command)).newest_batch
