# ruff: noqa: E402  (torch may be missing)
"""A session that has ended keeps nothing of Python's: one process may hold many of them, one after another."""

import gc
import weakref

import pytest

torch = pytest.importorskip("torch")
pytestmark = [pytest.mark.torch, pytest.mark.timeout(900)]  # building the engine

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig
from tests.support.native import native_or_skip

OBJECTS = 100  # of a session, at most: the entries of its weak references, of reports


def one_session(folder, engine):
    """Weak references to what it was made of."""
    session = start(RunConfig(run_dir=folder, user_root=folder.parent, engine=engine))
    model = torch.nn.Linear(4, 4)
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(2):
        model(torch.ones(2, 4)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    session.stop("exit")
    return [weakref.ref(part) for part in (session, session.context, session.engine, session.context.places)]


@pytest.mark.parametrize("engine", ["dispatch", "native"])
def test_nothing_of_a_session_that_has_ended_is_kept(engine, tmp_path):
    if engine == "native":
        native_or_skip()
    for number in range(2):  # what is made once a process
        one_session(tmp_path / f"first-{number}", engine)
    gc.collect()
    before = len(gc.get_objects())
    parts = [one_session(tmp_path / str(number), engine) for number in range(3)]
    gc.collect()
    assert not any(part() for each in parts for part in each)
    assert (len(gc.get_objects()) - before) / len(parts) < OBJECTS
