"""Tests run in two processes (bootstrap.py test): those on real sockets and clocks one by one, all in one of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from coverage import Coverage
from hypothesis import HealthCheck, settings

#: No test asserts a time: on a busy machine any example may take longer than Hypothesis allows.
settings.register_profile("patient", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("patient")

HERE = Path(__file__).parent
#: They wait more than they compute, and would disturb each other: ports, Spark, the lab's namespaces.
REAL = [HERE / name for name in ("daemon", "end_to_end", "lab", "spark_bridge")]
#: Virtual time, and processor time only.
SIMULATED = HERE / "daemon" / "simulation"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(folder) for folder in REAL) and not item.path.is_relative_to(SIMULATED):
            item.add_marker(pytest.mark.xdist_group("real"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What is marked ``untraced`` computes for long, on code that shorter tests run, too: tracing each line for the
    coverage would make it three times as slow."""
    tracing: list[Coverage] = []
    while item.get_closest_marker("untraced") and (running := Coverage.current()) is not None:
        running.stop()
        tracing.append(running)
    try:
        yield
    finally:
        for stopped in reversed(tracing):
            stopped.start()
