"""The same training after a clean-up: a data module, no sanity check, accuracy is logged as well."""

import warnings

import lightning
import torch
from averaging import WeightAverage
from data import Progressions
from model import TinyGPT
from torch.nn import functional as F


class LanguageModel(lightning.LightningModule):
    def __init__(self, vocabulary: int, length: int) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.network = TinyGPT(vocabulary, width=32, depth=2, length=length)

    def forward(self, tokens):
        return self.network(tokens)

    def evaluate(self, batch):
        inputs, targets = batch[0][:, :-1], batch[0][:, 1:]
        logits = self(inputs)
        loss = F.cross_entropy(logits.flatten(0, 1), targets.flatten())
        accuracy = (logits.detach().argmax(-1) == targets).float().mean()
        return loss, accuracy

    def training_step(self, batch, batch_index):
        loss, accuracy = self.evaluate(batch)
        self.log_dict({"loss": loss, "accuracy": accuracy}, prog_bar=True)
        return loss

    def validation_step(self, batch, batch_index):
        loss, accuracy = self.evaluate(batch)
        self.log_dict({"validation loss": loss, "validation accuracy": accuracy})

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.network.parameters(), lr=3e-3)
        return [optimizer], [{"scheduler": torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=6), "interval": "step"}]


def main():
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    lightning.seed_everything(5)
    data = Progressions(vocabulary=48, length=16)
    model = LanguageModel(vocabulary=48, length=16)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_steps=6,
        accumulate_grad_batches=2,
        gradient_clip_val=1.0,
        val_check_interval=4,
        num_sanity_val_steps=0,
        log_every_n_steps=1,
        logger=False,
        enable_checkpointing=False,
        callbacks=[WeightAverage(decay=0.9, start=3)],
    )
    trainer.fit(model, datamodule=data)


if __name__ == "__main__":
    main()
