"""A LightningModule under a Trainer: accumulation, clipping, validation, a progress bar, averaged weights in a callback."""

import warnings

import lightning
import torch
from averaging import WeightAverage
from model import TinyGPT
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

VOCABULARY, LENGTH = 48, 16


class LanguageModel(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.model = TinyGPT(VOCABULARY, width=32, depth=2, length=LENGTH)

    def loss_of(self, batch):
        (tokens,) = batch
        logits = self.model(tokens[:, :-1])
        return F.cross_entropy(logits.reshape(-1, VOCABULARY), tokens[:, 1:].reshape(-1))

    def training_step(self, batch, batch_index):
        loss = self.loss_of(batch)
        self.log("loss", loss, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_index):
        self.log("validation loss", self.loss_of(batch), prog_bar=True)

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "interval": "step"}}


def progressions(count, seed):
    generator = torch.Generator().manual_seed(seed)
    start = torch.randint(VOCABULARY, (count, 1), generator=generator)
    stride = torch.randint(1, 6, (count, 1), generator=generator)
    return TensorDataset((start + stride * torch.arange(LENGTH + 1)) % VOCABULARY)


def main():
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(5)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=6,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=4,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[WeightAverage(decay=0.9, start=3)],
    )
    training = DataLoader(progressions(32, seed=7), batch_size=4, shuffle=True)
    trainer.fit(LanguageModel(), training, DataLoader(progressions(8, seed=8), batch_size=4))
    print(f"loss {trainer.callback_metrics['validation loss'].item():.6f}")


if __name__ == "__main__":
    main()
