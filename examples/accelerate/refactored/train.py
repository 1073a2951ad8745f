"""The same training after a clean-up: model and data in modules, the loop in a function, a line of log for each update."""

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from data import progressions
from model import Classifier
from optimizer import LookaheadAdamW
from torch.nn import functional as F
from torch.utils.data import DataLoader

UPDATES, ACCUMULATE = 6, 2


def forever(loader):
    while True:
        yield from loader


def train(accelerator, model, optimizer, scheduler, batches):
    """Updates until there were enough; yields the loss of the last micro-batch of each."""
    done = 0
    while done < UPDATES:
        ids, labels = next(batches)
        with accelerator.accumulate(model):
            logits = model(ids)
            loss = F.cross_entropy(logits, labels)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), max_norm=1.0)
                done += 1
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            yield loss.item(), float(norm)


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATE)
    set_seed(4)
    model = Classifier(vocabulary=40, width=32, classes=5)
    optimizer = LookaheadAdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.1, total_iters=6)
    loader = DataLoader(progressions(40, 16, classes=5), batch_size=8, shuffle=True)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, loader, scheduler)
    model.train()
    for loss, norm in train(accelerator, model, optimizer, scheduler, forever(loader)):
        accelerator.print(f"loss {loss:.6f} gradient norm {norm:.4f}")
    accelerator.end_training()


if __name__ == "__main__":
    main()
