"""Fixtures for tests of the overlay."""

from __future__ import annotations

import pytest

from tests.overlay.session_nodes import MakeNode, fake_node, member, open_node


@pytest.fixture(params=[fake_node, open_node, member])
def make(request: pytest.FixtureRequest) -> MakeNode:
    return request.param  # type: ignore[no-any-return]
