"""How the datagrams of sessions look.

Big-endian; the first byte is the version in the high and the kind in the low half:

    HELLO     kind, initiator's index (4), salt (16), credentials
    WELCOME   kind, initiator's index (4), responder's index (4), salt (16), credentials, seal of nothing (16)
    SEALED    kind, receiver's index (4), counter (4), body, tag (16)
    RESET     kind, index (4), counter (4)
    REFUSED   kind, initiator's index (4), reason (1)
"""

from __future__ import annotations

import struct
from typing import Final

from overlay.suite import SALT_BYTES, TAG_BYTES

SESSION_VERSION: Final = 2
HELLO, WELCOME, SEALED, RESET, REFUSED = (SESSION_VERSION << 4 | kind for kind in range(1, 6))
HEAD: Final = struct.Struct(">BII")
REFUSED_LAYOUT = struct.Struct(">BIB")
HEADER_BYTES: Final = HEAD.size
#: What sealing adds to a body.
SEAL_BYTES: Final = HEADER_BYTES + TAG_BYTES
#: Below the smallest path MTU in common use.
MAX_SEALED_BYTES: Final = 1200
MAX_BODY_BYTES: Final = MAX_SEALED_BYTES - SEAL_BYTES
HELLO_HEAD_BYTES: Final = 5 + SALT_BYTES
WELCOME_HEAD_BYTES: Final = HEADER_BYTES + SALT_BYTES
MAX_HANDSHAKE_BYTES: Final = 600
