"""What capture costs on a small CPU GPT: step time bare, under each mode, and under torch's own DebugMode with hashing.

    OMP_NUM_THREADS=1 python -m tests.benchmarks.capture [--layers 4] [--width 384] [--rounds 3] [--steps 3] [--profile MODE]

All variants run in one process, in rounds, so that a busy machine slows them alike; ratios are of CPU time of the training
thread (medians over steps) against bare, with wall time beside. DebugMode hashes inputs and outputs, which is what it can do
that is closest to mode verify.
"""

from __future__ import annotations

import argparse
import contextlib
import cProfile
import pstats
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import orjson
import torch
import torch.nn.functional as F
from torch import nn

from opguard_core.capture.session import start
from opguard_core.plan.config import RunConfig

VARIANTS = ("bare", "trusted", "full", "verify", "debugmode")


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x_btd: torch.Tensor) -> torch.Tensor:
        b, t, d = x_btd.shape
        q, k, v = (part.view(b, t, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x_btd)).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
        x_btd = x_btd + self.out(mixed)
        return x_btd + self.down(F.gelu(self.up(self.norm2(x_btd))))


class Gpt(nn.Module):
    def __init__(self, layers: int, width: int, vocab: int, context: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList([Block(width, width // 64) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, ids_bt: torch.Tensor) -> torch.Tensor:
        x_btd = self.tokens(ids_bt) + self.places(torch.arange(ids_bt.shape[1]))
        for block in self.blocks:
            x_btd = block(x_btd)
        return self.head(self.norm(x_btd))


class Training:
    """A model, its optimizer and a stream of batches."""

    def __init__(self, options: argparse.Namespace) -> None:
        torch.manual_seed(0)
        self.model = Gpt(options.layers, options.width, options.vocab, options.context)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=3e-4)
        self.shape = (options.batch, options.context + 1)
        self.vocab = options.vocab

    def step(self) -> float:
        ids = torch.randint(0, self.vocab, self.shape)
        loss = F.cross_entropy(self.model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return loss.item()


@contextlib.contextmanager
def observed(variant: str, folder: Path) -> Iterator[None]:
    """Run the block under one variant."""
    if variant == "bare":
        yield
    elif variant == "debugmode":
        from torch.utils._debug_mode import DebugMode

        with DebugMode(), DebugMode.log_tensor_hashes(hash_inputs=True):
            yield
    else:
        folder.mkdir(parents=True)
        session = start(RunConfig(run_dir=folder, user_root=Path.cwd(), mode=variant))
        try:
            yield
        finally:
            session.stop("exit")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (("layers", 4), ("width", 384), ("vocab", 1024), ("context", 128), ("batch", 4), ("rounds", 3), ("steps", 3)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--variants", nargs="*", default=list(VARIANTS))
    parser.add_argument("--profile", choices=("trusted", "full", "verify"))
    options = parser.parse_args()
    cpu: dict[str, list[float]] = {variant: [] for variant in options.variants}
    wall: dict[str, list[float]] = {variant: [] for variant in options.variants}
    with tempfile.TemporaryDirectory(prefix="opguard-bench-") as scratch:
        if options.profile:
            profile(options, Path(scratch))
            return
        training = Training(options)
        training.step()
        for number in range(options.rounds):
            for variant in options.variants:
                with observed(variant, Path(scratch) / f"{variant}-{number}"):
                    training.step()
                    for _ in range(options.steps):
                        begun_cpu, begun = time.thread_time(), time.perf_counter()
                        training.step()
                        cpu[variant].append(time.thread_time() - begun_cpu)
                        wall[variant].append(time.perf_counter() - begun)
        base_cpu, base_wall = (statistics.median(times.get("bare") or [1.0]) for times in (cpu, wall))
        print(f"{'variant':10s} {'cpu ms':>8s} {'ratio':>6s} {'wall ms':>8s} {'ratio':>6s}")
        for variant in options.variants:
            a, b = statistics.median(cpu[variant]), statistics.median(wall[variant])
            print(f"{variant:10s} {a * 1e3:8.1f} {a / base_cpu:6.2f} {b * 1e3:8.1f} {b / base_wall:6.2f}")
        for variant in options.variants:
            folder = Path(scratch) / f"{variant}-0"
            if (folder / "rank-00000").is_dir():
                manifest = (folder / "rank-00000" / "manifest.json").read_bytes()
                print(variant, "events, slots, bytes a slot:", trace_size(manifest))


def trace_size(manifest: bytes) -> tuple[int, int, float]:
    """Events, slots and bytes on disk per slot."""
    segments = orjson.loads(manifest)["segments"]
    rows = {table: sum(s["rows"] for s in segments if s["table"] == table) for table in ("events", "slots")}
    return rows["events"], rows["slots"], round(sum(s["bytes"] for s in segments) / max(1, rows["slots"]), 1)


def profile(options: argparse.Namespace, scratch: Path) -> None:
    """Print where one mode spends its time."""
    training = Training(options)
    training.step()
    profiler = cProfile.Profile()
    with observed(options.profile, scratch / "profile"):
        training.step()
        profiler.enable()
        for _ in range(options.steps):
            training.step()
        profiler.disable()
    pstats.Stats(profiler).sort_stats("tottime").print_stats(35)


if __name__ == "__main__":
    main()
