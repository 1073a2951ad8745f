"""How SIGTERM is noticed: without reading what other threads are running, as far as that is possible."""

import faulthandler
import signal
import sys

import pytest

from opguard_core.launch.termination import Termination

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGTERM to notice on Windows")


@pytest.fixture
def registered(monkeypatch):
    """What faulthandler was asked for."""
    asked = []
    monkeypatch.setattr(faulthandler, "register", lambda number, **how: asked.append((number, how["all_threads"])))
    return asked


def test_frames_of_other_threads_are_left_alone_while_the_main_thread_takes_the_signal(registered):
    Termination(lambda: None, may_stop=lambda frame: True)._register()
    assert registered == [(signal.SIGTERM, False)]


def test_a_main_thread_that_blocks_the_signal_leaves_it_to_whatever_thread_it_meets(registered):
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGTERM,))
    try:
        Termination(lambda: None, may_stop=lambda frame: True)._register()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    assert registered == [(signal.SIGTERM, True)]
