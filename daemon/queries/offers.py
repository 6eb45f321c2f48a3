"""What hosts say that they have for others to read is believed when those who keep it say so, too.

A host that says its fragment computes something else than it does, or that it has one which it has not, is contradicted
by the keepers of the query. They are named by the host as well, so somebody else than the host has to confirm: a single
node can make nobody read what is not so. (Two that agree on a lie can, as two keepers can in everything.)
"""

from __future__ import annotations

from daemon.events import Events
from daemon.peering.host_messages import DerivedStream
from daemon.peering.peers import Peers
from daemon.peering.query_record import KEEPERS
from daemon.peering.subscription_messages import AskOffered, Offered
from daemon.queries.record_keeping import RecordKeeping
from sbon.errors import SbonError, UnavailableError

ASK_TIMEOUT_S = 5.0


class Offers:
    """Asks about what others offer, and answers for the queries that are kept here."""

    def __init__(self, peers: Peers, keeping: RecordKeeping, events: Events) -> None:
        self._peers = peers
        self._keeping = keeping
        self._events = events
        #: What hosts said, and was not so.
        self.lies = 0
        peers.handle(AskOffered, self._answer)

    async def confirm(self, offered: DerivedStream, host: str) -> None:
        """Raises SbonError if ``offered``, as ``host`` told of it, is not so; UnavailableError if that is not known."""
        for record in offered.records:
            self._peers.meet(record)
        keepers = tuple(dict.fromkeys(offered.keepers))
        question = AskOffered(offered.query_id, offered.fragment_id)
        answers = (await self._peers.gather(question, Offered, keepers, ASK_TIMEOUT_S)).answers
        told = Offered(offered.computes, offered.keepers)
        agreeing = {keeper for keeper, answer in answers.items() if answer == told}
        most = len(keepers) // 2 + 1
        if len(agreeing) >= most and (agreeing - {host} or self._few_nodes()):
            return
        name = self._peers.name(host)
        if len(answers) - len(agreeing) >= most or len(agreeing) >= most:
            self.lies += 1
            self._events.publish("offer-denied", fragment=offered.fragment_id, node=name, denied=self.lies)
            raise SbonError(f"nobody else says of {offered.fragment_id} what {name} says")
        raise UnavailableError(f"too few of the keepers of {offered.fragment_id} answer")

    def _few_nodes(self) -> bool:
        """Where there are fewer nodes than keepers, each query has one keeper, which may be the host itself."""
        return 1 + len(self._peers.overlay.members()) < KEEPERS

    async def _answer(self, message: AskOffered, _sender: str) -> Offered:
        record = self._keeping.find(message.query_id)
        fragment = None if record is None else record.fragments.get(message.fragment_id)
        if record is None or fragment is None or fragment.released:
            return Offered(None, ())
        return Offered(fragment.spec.computes, record.keepers)
