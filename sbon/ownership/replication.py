"""What an owner may let out, given what its replicas have: the rule by which no acknowledged row is lost, sans-I/O.

A *replica* is a host that the query's record names as one from which the fragment may be restarted. After a batch is
committed, its state goes to the replicas. Two things wait until all of them have it on disk: the batch's output may be
served (so nobody ever saw what a replacement would not say again), and its input may be acknowledged (so a producer
still has everything that a replacement has not read). This holds whatever clocks do; leases only spare the work of an
owner that is one no longer.

The set in the record changes by agreement, of which the outcome may be unknown for a while. So the owner waits for
everybody who *may* be in it: a host that joins from before it is proposed, one that leaves until it is known to have
left. And a host may join only once it has all that was let out before.

(As the in-sync replicas of Kafka: J. Kreps et al., 2011, and KIP-101 on why an epoch has to go with them.)
"""

from __future__ import annotations

from collections.abc import Iterable

#: Before the first batch; batch ids begin at 0. A host may have the state of that moment, too.
NOTHING = -1


class Replication:
    """Of one fragment, during one stay at one owner. Hosts are node ids, batches micro-batch ids of Spark's."""

    def __init__(self, replicas: Iterable[str], newest_batch: int) -> None:
        """``replicas`` as in the record now; nothing later than ``newest_batch`` was let out before."""
        self._agreed = set(replicas)
        self._joining: set[str] = set()
        self._stored: dict[str, int] = {}
        self._let_out = newest_batch
        self._safe = NOTHING

    @property
    def agreed(self) -> frozenset[str]:
        """The replicas that the record names, as far as known."""
        return frozenset(self._agreed)

    @property
    def required(self) -> frozenset[str]:
        """Everybody who has to have a batch before it is let out."""
        return frozenset(self._agreed | self._joining)

    def stored(self, host: str, batch_id: int) -> None:
        """``host`` has the state after ``batch_id`` on disk."""
        self._stored[host] = max(self._stored.get(host, NOTHING), batch_id)

    def forget(self, host: str) -> None:
        """``host`` has lost what it had."""
        self._stored.pop(host, None)

    def has(self, host: str, batch_id: int) -> bool:
        """Whether ``host`` has the state after ``batch_id``, or after a later one."""
        return host in self._stored and self._stored[host] >= batch_id

    @property
    def safe_batch(self) -> int | None:
        """Up to where output may be served and input acknowledged; None if nobody has to be waited for."""
        if not self.required:
            return None
        self._safe = max(self._safe, min(self._stored.get(host, NOTHING) for host in self.required))
        self._let_out = max(self._let_out, self._safe)
        return self._safe

    def let_out(self, batch_id: int) -> None:
        """Nothing later than ``batch_id`` was let out while nobody had to be waited for."""
        self._let_out = max(self._let_out, batch_id)

    # --- the set

    def join(self, host: str) -> None:
        """Ship to ``host`` too from now on, and wait for it."""
        self._joining.add(host)

    def may_be_proposed(self, host: str) -> bool:
        """Whether ``host`` may become one of the replicas in the record: it has all that was let out."""
        return host in self._joining and self.has(host, self._let_out)

    def give_up(self, host: str) -> None:
        """``host`` was never proposed, and will not be."""
        if host not in self._agreed:
            self._joining.discard(host)

    def agree(self, replicas: Iterable[str]) -> None:
        """The record names these, for certain, and no proposal of ours is under way."""
        self._agreed = set(replicas)
        self._joining -= self._agreed
