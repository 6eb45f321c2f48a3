"""What has to hold of what peers say about queries, and of what is on the disk, before anybody works with it.

Structs check themselves when they are made: what comes from outside is refused where it is decoded, and a change that
would make something of that kind here is refused, too. So nobody has to look out for it later, in the background.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

import msgspec

from sbon.errors import SbonError
from sbon.fragment import FragmentSpec

#: A query has three, and four while one of them is replaced.
MAX_KEEPERS: Final = 16
#: Counts go up by one at a time: this is never reached, and from here they would leave the 64 bits that travel.
MAX_COUNT: Final = 2**53

_FRAGMENT_ID = r"[A-Za-z0-9][A-Za-z0-9_-]{0,99}"
_QUERY_ID = r"[A-Za-z0-9]{1,64}"
_PORT_NAME = r"[A-Za-z0-9_]{1,64}"

#: The id of a fragment, which becomes a path. Checked where it is decoded.
FragmentId = Annotated[str, msgspec.Meta(pattern=rf"\A{_FRAGMENT_ID}\Z")]


class MalformedError(SbonError, ValueError):
    """It does not hang together. As a ValueError it is an error of decoding for msgspec, like any other."""


def check_fragment_id(fragment_id: str) -> None:
    """Raises MalformedError for one that is not ours: it becomes a path."""
    if not re.fullmatch(_FRAGMENT_ID, fragment_id):
        raise MalformedError(f"{fragment_id[:100]!r} is not the id of a fragment")


def check_spec(spec: FragmentSpec) -> None:
    """Raises MalformedError for names that would be other paths (the engine makes files of those of ports, too), and
    for ports that nothing feeds."""
    check_fragment_id(spec.fragment_id)
    if not re.fullmatch(_QUERY_ID, spec.query_id):
        raise MalformedError(f"{spec.query_id[:100]!r} is not the id of a query")
    for port in spec.ports:
        if not re.fullmatch(_PORT_NAME, port.name):
            raise MalformedError(f"{port.name[:100]!r} is not the name of a port")
        if not port.producers:
            raise MalformedError(f"nothing feeds {port.name} of {spec.fragment_id}")
        check_counts(port.changes)
    if spec.sink is not None and len(spec.ports) != 1:
        raise MalformedError(f"the sink {spec.fragment_id} has {len(spec.ports)} ports, not one")


def check_keepers(keepers: tuple[str, ...]) -> None:
    """Raises MalformedError unless there are some, and not too many."""
    if not 1 <= len(keepers) <= MAX_KEEPERS:
        raise MalformedError(f"a query cannot be kept by {len(keepers)} nodes")


def check_counts(*counts: int) -> None:
    """Raises MalformedError for a generation, or a count of changes, that nobody has counted up to."""
    if not all(0 <= count < MAX_COUNT for count in counts):
        raise MalformedError("a count that is out of range")
