"""End a program once the steps that were asked for are recorded (only one in a private copy), or nobody waits for it.

    rank       N counted updates recorded -> closes its trace -> times M updates that nobody observes -> profiles one more, where there
               is a card -> tells, and waits
    launcher   all ranks have told, or whoever started the launcher is gone -> ends the program (SIGTERM, then SIGKILL)

Nothing is cut short: the trace ends at the end of a step and is complete. A program that makes fewer updates ends by itself.
What it cannot end: a program that never calls an optimizer's ``step``; that is what a time limit is for.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from opguard_core.launch import folder
from opguard_core.launch.child import alive
from opguard_core.launch.folder import Process
from opguard_core.plan.orders import PLAN_NAME, Orders

if TYPE_CHECKING:
    from opguard_core.capture.session import Session

_POLL_S = 0.05


class EarlyEnd:
    """Inside a rank: watches the updates, and holds the program when there were enough.

    Args:
        run: The run folder.
        orders: What every rank is asked.
        session: Counts the updates.
        stop: Closes the session.
        tell: Tells the launcher.
    """

    def __init__(self, run: Path, orders: Orders, session: Session, *, stop: Callable[[], None], tell: Callable[..., None]) -> None:
        assert orders.end_after is not None
        self._plan, self._launcher = run / PLAN_NAME, orders.launcher
        self._end_after, self._bare_steps = orders.end_after, orders.bare_steps
        self._session, self._stop, self._tell = session, stop, tell
        self._pid = os.getpid()
        self._counted: object = None
        self._seen = 0
        self._last: tuple[int, int] | None = None
        self._times: dict[str, list[tuple[int, int]]] = {"observed": [], "bare": []}
        self._hook = -1
        self._profiled: Any = None
        self._found: dict[str, Any] = {}

    def watch(self) -> None:
        """Be called after every optimizer's step, behind the session's own hook."""
        from torch.optim import optimizer as optimizers

        self._hook = int(optimizers.register_optimizer_step_post_hook(self._stepped).id)

    def _stepped(self, optimizer: object, args: Any, kwargs: Any) -> None:
        """An update has ended. Cost: nothing until there were enough."""
        if os.getpid() != self._pid:
            return
        if self._counted is None:
            if self._session.context.progress.completed == self._seen:
                return  # an optimizer that does not count
            self._seen = self._session.context.progress.completed
            self._take("observed")
            if self._seen < self._end_after:
                return
            self._stop()
            self._counted = optimizer
        elif self._profiled is not None:
            if optimizer is not self._counted:
                return
            self._found = self._profiled.end()
            self._hold()
        elif optimizer is self._counted:
            self._take("bare")
        if len(self._times["bare"]) >= self._bare_steps or not self._goes_on_safely():
            if not (optimizer is self._counted and self._profiles()):
                self._hold()
        self._last = _clocks()

    def _take(self, what: str) -> None:
        """Keep what has passed since the update before; the first one has none before it."""
        now = _clocks()
        if self._last is not None:
            self._times[what].append((now[0] - self._last[0], now[1] - self._last[1]))
        self._last = now

    def _profiles(self) -> bool:
        """Begin to profile the step that comes; False if none is to be."""
        cuda = getattr(sys.modules.get("torch"), "cuda", None)
        if not self._bare_steps or cuda is None or not cuda.is_initialized() or not self._goes_on_safely():
            return False
        from opguard_core.intercept.profiled import ProfiledStep

        profiled = ProfiledStep()
        self._tell(step_times=self._times)  # the program may end by itself before the next step
        if profiled.begin():
            self._profiled = profiled
            return True
        self._found = {"kernel_times_reason": profiled.why_not}
        return False

    def _goes_on_safely(self) -> bool:
        """Whether torch's loop over hooks ends with ours: closing the session removed one of them under its feet."""
        hooks: Any = sys.modules["torch.optim.optimizer"]._global_optimizer_post_hooks
        return bool(next(reversed(hooks)) == self._hook)

    def _hold(self) -> None:
        """Tell the launcher and wait for the end; if nobody is there to bring it, end."""
        self._tell(over=True, step_times=self._times, profiled=self._found)
        while self._plan.exists() and alive(self._launcher):
            time.sleep(_POLL_S)
        os._exit(0)


def watcher(run: Path) -> Callable[[], Sequence[int] | None]:
    """In the launcher: a function that says whether the program must end, as the processes that must end with it.

    It must when all ranks have told, and when whoever started the launcher was killed: nobody will ever look at what runs
    in that private copy.

    Args:
        run: The run folder.

    Cost: a look at as many small files as there are processes, a few times a second.
    """
    started_by = os.getppid()

    def over() -> Sequence[int] | None:
        processes = folder.read_processes(run)
        if os.getppid() != started_by:
            return [process.pid for process in processes]
        ranks = [process for process in processes if process.get("folder")]
        world = max((int(process.get("world_size", 1)) for process in ranks), default=1)
        done = [process for process in ranks if process.get("over")]
        return [process.pid for process in processes] if len(done) == len(ranks) >= world else None

    return over


def orphaned(run: Path, started_by: int) -> Callable[[], Sequence[int] | None]:
    """In the launcher: a function that says, when whoever started it was killed, which processes must end with the program.

    Args:
        run: The run folder.
        started_by: Number of the process that started us, perhaps through a wrapper. It is told, not asked for: it may be gone
            before we can ask.

    Cost: one system call, a few times a second.
    """

    def over() -> Sequence[int] | None:
        if os.getppid() == started_by or alive(started_by):
            return None
        return [process.pid for process in folder.read_processes(run)]

    return over


def _clocks() -> tuple[int, int]:
    """Nanoseconds on the wall's clock, and of work of this thread."""
    return time.monotonic_ns(), time.thread_time_ns()


def step_times(processes: Sequence[Process]) -> dict[str, Any]:
    """For each rank, ``observed`` and ``bare`` steps, each (wall, thread's work) in nanoseconds."""
    return {str(process.get("rank")): process.get("step_times") for process in processes if process.get("step_times")}


def profiles(processes: Sequence[Process]) -> list[dict[str, Any]]:
    """What the ranks' profiled steps said, see ``intercept.profiled``; of those that had one."""
    return [found for process in processes if (found := process.get("profiled"))]
