"""What snapshots, resumable loaders and contract facts cost: `python -m tests.benchmarks.state` prints a Markdown table.

Processor seconds of this process (worker processes apart), medians of `REPEATS`; a busy machine moves them less than the clock.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from pathlib import Path

import torch
from torch.utils.data import DataLoader

from opguard_core import state
from opguard_core.determinism.facts import RankFacts
from opguard_core.plan.config import RunConfig
from opguard_core.trace.writer import TraceWriter
from tests.support.resumable import Augmented

REPEATS = 5
WIDTH, LAYERS = 1024, 8


def processor_ms(work) -> float:
    """Median processor milliseconds of a call."""
    times = []
    for _ in range(REPEATS):
        began = time.process_time()
        work()
        times.append(1e3 * (time.process_time() - began))
    return statistics.median(times)


def training():
    model = torch.nn.Sequential(*(torch.nn.Linear(WIDTH, WIDTH) for _ in range(LAYERS)))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(1, WIDTH)).sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    return model, optimizer


def epoch_us(loader, batches) -> float:
    """Processor microseconds of the main process for each batch."""
    return 1e3 * processor_ms(lambda: list(loader)) / batches


def main() -> None:
    """Measure and print."""
    torch.set_num_threads(1)
    model, optimizer = training()
    size = sum(p.nbytes for p in model.parameters()) * 3 / 2**20
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        ours, theirs = folder / "ours", folder / "theirs"
        rows = [
            (f"`state.snapshot`, {size:.0f} MiB", processor_ms(lambda: state.snapshot(ours, model=model, optimizer=optimizer)), "ms"),
            ("`torch.save` of the same", processor_ms(lambda: torch.save([model.state_dict(), optimizer.state_dict()], theirs)), "ms"),
            ("`state.restore`, checked twice", processor_ms(lambda: state.restore(ours, model=model, optimizer=optimizer)), "ms"),
        ]

        def load():
            weights, moments = torch.load(theirs)
            model.load_state_dict(weights)
            optimizer.load_state_dict(moments)

        rows.append(("`torch.load` and `load_state_dict`", processor_ms(load), "ms"))
        plain = DataLoader(Augmented(400), batch_size=4, shuffle=True, num_workers=0)
        rows.append(("plain loader, no workers, a batch", epoch_us(plain, 100), "us"))
        rows.append(("resumable loader, no workers, a batch", epoch_us(state.ResumableLoader(plain), 100), "us"))
        workers = DataLoader(Augmented(400), batch_size=4, shuffle=True, num_workers=2)
        rows.append(("plain loader, two workers, a batch (main process)", epoch_us(workers, 100), "us"))
        rows.append(("resumable loader, two workers, a batch (main process)", epoch_us(state.ResumableLoader(workers), 100), "us"))
        config = RunConfig(run_dir=folder, user_root=folder)
        rows.append(("early facts", processor_ms(lambda: RankFacts(config)), "ms"))
        facts = [RankFacts(config) for _ in range(REPEATS)]
        rows.append(("facts of the first step", processor_ms(lambda: facts.pop().late("first optimizer step")), "ms"))
        writer, contract = TraceWriter(folder / "rank-00000"), RankFacts(config).finish()
        rows.append(("writing them for whoever watches", processor_ms(lambda: writer.tell_contract(contract)), "ms"))
        writer.close(ended="exit")
    print("| what | processor time |\n|---|---|")
    for what, value, unit in rows:
        print(f"| {what} | {value:.1f} {unit} |")


if __name__ == "__main__":
    main()
