"""Tests run in two processes (bootstrap.py test): those of daemons on real sockets and clocks one by one in one of
them, and beside them those of Spark, one by one, before all that only computes."""

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
#: Group of what would disturb each other: real daemons wait more than they compute, and share ports and the lab's
#: namespaces; one session of Spark after the other is enough for a processor. xdist begins with the largest groups, so
#: that the tests of Spark run beside those of tests/daemon, whose engines are fakes.
GROUPS = {"daemon": "real", "end_to_end": "real", "lab": "real", "spark_bridge": "spark"}
#: Virtual time, and processor time only.
SIMULATED = HERE / "daemon" / "simulation"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        group = GROUPS.get(item.path.relative_to(HERE).parts[0])
        if group is not None and not item.path.is_relative_to(SIMULATED):
            item.add_marker(pytest.mark.xdist_group(group))


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
