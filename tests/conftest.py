"""What every test relies on, whatever started the suite."""

import os
import signal

import pytest

# A shell starts background jobs with some signals ignored (nohup with more), and children inherit that; the tests send them.
for _number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP, signal.SIGTERM, signal.SIGUSR1):
    if signal.getsignal(_number) == signal.SIG_IGN:
        signal.signal(_number, signal.default_int_handler if _number == signal.SIGINT else signal.SIG_DFL)

MOST_WORKERS = 8  # each may hold torch, a training of two ranks and their traces


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers() -> int:
    """Processes that ``-n auto`` shares the tests among: one a core that we may use."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, MOST_WORKERS)
