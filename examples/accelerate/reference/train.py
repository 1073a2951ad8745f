"""A plain loop with accelerate: accumulation, clipping, a scheduler, an optimizer of its own. Runs on one process or several."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from optimizer import LookaheadAdamW
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, WIDTH, LENGTH, UPDATES = 40, 32, 16, 6


class Classifier(nn.Module):
    """A small encoder that says which stride a progression has."""

    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 64, dropout=0.1, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, ids):
        return self.head(self.encoder(self.tokens(ids)).mean(1))


def dataset(count=96):
    generator = torch.Generator().manual_seed(11)
    start = torch.randint(VOCABULARY, (count, 1), generator=generator)
    stride = torch.randint(5, (count, 1), generator=generator)
    return TensorDataset((start + (stride + 1) * torch.arange(LENGTH)) % VOCABULARY, stride[:, 0])


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    set_seed(4)
    model = Classifier()
    optimizer = LookaheadAdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=6)
    loader = DataLoader(dataset(), batch_size=8, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    while optimizer.optimizer.updates < UPDATES:
        for ids, labels in loader:
            with accelerator.accumulate(model):
                loss = F.cross_entropy(model(ids), labels)
                accelerator.backward(loss)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
        accelerator.print(f"loss {accelerator.reduce(loss.detach(), 'mean').item():.6f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
