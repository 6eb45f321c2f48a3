"""Errors that are meant to be read by the person who caused them.

Everything raised on purpose towards a user derives from :class:`SbonError`: its message is one line that says what is
wrong and what to do. Anything else that escapes is a bug of ours and keeps its traceback.
"""

from __future__ import annotations


class SbonError(Exception):
    """A mistake of the user, or of the world around us: one line, with the remedy in it. Nothing was changed."""


class ConfigurationError(SbonError):
    """A configuration file that cannot be used."""


class QueryError(SbonError):
    """SQL that does not parse, names what does not exist, or asks for what is not supported."""


class UnavailableError(SbonError):
    """A peer, an engine or a file that is needed and cannot be reached now; trying again later may help."""


class StaleGenerationError(SbonError):
    """A command or a pull that carries a lower generation than the one in force (DESIGN: Ownership)."""


class DamagedError(SbonError):
    """What is on the disk is not what was written there."""


class RemoteProtocolError(Exception):
    """Bytes from somebody else that break the protocol. Caught where bytes enter; dropped and counted, never shown."""


class UnknownKindError(RemoteProtocolError):
    """Well-formed bytes of a kind or a version that this node does not know: perhaps a newer node's, and skipped."""
