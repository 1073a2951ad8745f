import io

import torch


class Sampler:
    """Shuffled rows without replacement; can be put back where it was."""

    def __init__(self, n, size, gen):
        self.n, self.size, self.gen, self.at, self.order = n, size, gen, 0, None

    def next(self):
        if self.at % (self.n // self.size) == 0:
            self.order = torch.randperm(self.n, generator=self.gen)
        begin = self.at % (self.n // self.size) * self.size
        self.at += 1
        return self.order[begin: begin + self.size]

    def state_dict(self):
        return {"at": self.at, "order": self.order, "gen": self.gen.get_state()}

    def load_state_dict(self, state):
        self.at, self.order = state["at"], state["order"]
        self.gen.set_state(state["gen"])


def dump(parts):
    blob = io.BytesIO()
    torch.save({"rng": torch.get_rng_state(), **{k: p.state_dict() for k, p in parts.items()}}, blob)
    return blob.getvalue()


def restore(blob, parts):
    state = torch.load(io.BytesIO(blob), weights_only=True)
    for name, part in parts.items():
        part.load_state_dict(state[name])
    torch.set_rng_state(state["rng"])
