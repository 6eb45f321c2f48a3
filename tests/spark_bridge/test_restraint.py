"""What an engine leaves to others while it rehearses."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Iterator

import pytest

from spark_bridge.process_tree import threads_of_tree
from spark_bridge.restraint import Restraint, half_of, processors_of

pytestmark = pytest.mark.skipif(
    not hasattr(os, "sched_getaffinity") or len(os.sched_getaffinity(0)) < 2, reason="needs two processors to choose"
)
_ALL = processors_of(os.getpid())
_HALF = half_of(_ALL)


@pytest.fixture
def busy_tree() -> Iterator[None]:
    """A process beneath this one, and a thread beside this one."""
    over = threading.Event()
    thread = threading.Thread(target=over.wait)
    thread.start()
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as child:
        yield
        child.terminate()
    over.set()
    thread.join()


def _seen() -> set[frozenset[int]]:
    return {processors_of(thread_id) for thread_id in threads_of_tree(os.getpid())}


@pytest.mark.usefixtures("busy_tree")
def test_a_rehearsal_leaves_half_of_the_processors_to_others() -> None:
    restraint = Restraint()
    with restraint.rehearsing(lambda: True):
        assert _seen() == {_HALF}
        with restraint.rehearsing(lambda: True):
            assert _seen() == {_HALF}
        assert _seen() == {_HALF}, "one still rehearses"
    assert _seen() == {_ALL}


@pytest.mark.usefixtures("busy_tree")
def test_a_fragment_that_comes_meanwhile_has_all_of_them() -> None:
    restraint = Restraint()
    with restraint.rehearsing(lambda: True):
        restraint.lift()
        assert _seen() == {_ALL}
        with restraint.rehearsing(lambda: False):
            assert _seen() == {_ALL}
    assert _seen() == {_ALL}


def test_a_failed_rehearsal_gives_them_back() -> None:
    with pytest.raises(ValueError, match="does not run"), Restraint().rehearsing(lambda: True):
        raise ValueError("does not run")
    assert _seen() == {_ALL}


def test_half_of_one_is_that_one() -> None:
    assert half_of(frozenset({3})) == {3}
    assert half_of(frozenset({0, 1, 2})) == {0}
