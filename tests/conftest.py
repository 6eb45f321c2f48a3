"""Tests run in three processes (bootstrap.py test): those of daemons and of the lab, on real clocks, one by one
in one, those of Spark one by one in another; what only computes goes to whoever is free."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

#: No test asserts a time: on a busy machine any example may take longer than Hypothesis allows.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

HERE = Path(__file__).parent
#: Group of what would disturb each other: daemons share ports, the lab has one set of namespaces, and one engine after
#: the other is enough for a processor. xdist begins with the largest groups. Daemons wait more than they compute.
GROUPS = {"daemon": "real", "lab": "real", "end_to_end": "spark", "spark_bridge": "spark"}
#: Virtual time, and processor time only.
SIMULATED = HERE / "daemon" / "simulation"


def pytest_itemcollected(item: pytest.Item) -> None:
    """Here, and not where items are sorted: xdist reads the groups there, before any conftest has its turn."""
    if item.get_closest_marker("xdist_group") or item.path.is_relative_to(SIMULATED):
        return
    group = "spark" if item.get_closest_marker("spark") else GROUPS.get(item.path.relative_to(HERE).parts[0])
    if group is not None:
        item.add_marker(pytest.mark.xdist_group(group))
