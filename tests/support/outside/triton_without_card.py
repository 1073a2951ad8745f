"""Triton with a driver that has no card: kernels are compiled for real, and a launch runs what the test says in their place."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.driver import DriverBase
from triton.runtime.driver import driver

# What a kernel of this name does: called with the launcher's arguments, as the kernel gets them.
Emulation = Callable[..., None]


class _Utils:
    @staticmethod
    def load_binary(name: str, *rest: Any) -> tuple[Any, ...]:
        return 0, name, 0, 0, 1024  # module, function, registers, spills, threads

    @staticmethod
    def get_device_properties(device: int) -> dict[str, int]:
        return {"max_shared_mem": 1 << 20, "multiprocessor_count": 1, "warpSize": 32, "max_num_regs": 65536}


class NoCard(DriverBase):
    """A driver for one device that is not there.

    Args:
        emulations: By kernel name.
    """

    def __init__(self, emulations: dict[str, Emulation]) -> None:
        self.launched: list[str] = []
        self.utils = _Utils()
        no_card = self

        class Launcher:
            def __init__(self, source: Any, metadata: Any) -> None:
                self.name = source.name if hasattr(source, "name") else metadata["name"]

            def __call__(self, grid_0: int, grid_1: int, grid_2: int, stream: int, function: Any, *rest: Any) -> None:
                no_card.launched.append(function)
                emulations[function](*rest[4:])  # behind metadata and hooks

        self.launcher_cls = Launcher

    @staticmethod
    def is_active() -> bool:
        return True

    def map_python_to_cpp_type(self, kind: str) -> str:
        return kind

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", 90, 32)

    def get_active_torch_device(self) -> Any:
        raise NotImplementedError

    def get_benchmarker(self) -> Callable[..., Any]:
        def bench(call: Callable[[], None], quantiles: Any = None, **rest: Any) -> Any:
            for _ in range(3):
                call()
            return [1.0, 1.0, 1.0]

        return bench

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int | None = None) -> int:
        return 0

    def get_empty_cache_for_benchmark(self) -> Any:
        raise NotImplementedError

    def clear_cache(self, cache: Any) -> None:
        del cache


def without_card(emulations: dict[str, Emulation]) -> NoCard:
    """Make the driver the active one; needs no card, compiles with Triton's own ptxas."""
    made = NoCard(emulations)
    driver.set_active(made)
    return made


assert triton.__version__ >= "3"
