"""An autoencoder whose next batch is copied into one device buffer on a stream of its own."""

import argparse

import torch
import torch.nn.functional as F
from torch import nn

LONG, SHORT = 80_000_000, 2_000_000  # cycles of the card: about 40 ms and 1 ms


class Prefetcher:
    """Copies the batches into one buffer, each while the step before is still running."""

    def __init__(self, batches, device):
        self.batches, self.buffer = batches, torch.empty_like(batches[0])
        self.buffer.copy_(batches[0])
        self.stream = torch.cuda.Stream() if device.type == "cuda" else None
        # On a CPU there is no second stream: raw memory is written instead, as late and as unseen.
        self.raw = None if device.type == "cuda" else (self.buffer.numpy(), [batch.numpy() for batch in batches])

    def fetch(self, number, free):
        """Overwrites the buffer once `free` has happened."""
        if self.stream is None:
            self.buffer.copy_(self.batches[number])
            return
        with torch.cuda.stream(self.stream):
            self.stream.wait_event(free)
            torch.cuda._sleep(SHORT)
            self.buffer.copy_(self.batches[number])

    def ready(self):
        if self.stream is not None:
            torch.cuda.current_stream().wait_stream(self.stream)


def train(device, steps):
    """Losses of all steps, one tensor."""
    torch.manual_seed(7)
    encode, decode = nn.Linear(128, 32).to(device), nn.Linear(32, 128).to(device)
    batches = [torch.randn(64, 128).to(device) for _ in range(steps + 1)]
    optimizer = torch.optim.SGD([*encode.parameters(), *decode.parameters()], lr=0.05, foreach=False)
    fetcher, losses = Prefetcher(batches, device), []
    for step in range(steps):
        optimizer.zero_grad()
        code = encode(fetcher.buffer).relu()
        free = torch.cuda.current_stream().record_event() if device.type == "cuda" else None
        if device.type == "cuda":
            torch.cuda._sleep(LONG)  # the work of a larger model
        if fetcher.raw is not None:
            fetcher.raw[0][:] = fetcher.raw[1][step + 1]
        loss = F.mse_loss(decode(code), fetcher.buffer)
        loss.backward()
        fetcher.fetch(step + 1, free)
        optimizer.step()
        losses.append(loss.detach())
        fetcher.ready()
    return torch.stack(losses)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--steps", type=int, default=5)
    options = parser.parse_args()
    print(train(torch.device(options.device), options.steps).tolist())
