from __future__ import annotations

import pytest

from overlay.identity import PRIVATE_KEY_BYTES, Identity, is_node_id, node_id_of


def test_the_id_is_the_hash_of_the_public_key_and_survives_a_restart() -> None:
    identity = Identity.generate()
    assert identity.node_id == node_id_of(identity.public_key)
    assert is_node_id(identity.node_id)
    kept = identity.private_bytes()
    assert len(kept) == PRIVATE_KEY_BYTES
    assert Identity.from_private_bytes(kept).node_id == identity.node_id
    assert Identity.generate().node_id != identity.node_id


def test_a_key_of_another_length_is_refused() -> None:
    with pytest.raises(ValueError, match="32 bytes"):
        Identity.from_private_bytes(b"short")


@pytest.mark.parametrize("text", ["", "0" * 31, "0" * 33, "G" * 32, "A" * 32])
def test_what_is_not_a_node_id(text: str) -> None:
    assert not is_node_id(text)
