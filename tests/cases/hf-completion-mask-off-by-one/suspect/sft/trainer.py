from torch.utils.data import DataLoader
from transformers import Trainer

from .losses import completion_loss


class SFTTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=2, shuffle=False)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        outputs = model(input_ids=inputs["input_ids"])
        loss = completion_loss(outputs.logits, inputs["input_ids"], inputs["prompt"])
        return (loss, outputs) if return_outputs else loss

    def training_step(self, model, inputs, num_items_in_batch=None):
        loss = super().training_step(model, inputs, num_items_in_batch)
        print(f"step {self.state.global_step} micro loss {loss.item():.7f}")
        return loss
