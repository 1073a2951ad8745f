import torch
import torch.nn as nn
import torch.nn.functional as F
from accelerate import Accelerator
from torch.utils.data import DataLoader, TensorDataset


def dataset():
    gen = torch.Generator().manual_seed(312)
    return TensorDataset(torch.randn(48, 12, generator=gen), torch.randint(0, 4, (48,), generator=gen))


def main():
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    torch.manual_seed(311)
    model = nn.Sequential(nn.Linear(12, 32), nn.Mish(), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.25, total_iters=4)
    model, optimizer, loader, scheduler = accelerator.prepare(model, optimizer, DataLoader(dataset(), batch_size=4), scheduler)
    step, losses = 0, []
    for inputs, targets in loader:
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(inputs), targets)
            accelerator.backward(loss)
            losses.append(loss.item() / 2)
            if accelerator.sync_gradients:
                norm = accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            scheduler.step()
            optimizer.zero_grad()
        if accelerator.sync_gradients:
            accelerator.print(f"step {step} loss {sum(losses):.7f} norm {norm.item():.4f} lr {scheduler.get_last_lr()[0]:.2e}")
            step, losses = step + 1, []


if __name__ == "__main__":
    main()
