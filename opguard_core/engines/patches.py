"""Puts the hooks and thread wrappers into torch and threading, and takes them out again."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.amp
import torch.autograd.graph
import torch.utils.data.dataloader
import torch.utils.dlpack
from torch.optim import optimizer as optimizers

from opguard_core.engines.compiled import CompiledRegions
from opguard_core.engines.hooks import Hooks, ignore
from opguard_core.engines.imports import WhenImported
from opguard_core.engines.reads import Reads
from opguard_core.engines.shims import Patch, around
from opguard_core.engines.written_unseen import WrittenUnseen


class Patches:
    """Everything this rank has replaced in other people's modules."""

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._handles: list[Any] = []
        self._imports: WhenImported | None = None

    def install_for_state(self, hooks: Hooks) -> None:
        """Replace what tells how far the training is and what its state is; calls and operators stay as they are.

        A module is met when it is made, not when it is called: a wrapped call would break compiled regions into pieces.
        """
        self.add(torch.nn.Module, "__init__", hooks.enter_made, ignore)
        self._add_updates(hooks)

    def install(self, hooks: Hooks, reads: Reads, unseen: WrittenUnseen, compiled: CompiledRegions) -> None:
        """Replace what the hooks need."""
        self._patches.append(Patch(torch.nn.Module, "__call__", hooks.around_modules))
        engine = torch.autograd.graph._engine_run_backward
        for owner in (torch.autograd.graph, torch.autograd):
            if getattr(owner, "_engine_run_backward", None) is engine:
                self.add(owner, "_engine_run_backward", hooks.enter_backward, hooks.leave_backward)
        self._add_updates(hooks)
        self.add(torch.utils.data.dataloader._BaseDataLoaderIter, "__next__", hooks.enter_fetch, ignore)
        self.add(torch.Tensor, "tolist", reads.enter_tolist, ignore)
        self.add(torch.Tensor, "numpy", reads.enter_numpy, ignore)
        self.add(torch.Tensor, "__dlpack__", unseen.enter_share, ignore)
        # Whoever asks for an address may write there: a kernel of its own, ctypes.
        self.add(torch.Tensor, "data_ptr", unseen.enter_share, ignore)
        for owner in (torch, torch.utils.dlpack):
            self.add(owner, "to_dlpack", unseen.enter_share, ignore)
        self.add(torch.UntypedStorage, "resize_", unseen.enter_of_storage, unseen.leave_resize)
        for name in ("_share_fd_cpu_", "_share_filename_cpu_"):  # what `share_memory_` and a tensor that is sent to a process come to
            self.add(torch.UntypedStorage, name, unseen.enter_of_storage, unseen.leave_share_memory)
        self.add(torch.cuda.CUDAGraph, "replay", unseen.enter_replay, ignore)
        self.add(torch, "compile", compiled.enter, compiled.leave)
        self.add(torch, "save", reads.enter_save, ignore)

    def _add_updates(self, hooks: Hooks) -> None:
        # Called once by every optimizer's __init__; leaves no frame of ours on the program's stack afterwards.
        self.add(torch.optim.Optimizer, "_patch_step_function", hooks.optimizer_made, ignore)
        self.add(torch.optim.Optimizer, "load_state_dict", hooks.enter_load, hooks.leave_load)
        self.add(torch.nn.Module, "__setstate__", hooks.enter_copy, ignore)
        self.add(torch.nn.Module, "load_state_dict", hooks.enter_load, hooks.leave_load)
        self.add(torch.amp.GradScaler, "step", hooks.enter_scaler, hooks.leave_scaler)
        if hooks.witness is not None:
            self.add(torch.utils.data.DataLoader, "_get_iterator", hooks.enter_loader, ignore)
            self.add(torch, "load", hooks.enter_file, ignore)
            self.add(torch, "compile", hooks.enter_compile, ignore)
            self._imports = WhenImported("safetensors.torch", lambda module: self._add_reader(module, hooks))
            self._imports.watch()
        self._handles.append(optimizers.register_optimizer_step_pre_hook(hooks.optimizer_begins))
        self._handles.append(optimizers.register_optimizer_step_post_hook(hooks.optimizer_ends))

    def _add_reader(self, module: Any, hooks: Hooks) -> None:
        if self._imports is not None and hasattr(module, "load_file"):
            self.add(module, "load_file", hooks.enter_file, ignore)

    def add(
        self,
        owner: Any,
        name: str,
        enter: Callable[[tuple[Any, ...], dict[str, Any]], Any],
        leave: Callable[[Any, bool], None],
    ) -> None:
        """Wrap one function."""
        self._patches.append(Patch(owner, name, functools.partial(around, enter=enter, leave=leave)))

    def keep(self, patch: Patch) -> None:
        """Take over a patch made elsewhere."""
        self._patches.append(patch)

    def remove(self) -> None:
        """Undo everything, last first."""
        if self._imports is not None:
            self._imports.stop()
            self._imports = None
        for handle in reversed(self._handles):
            handle.remove()
        for patch in reversed(self._patches):
            patch.undo()
        self._handles.clear()
        self._patches.clear()
