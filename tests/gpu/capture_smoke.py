"""Is the dispatch engine right on this card: a small GPT is trained on it under capture, and its traces are held against each other.

    python3 -m tests.gpu.capture_smoke [--device cuda] [--jobs 8] [--keep FOLDER]

About 60 seconds. Prints PASS or FAIL for each claim and goes on; exit code 0 only if all pass. Claims, in every mode: a run equals its
repetition; a weight that is changed by one operator is found at that operator; digests come from the card and none is lost; observing
adds no call that waits for the device (torch's own count, `torch.cuda.set_sync_debug_mode`). Besides: the fallback in torch operations
gives the same trace as the compiled kernels, and a boundary is kept in full.

Needs torch, numpy, pyarrow and orjson; nothing of the harness. With ``--device cpu`` it tries itself, without what needs a card.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
MODES = ("verify", "full", "trusted", "sentinel")
STEPS, PLANTED_STEP = 5, 3
PLANTED = "model.blocks[1][3].weight[0, 0].add_(planted)"
PROGRAM = f"""import json, os, warnings

import torch
from torch import nn
from torch.nn import functional as F

device, planted = os.environ["SMOKE_DEVICE"], float(os.environ["SMOKE_PLANTED"])
STEPS, PLANTED_STEP = {STEPS}, {PLANTED_STEP}


class Model(nn.Module):
    def __init__(self, vocab=512, width=128, context=64):
        super().__init__()
        self.tokens, self.places = nn.Embedding(vocab, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(
            nn.ModuleList([nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), nn.Linear(width, width)])
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, ids):
        x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
        for norm, qkv, out, mix in self.blocks:
            b, t, d = x.shape
            q, k, v = (part.view(b, t, 2, -1).transpose(1, 2) for part in qkv(norm(x)).chunk(3, -1))
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, d)
            x = x + out(F.dropout(mixed, 0.1, self.training))
            x = x + mix(F.gelu(x))
        return self.head(x)


