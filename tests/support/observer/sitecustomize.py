"""Runs in every Python process of a program under test, bare and observed alike, and writes down what it was like at exit.

Stands behind OpGuard's own sitecustomize in an observed run, so it also shows that the next one on the path runs.
"""

import atexit
import os
import random  # noqa: TID251 - the program under test is ours
import sys

random.seed(1234)  # the same start for both runs
_REPORTS = os.environ.get("HARMLESS_REPORTS", "")
_DECLARED = ("OPGUARD_", "PYTHONPATH", "HARMLESS_")


def _digest(data):
    import hashlib

    return hashlib.sha256(data).hexdigest()


def _numpy_state():
    module = sys.modules.get("numpy.random")
    if module is None:
        return None
    if module.mtrand._rand._bit_generator.seed_seq is not None:
        return "unseeded"
    name, keys, position, has_gauss, gauss = module.get_state()
    return _digest(repr((name, position, has_gauss, gauss)).encode() + keys.tobytes())


def _torch_state(torch):
    seed, state = torch.initial_seed(), torch.get_rng_state()
    fresh = torch.Generator()
    fresh.manual_seed(seed)
    untouched = torch.equal(fresh.get_state(), state)
    small = seed < 1 << 32  # chosen by the program; torch's own choice has 64 bits
    modes = torch.utils._python_dispatch._get_current_dispatch_mode_stack()
    return {
        "seed": seed if small else "unseeded",
        "state": _digest(bytes(state.tolist())) if small else untouched,
        "dtype": str(torch.get_default_dtype()),
        "grad": torch.is_grad_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "num_threads": torch.get_num_threads(),
        "dispatch_modes": len(modes),
        "function_modes": torch._C._len_torch_function_stack(),
        "loader": repr(vars(torch.__loader__)),
        "spec": repr(type(torch.__spec__.loader)),
        "version": __import__("importlib.metadata").metadata.version("torch"),
    }


def _facts():
    import gc
    import locale
    import signal
    import threading
    import warnings

    main = sys.modules["__main__"]
    umask = os.umask(0)
    os.umask(umask)
    spec = getattr(main, "__spec__", None)
    facts = {
        "argv": sys.argv,
        "orig_argv": sys.orig_argv,
        "path": sys.path,
        "flags": repr(sys.flags),
        "warnoptions": sys.warnoptions,
        "main": sorted(name for name in vars(main)),
        "main_file": getattr(main, "__file__", None),
        "main_package": getattr(main, "__package__", None),
        "main_spec": spec and spec.name,
        "cwd": os.getcwd(),
        "environ": {name: value for name, value in sorted(os.environ.items()) if not name.startswith(_DECLARED)},
        "warnings": [repr(entry) for entry in warnings.filters],
        "meta_path": [getattr(finder, "__name__", type(finder).__name__) for finder in sys.meta_path],
        "path_hooks": len(sys.path_hooks),
        "excepthook": getattr(sys.excepthook, "__qualname__", ""),
        "trace": [sys.gettrace() is None, sys.getprofile() is None, threading.gettrace() is None if sys.version_info >= (3, 10) else True],
        "handlers": {str(number): repr(signal.getsignal(number)).partition(" at ")[0] for number in (2, 13, 15)},
        # A queue feeder ends when its queue has been read, which is a matter of timing.
        "threads": [thread.name for thread in threading.enumerate() if not thread.name.startswith(("opguard", "QueueFeeder"))],
        "gc": [gc.isenabled(), gc.get_threshold()],
        "limits": [sys.getrecursionlimit(), sys.getswitchinterval()],
        "locale": list(locale.getlocale()),
        "umask": umask,
        "random": _digest(repr(random.getstate()).encode()),
        "numpy": _numpy_state(),
        "sitecustomize": sys.modules["sitecustomize"].__file__,
    }
    if "torch" in sys.modules:
        facts["torch"] = _torch_state(sys.modules["torch"])
    return facts


def _report():
    import json

    facts = json.dumps(_facts(), sort_keys=True, default=str)
    with open(os.path.join(_REPORTS, f"{os.getpid()}.json"), "w") as file:
        file.write(facts)


# The launcher is a Python process, too, but none of the program's.
if _REPORTS and not any("opguard_core" in word for word in sys.orig_argv):
    atexit.register(_report)
