"""A GPT training as instructions: forward, backward, optimizer and state phases of repeated layers, in ATen's words."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.support.gpt_updates import TRAIN, Parameters, backward, fused_update, reduce_gradients, single_updates, state_boundary
from tests.support.instructions import Instruction, Out, Program, Site

MODEL, TORCH = "model.py", "torch/nn/modules"


@dataclass(frozen=True)
class GptShape:
    """Size and habits of the made-up training.

    Attributes:
        layers, width, tokens, vocabulary: Model size.
        steps: Optimizer steps.
        microbatches: Backward calls per step.
        dropout: Whether operators consume random numbers.
        optimizer: "single" (a few operators per parameter), "fused" (one operator with list arguments).
        loader_thread: Whether a second thread prepares batches.
        world_size: With more than one rank, gradients are reduced by collectives.
    """

    layers: int = 2
    width: int = 64
    tokens: int = 32
    vocabulary: int = 256
    steps: int = 3
    microbatches: int = 1
    dropout: bool = True
    optimizer: str = "single"
    loader_thread: bool = False
    world_size: int = 1


def gpt(shape: GptShape = GptShape()) -> Program:
    """Build the program; about 90 instructions a layer and step with the "single" optimizer."""
    builder = _Builder(shape)
    prologue = builder.prologue()
    return Program(tuple(prologue), tuple(builder.body()), tuple(builder.epilogue()), shape.steps)


@dataclass
class _Builder:
    shape: GptShape
    parameters: Parameters = field(default_factory=dict)
    tape: list[Instruction] = field(default_factory=list)

    def __post_init__(self) -> None:
        c, v = self.shape.width, self.shape.vocabulary
        self.parameters["embed.weight"] = (v, c)
        for layer in range(self.shape.layers):
            at = f"blocks.{layer}"
            self.parameters |= {f"{at}.ln1.weight": (c,), f"{at}.attn.qkv.weight": (3 * c, c), f"{at}.attn.qkv.bias": (3 * c,)}
            self.parameters |= {f"{at}.attn.proj.weight": (c, c), f"{at}.ln2.weight": (c,)}
            self.parameters |= {f"{at}.mlp.up.weight": (4 * c, c), f"{at}.mlp.down.weight": (c, 4 * c)}
        self.parameters |= {"ln.weight": (c,), "head.weight": (v, c)}

    def prologue(self) -> list[Instruction]:
        site = Site(MODEL, "GPT.reset_parameters", 12, "nn.init.normal_(weight, std=0.02)")
        out = [_marker("opguard.run.begin")]
        for name, size in self.parameters.items():
            out.append(
                Instruction(
                    "aten.normal_.default",
                    outs=(Out(f"p:{name}", size, name=name),),
                    site=site,
                    calls=(Site(TRAIN, "<module>", 8, "model = GPT()"),),
                    args="(0x0.0p+0, 0x1.47ae147ae147bp-6)",
                    rng="cpu",
                    phase="data",
                    role="init",
                )
            )
        out += [
            Instruction(
                "aten.zeros_like.default",
                (f"p:{name}",),
                (Out(f"{state}:{name}", size, name=name),),
                site=Site(TRAIN, "<module>", 9, "optimizer = AdamW(model.parameters())"),
                phase="data",
                role="init",
            )
            for name, size in self.parameters.items()
            for state in ("exp_avg", "exp_avg_sq")
        ]
        out.append(_marker("opguard.optimizer.init", args="AdamW"))
        return out

    def body(self) -> list[Instruction]:
        out: list[Instruction] = []
        for microbatch in range(self.shape.microbatches):
            out += self._data(microbatch)
            out.append(_marker("opguard.forward.begin", phase="forward"))
            forward = self._forward(microbatch)
            out += forward
            out.append(self._loss_read(microbatch))
            out.append(_marker("opguard.backward.begin", phase="backward"))
            out += backward(forward, self.parameters, microbatch)
            last = microbatch == self.shape.microbatches - 1
            out.append(_marker("opguard.backward.end", phase="backward", ends_microbatch=not last))
        if self.shape.world_size > 1:
            out += reduce_gradients(self.parameters)
        out.append(_marker("opguard.optimizer.begin", phase="optimizer"))
        out += fused_update(self.parameters) if self.shape.optimizer == "fused" else single_updates(self.parameters)
        out.append(_marker("opguard.optimizer.end", phase="optimizer", args="AdamW"))
        out.append(state_boundary(self.parameters))
        return out

    def epilogue(self) -> list[Instruction]:
        return [_marker("opguard.run.end", args="exit")]

    def _data(self, microbatch: int) -> list[Instruction]:
        site = Site(TRAIN, "main", 20, "x, y = next(batches)")
        size = (1, self.shape.tokens)
        thread = "Thread:Loader.run" if self.shape.loader_thread else "main"
        batch = Instruction(
            "aten.stack.default",
            (),
            (Out("tokens", size, "int64"),),
            site=Site("loader.py", "Loader.run", 31, "torch.stack(rows)") if self.shape.loader_thread else site,
            args=f"({microbatch})",
            phase="data",
            role="data",
            thread=thread,
        )
        return [
            _marker("opguard.data.fetch", phase="data"),
            batch,
            Instruction(
                "aten.slice.Tensor",
                ("tokens",),
                (Out("targets", size, "int64"),),
                site=site,
                args=f"({microbatch})",
                phase="data",
                role="data",
            ),
        ]

    def _forward(self, microbatch: int) -> list[Instruction]:
        t, c, v = self.shape.tokens, self.shape.width, self.shape.vocabulary
        self.tape = []
        self._op(
            "aten.embedding.default", ("p:embed.weight", "tokens"), (Out("h", (1, t, c)),), "embed", 40, "self.embed(tokens)", "sparse.py"
        )
        for layer in range(self.shape.layers):
            self._layer(f"blocks.{layer}", f"p:blocks.{layer}")
        self._op(
            "aten.native_layer_norm.default",
            ("h", "p:ln.weight"),
            (Out("f", (1, t, c)), Out("f.mean", (1, t, 1)), Out("f.rstd", (1, t, 1))),
            "ln",
            44,
            "self.ln(h)",
            "normalization.py",
        )
        self._op("aten.mm.default", ("f", "p:head.weight"), (Out("logits", (t, v)),), "head", 45, "self.head(h)", "linear.py")
        self._op("aten._log_softmax.default", ("logits",), (Out("logp", (t, v)),), "", 46, "F.cross_entropy(logits, targets)", "loss.py")
        self._op(
            "aten.nll_loss_forward.default",
            ("logp", "targets"),
            (Out("loss", ()), Out("weight_sum", ())),
            "",
            46,
            "F.cross_entropy(logits, targets)",
            "loss.py",
        )
        del microbatch
        return self.tape

    def _layer(self, at: str, p: str) -> None:
        t, c = self.shape.tokens, self.shape.width
        hidden, norm = (1, t, c), (1, t, 1)

        def ln(which: str, line: int) -> None:
            outs = (Out(f"{at}.n", hidden), Out(f"{at}.{which}.mean", norm), Out(f"{at}.{which}.rstd", norm))
            self._op(
                "aten.native_layer_norm.default",
                ("h", f"{p}.{which}.weight"),
                outs,
                f"{at}.{which}",
                line,
                f"self.{which}(h)",
                "normalization.py",
            )

        ln("ln1", 22)
        self._op(
            "aten.addmm.default",
            (f"{p}.attn.qkv.bias", f"{at}.n", f"{p}.attn.qkv.weight"),
            (Out(f"{at}.qkv", (t, 3 * c)),),
            f"{at}.attn.qkv",
            25,
            "self.qkv(x)",
            "linear.py",
        )
        self._op(
            "aten.transpose.int", (f"{at}.qkv",), (Out(f"{at}.q", (3 * c, t), effect="transpose"),), f"{at}.attn", 26, "qkv.transpose(0, 1)"
        )
        self._op(
            "aten.clone.default",
            (f"{at}.q",),
            (Out(f"{at}.qc", (3 * c, t), effect="keep"),),
            f"{at}.attn",
            27,
            "q.contiguous()",
            neutral=True,
        )
        self._op(
            "aten._scaled_dot_product_flash_attention_for_cpu.default",
            (f"{at}.qc",),
            (Out(f"{at}.a", hidden), Out(f"{at}.lse", (1, 4, t))),
            f"{at}.attn",
            28,
            "F.scaled_dot_product_attention(q, k, v)",
            args="(is_causal=True)",
        )
        self._op(
            "aten.mm.default",
            (f"{at}.a", f"{p}.attn.proj.weight"),
            (Out(f"{at}.o", (t, c)),),
            f"{at}.attn.proj",
            29,
            "self.proj(y)",
            "linear.py",
        )
        if self.shape.dropout:
            self._op(
                "aten.native_dropout.default",
                (f"{at}.o",),
                (Out(f"{at}.o", hidden), Out(f"{at}.mask", hidden, "bool")),
                f"{at}.attn",
                30,
                "self.drop(y)",
                "dropout.py",
                args="(0x1.999999999999ap-4, True)",
                rng="cpu",
            )
        self._op("aten.add.Tensor", ("h", f"{at}.o"), (Out("h", hidden),), at, 33, "h + self.attn(self.ln1(h))", args="(1)")
        self._op("aten.mean.default", ("h",), (Out(f"{at}.seen", ()),), at, 34, "log(h.mean())", log=True)
        ln("ln2", 35)
        self._op(
            "aten._to_copy.default",
            (f"{at}.n",),
            (Out(f"{at}.n16", hidden, "bfloat16", "cast"),),
            f"{at}.mlp",
            36,
            "x.bfloat16()",
            args="(dtype=torch.bfloat16)",
        )
        self._op(
            "aten.mm.default",
            (f"{at}.n16", f"{p}.mlp.up.weight"),
            (Out(f"{at}.u", (t, 4 * c), "bfloat16"),),
            f"{at}.mlp.up",
            37,
            "self.up(x)",
            "linear.py",
        )
        self._op("aten.gelu.default", (f"{at}.u",), (Out(f"{at}.g", (t, 4 * c), "bfloat16"),), f"{at}.mlp", 38, "F.gelu(self.up(x))")
        self._op(
            "aten.mm.default",
            (f"{at}.g", f"{p}.mlp.down.weight"),
            (Out(f"{at}.d", (t, c)),),
            f"{at}.mlp.down",
            39,
            "self.down(x)",
            "linear.py",
        )
        self._op("aten.add.Tensor", ("h", f"{at}.d"), (Out("h", hidden),), at, 41, "h + self.mlp(self.ln2(h))", args="(1)")

    def _op(
        self,
        operator: str,
        reads: tuple[str, ...],
        outs: tuple[Out, ...],
        module: str,
        line: int,
        text: str,
        library: str = "",
        *,
        args: str = "",
        rng: str = "",
        neutral: bool = False,
        log: bool = False,
    ) -> None:
        """Append one forward instruction to the tape."""
        owner = {"attn": "Attention", "mlp": "Mlp"}.get(module.rsplit(".", 1)[-1], "Block" if module.startswith("blocks") else "GPT")
        self.tape.append(
            Instruction(
                operator,
                reads,
                outs,
                site=Site(MODEL, f"{owner}.forward", line, text),
                calls=(Site(TRAIN, "main", 22, "loss = model(x, y)"),),
                library=Site(f"{TORCH}/{library}", "forward", 120, "F.apply(input)", "torch") if library else None,
                module=module,
                args=args,
                rng=rng,
                key=f"f{len(self.tape)}",
                role="neutral" if neutral else "log" if log else "compute",
            )
        )

    def _loss_read(self, microbatch: int) -> Instruction:
        del microbatch
        site = Site(TRAIN, "main", 23, "losses.append(loss.item())")
        return Instruction("aten._local_scalar_dense.default", ("loss",), site=site, kind="read", role="read")


def _marker(operator: str, *, phase: str = "data", args: str = "", ends_microbatch: bool = False) -> Instruction:
    return Instruction(operator, kind="marker", phase=phase, args=args, ends_microbatch=ends_microbatch, role="marker")
