"""What a forked child of a rank is, told from the Python stack that forked it."""

from __future__ import annotations

from types import FrameType

_DATALOADER = "torch.utils.data._utils.worker"


def what_forked(frame: FrameType | None, argv0: str) -> tuple[str, str]:
    """Name a forked child.

    Args:
        frame: Innermost frame in the child right after the fork.
        argv0: What the parent is called.

    Returns:
        (what it runs, reason): the reason is "dataloader-worker", "multiprocessing-child" or "forked-child".
    """
    while frame is not None:
        # multiprocessing.popen_fork.Popen._launch(self, process_obj)
        if frame.f_code.co_name == "_launch" and "process_obj" in frame.f_code.co_varnames:
            target = getattr(frame.f_locals.get("process_obj"), "_target", None)
            module, name = getattr(target, "__module__", None), getattr(target, "__qualname__", None)
            if not isinstance(module, str) or not isinstance(name, str):
                return argv0, "multiprocessing-child"
            return f"{module}.{name}", "dataloader-worker" if module == _DATALOADER else "multiprocessing-child"
        frame = frame.f_back
    return argv0, "forked-child"
