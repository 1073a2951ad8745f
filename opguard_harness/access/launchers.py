"""Options of torchrun and `accelerate launch`, as far as they stand before the program; all others need ``--option=value``.

Names have no leading dashes, and dashes for underscores. An option that is missing here is refused with a separate value, since
whether the next word is its value or the program could only be guessed.

Source: torch 2.13 `torch.distributed.run`, accelerate 1.x `accelerate.commands.launch`.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Launcher:
    """The options of one launcher.

    Attributes:
        name: As messages say it.
        flags: Options without a value.
        valued: Options with one.
        short: Short options, and whether each has a value.
        refused: Options that start something else than a Python program of the root, on this machine or another.
    """

    name: str
    flags: frozenset[str]
    valued: frozenset[str]
    short: dict[str, bool]
    refused: frozenset[str]


TORCHRUN = Launcher(
    name="torchrun",
    flags=frozenset("standalone module run-path virtual-local-rank use-env".split()),
    valued=frozenset(
        "nnodes nproc-per-node rdzv-backend rdzv-endpoint rdzv-id rdzv-conf max-restarts monitor-interval start-method role log-dir "
        "redirects tee local-ranks-filter duplicate-stdout-filters duplicate-stderr-filters node-rank master-addr master-port "
        "local-addr numa-binding signals-to-handle shutdown-timeout".split()
    ),
    short={"-m": False, "-r": True, "-t": True},
    refused=frozenset("no-python logs-specs event-log-handler".split()),
)
ACCELERATE = Launcher(
    name="accelerate launch",
    flags=frozenset(
        "quiet cpu multi-gpu enable-cpu-affinity dynamo-use-fullgraph dynamo-use-dynamic dynamo-use-regional-compilation "
        "use-deepspeed use-fsdp use-parallelism-config use-megatron-lm same-network module debug downcast-bf16 "
        "fp8-use-autocast-during-eval".split()
    ),
    valued=frozenset(
        "config-file mixed-precision num-processes num-machines num-cpu-threads-per-process dynamo-backend dynamo-mode gpu-ids "
        "machine-rank main-process-ip main-process-port tee log-dir role rdzv-backend rdzv-conf max-restarts monitor-interval "
        "deepspeed-config-file zero-stage offload-optimizer-device offload-param-device gradient-accumulation-steps gradient-clipping "
        "zero3-init-flag zero3-save-16bit-model fsdp-version fsdp-offload-params fsdp-min-num-params fsdp-sharding-strategy "
        "fsdp-reshard-after-forward fsdp-auto-wrap-policy fsdp-transformer-layer-cls-to-wrap fsdp-backward-prefetch "
        "fsdp-state-dict-type fsdp-forward-prefetch fsdp-use-orig-params fsdp-cpu-ram-efficient-loading fsdp-sync-module-states "
        "fsdp-activation-checkpointing parallelism-config-dp-replicate-size parallelism-config-dp-shard-size "
        "parallelism-config-tp-size parallelism-config-cp-size parallelism-config-sp-size".split()
    ),
    short={"-m": False, "-t": True, "-q": False},
    refused=frozenset(
        "no-python tpu tpu-cluster no-tpu-cluster tpu-use-sudo vm env deepspeed-hostfile deepspeed-multinode-launcher mpirun-hostfile "
        "aws-access-key-id aws-secret-access-key".split()
    ),
)
SCRIPTS = {"torchrun": TORCHRUN, "accelerate": ACCELERATE, "accelerate-launch": ACCELERATE}
MODULES = {
    "torch.distributed.run": TORCHRUN,
    "torch.distributed.launch": TORCHRUN,
    "accelerate.commands.launch": ACCELERATE,
    "accelerate.commands.accelerate_cli": ACCELERATE,
}
WITH_SUBCOMMAND = ("accelerate", "accelerate.commands.accelerate_cli")
"""Launchers whose first word is the command `launch`."""