def step(model, optimizer, batches, number):
    ids = batches[number].to(device, non_blocking=True)
    if number == PLANTED_STEP:
        with torch.no_grad():
            {PLANTED}
    with torch.autocast(device, torch.bfloat16):
        loss = F.cross_entropy(model(ids[:, :-1]).flatten(0, 1).float(), ids[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def main():
    torch.use_deterministic_algorithms(True)  # also without the knobs, so that the bare loss is one number
    torch.manual_seed(0)
    model = Model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=True)
    batches = torch.randint(0, 512, (STEPS, 4, 65))
    if device == "cuda":
        batches = batches.pin_memory()
    waits = 0
    for number in range(STEPS):
        # The first step allocates and chooses algorithms; those after it are counted.
        counting = device == "cuda" and number > 0
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            if counting:
                torch.set_warn_always(True)
                torch.cuda.set_sync_debug_mode("warn")
            loss = step(model, optimizer, batches, number)
            if counting:
                torch.cuda.set_sync_debug_mode("default")
        waits += sum("synchronizing" in str(one.message) for one in caught)
        for one in caught:
            if "synchronizing" in str(one.message):
                print("WAITED", one.filename, one.lineno, flush=True)
    print("TOLD", json.dumps({{"waits": waits, "loss": loss.item().hex()}}), flush=True)


main()
"""


class Ran:
    """One finished run.

    Attributes:
        folder: Its trace; absent for a bare run.
        told: What the program printed about itself.
        waited: Places of calls that waited for the device.
        error: Its last words if it failed.
    """

    def __init__(self, folder: Path, done: subprocess.CompletedProcess[str]) -> None:
        self.folder = folder
        lines = done.stdout.splitlines()
        told = [line.removeprefix("TOLD ") for line in lines if line.startswith("TOLD ")]
        self.told: dict[str, Any] = json.loads(told[-1]) if told else {}
        self.waited = [line.removeprefix("WAITED ") for line in lines if line.startswith("WAITED ")]
        failed = done.returncode != 0 or not told
        self.error = f"exit {done.returncode}: {' / '.join((done.stderr or done.stdout).strip().splitlines()[-4:])}" if failed else ""

    def manifest(self) -> dict[str, Any]:
        """The rank's manifest."""
        return dict(json.loads((self.folder / "rank-00000" / "manifest.json").read_bytes()))


def run(program: Path, folder: Path, options: argparse.Namespace, mode: str, *more: str, planted: float = 0.0, **environment: str) -> Ran:
    """Run the program under capture, or bare where ``mode`` is empty."""
    training = [sys.executable, str(program)]
    observed = [sys.executable, "-m", "opguard_core", "run", "--out", str(folder), "--mode", mode, *more]
    observed += ["--engine", "dispatch"] if options.can_choose else []
    command = [*observed, "--", *training] if mode else training
    told = {"PYTHONPATH": _path(), "SMOKE_DEVICE": options.device, "SMOKE_PLANTED": repr(planted), "CUBLAS_WORKSPACE_CONFIG": ":4096:8"}
    try:
        done = subprocess.run(
            command,
            cwd=program.parent,
            env={**os.environ, **told, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=options.timeout,
        )
    except subprocess.TimeoutExpired:
        done = subprocess.CompletedProcess(command, 124, "", f"longer than {options.timeout:g} s")
    return Ran(folder, done)


def _path() -> str:
    return os.pathsep.join([str(REPOSITORY), *filter(None, [os.environ.get("PYTHONPATH", "")])])


def _can_choose() -> bool:
    """Whether this version's launcher has more than one engine to choose from."""
    words = [sys.executable, "-m", "opguard_core", "run", "--help"]
    asked = subprocess.run(words, capture_output=True, text=True, check=False, env={**os.environ, "PYTHONPATH": _path()})
    return "--engine" in asked.stdout


class Claims:
    """Counts what passes and what fails."""

    def __init__(self) -> None:
        self.num_failed = 0
        self._begun_s = time.monotonic()

    def check(self, claim: str, passed: bool, detail: object = "") -> None:
        """Print one line."""
        self.num_failed += not passed
        print(
            f"{'PASS' if passed else 'FAIL'} [{time.monotonic() - self._begun_s:5.1f} s] {claim}{': ' if detail != '' else ''}{detail}",
            flush=True,
        )

    def guarded(self, claim: str, check: Any) -> None:
        """Run a check that prints its own lines; its failure is a FAIL of the claim."""
        try:
            check()
        except Exception as error:
            self.check(claim, False, f"{type(error).__name__}: {error}"[:400])


def judged(reference: Ran, suspect: Ran) -> dict[str, Any]:
    """What aligning and certifying two runs says."""
    from opguard_core.certify.answer import to_dict
    from opguard_core.certify.compare import compare
    from opguard_core.trace.reader import Run

    for ran in (reference, suspect):
        if ran.error:
            raise RuntimeError(ran.error)
    return to_dict(compare(Run.open(reference.folder), Run.open(suspect.folder)))


def shown(answer: dict[str, Any]) -> str:
    """An answer in a line."""
    pivot = answer.get("pivot") or {}
    text = (pivot.get("suspect") or {}).get("text")
    reasons = [reason["slug"] for reason in answer.get("reasons") or []]
    said = f"{answer['verdict']} step {pivot.get('step')} {pivot.get('operator')} {pivot.get('origin')}"
    return f"{said} at {text!r} {reasons or ''}"


def look_at_digests(claims: Claims, mode: str, ran: Ran, device: str, backend: str) -> None:
    """What the manifest and the rows of a run say about where its digests came from."""
    from opguard_core.trace.reader import Run

    manifest = ran.manifest()
    engine = next(iter(manifest["engines"].values()))
    claims.check(f"{mode}: no gap in coverage", not manifest["coverage"]["gaps"], manifest["coverage"]["gaps"] or "")
    if device != "cuda":
        return
    told = engine.get("fingerprint", {})
    card = told.get("cuda", {})
    good = card.get("backend") == backend and card.get("lost") == card.get("outstanding") == 0 and card.get("probes", 0) > 0
    claims.check(f"{mode}: digests come from the card by backend {backend}, none is lost", good, told)
    claims.check(f"{mode}: nobody waited for room", told.get("held_back") == 0, told.get("held_back"))
    if mode == "sentinel":
        return
    times, streams, operators = [], set(), 0
    for window in Run.open(ran.folder).ranks[0].iter_windows():
        for index in range(len(window)):
            event, slots = window.event(index), window.slots_of(index)
            if event.kind != "operator" or not any(slot.device.startswith("cuda") for slot in slots):
                continue
            operators += 1
            streams.add(event.stream)
            times += [event.t_device_ns] if event.t_device_ns is not None else []
    claims.check(
        f"{mode}: every operator on the card has a stream",
        None not in streams and operators > 0,
        f"{operators} operators, streams {streams}",
    )
    if backend == "cuda":
        claims.check(f"{mode}: device times rise", bool(times) and times == sorted(times), f"{len(times)} times")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--jobs", type=int, default=8, help="Runs side by side.")
    parser.add_argument("--modes", nargs="+", default=list(MODES), choices=MODES)
    parser.add_argument("--timeout", type=float, default=80.0, help="Seconds one run may take.")
    parser.add_argument("--keep", type=Path, help="Keep the traces in this folder.")
    options = parser.parse_args()
    sys.path.insert(0, str(REPOSITORY))
    claims = Claims()
    options.can_choose = _can_choose()
    with tempfile.TemporaryDirectory(prefix="opguard-smoke-") as scratch:
        base = options.keep or Path(scratch)
        folder = base / "program"
        folder.mkdir(parents=True)
        program = folder / "train.py"
        program.write_text(PROGRAM)
        _all(claims, program, base, options)
    print(f"{'PASS' if not claims.num_failed else f'FAIL: {claims.num_failed} claims'}", flush=True)
    return 1 if claims.num_failed else 0


def _all(claims: Claims, program: Path, base: Path, options: argparse.Namespace) -> None:
    backend = "cuda"
    # Alone and first: it builds what the others find built.
    loose = run(program, base / "loose", options, "full")
    claims.check("a captured training ends well", not loose.error, loose.error)
    with ThreadPoolExecutor(options.jobs) as pool:
        started: dict[tuple[str, str], Future[Ran]] = {("", "bare"): pool.submit(run, program, base / "bare", options, "")}
        for mode in options.modes:
            for name, planted in (("one", 0.0), ("two", 0.0), ("planted", 0.25)):
                started[mode, name] = pool.submit(run, program, base / f"{mode}-{name}", options, mode, "--deterministic", planted=planted)
        started["full", "twin"] = pool.submit(run, program, base / "full-twin", options, "full", "--deterministic", OPGUARD_NO_KERNELS="1")
        ran = {key: future.result() for key, future in started.items()}
    bare = ran["", "bare"]
    claims.check("the bare training ends well", not bare.error, bare.error)
    same = bare.told.get("loss") == loose.told.get("loss") and "loss" in bare.told
    claims.check("observing changes no bit of the loss", same, f"{bare.told} {loose.told}")
    for mode in options.modes:
        one, two, planted = (ran[mode, name] for name in ("one", "two", "planted"))
        for name, each in (("one", one), ("two", two), ("planted", planted)):
            claims.check(f"{mode}: run {name} ends well", not each.error, each.error)
        more = one.told.get("waits", -1) - bare.told.get("waits", 0)
        claims.check(
            f"{mode}: observing adds no wait for the device", more == 0, f"{more} more than {bare.told.get('waits')}; {one.waited[:6]}"
        )

        def replayed(mode: str = mode, one: Ran = one, two: Ran = two) -> None:
            answer = judged(one, two)
            claims.check(f"{mode}: a run equals its repetition", answer["verdict"] == "identical", shown(answer))

        def found(mode: str = mode, one: Ran = one, planted: Ran = planted) -> None:
            answer = judged(one, planted)
            pivot = answer.get("pivot") or {}
            text = (pivot.get("suspect") or {}).get("text") or ""
            if mode == "sentinel":  # says that the state differs, and leaves the place to another mode
                right = any(reason["slug"] == "state-differs" for reason in answer.get("reasons") or [])
            else:
                right = answer["verdict"] == "diverged" and pivot.get("step") == PLANTED_STEP and "add_(planted)" in text
                right &= (pivot.get("operator"), pivot.get("origin")) == ("aten.add_.Tensor", "argument")
            claims.check(f"{mode}: the planted change is found where it is", right, shown(answer))

        claims.guarded(f"{mode}: a run equals its repetition", replayed)
        claims.guarded(f"{mode}: the planted change is found where it is", found)
        claims.guarded(f"{mode}: digests", lambda mode=mode, one=one: look_at_digests(claims, mode, one, options.device, backend))
    if "full" in options.modes:
        twin = ran["full", "twin"]
        claims.check("the fallback ends well", not twin.error, twin.error)

        def same() -> None:
            answer = judged(ran["full", "one"], twin)
            claims.check("compiled kernels and torch operations give the same trace", answer["verdict"] == "identical", shown(answer))
            look_at_digests(claims, "full, fallback", twin, options.device, "torch")
            more = twin.told["waits"] - bare.told["waits"]
            claims.check("the fallback adds no wait for the device", more == 0, f"{more} more; {twin.waited[:6]}")

        claims.guarded("compiled kernels and torch operations give the same trace", same)
        claims.guarded("a boundary is kept in full", lambda: _kept(claims, program, base, options, ran["full", "one"]))


def _kept(claims: Claims, program: Path, base: Path, options: argparse.Namespace, reference: Ran) -> None:
    """Keep one boundary and digest its bytes again."""
    from opguard_core.fingerprint.cpu import digests_of_bytes
    from opguard_core.plan.keeping import Keep, kept_file
    from opguard_core.trace.boundary import keys_of
    from opguard_core.trace.kept import read_kept
    from opguard_core.trace.reader import RankTrace

    trace = RankTrace.open(reference.folder / "rank-00000")
    key = None
    for window in trace.iter_windows():
        wanted = [window.event(at).seq for at in range(len(window)) if window.event(at).operator == "aten.add_.Tensor"]
        found = list(keys_of(trace, 0, window, wanted).values())
        if found and key is None:
            key = found[0]
    assert key is not None, "no aten.add_.Tensor"
    asked = base / "keep.json"
    Keep((key,), 1 << 28).save(asked)
    ran = run(program, base / "kept", options, "full", "--deterministic", "--keep", str(asked))
    if ran.error:
        raise RuntimeError(ran.error)
    kept = read_kept(base / "kept" / "rank-00000" / kept_file(0))
    seen = {
        name: (slot.mix64, f"{digests_of_bytes(kept.slots[name].data).mix64:016x}")
        for name, slot in kept.known.items()
        if name in kept.slots
    }
    claims.check(
        "a boundary is kept in full, and its bytes have the digests of the card", bool(seen) and all(a == b for a, b in seen.values()), seen
    )


if __name__ == "__main__":
    raise SystemExit(main())
