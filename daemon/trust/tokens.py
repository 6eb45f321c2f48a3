"""Tokens: short texts that let one host join, once. They say which cluster it will be in, and carry a secret."""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass

from overlay.certificates import CLUSTER_ID_BYTES
from sbon.errors import SbonError

TOKEN_ID_BYTES = 8
TOKEN_SECRET_BYTES = 16
_PREFIX = "sbon1-"


@dataclass(frozen=True, slots=True, repr=False)
class Token:
    """``secret`` never leaves the two hosts, except inside the text that a person carries from one to the other."""

    cluster_id: bytes
    token_id: bytes
    secret: bytes

    def __repr__(self) -> str:
        return f"Token({self.token_id.hex()})"

    @property
    def text(self) -> str:
        data = self.cluster_id + self.token_id + self.secret
        return _PREFIX + base64.urlsafe_b64encode(data).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Token:
        """Raises SbonError for what is no token; the text is never repeated in the error."""
        body = text.strip()
        try:
            data = base64.b64decode(
                body.removeprefix(_PREFIX) + "=" * (-len(body.removeprefix(_PREFIX)) % 4), altchars=b"-_", validate=True
            )
        except (ValueError, binascii.Error):
            data = b""
        after_cluster = data[CLUSTER_ID_BYTES:]
        token = cls(data[:CLUSTER_ID_BYTES], after_cluster[:TOKEN_ID_BYTES], after_cluster[TOKEN_ID_BYTES:])
        if len(data) != CLUSTER_ID_BYTES + TOKEN_ID_BYTES + TOKEN_SECRET_BYTES or token.text != body:
            raise SbonError(f"that is not a token: copy the whole line that `sbon token` printed ({_PREFIX}...)")
        return token
