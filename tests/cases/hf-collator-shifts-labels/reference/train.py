import torch
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from corpus import Rows


def collate(rows):
    width = max(len(r["input_ids"]) for r in rows)
    ids = torch.tensor([r["input_ids"] + [0] * (width - len(r["input_ids"])) for r in rows])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "labels": ids.masked_fill(ids == 0, -100)}


class Run(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.7f}")
        return loss


def main():
    set_seed(7)
    config = LlamaConfig(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                         attn_implementation="eager")
    args = TrainingArguments("out", per_device_train_batch_size=5, max_steps=4, learning_rate=2e-3, use_cpu=True, seed=7, report_to=[],
                             save_strategy="no", logging_strategy="no", disable_tqdm=True, dataloader_pin_memory=False)
    Run(LlamaForCausalLM(config), args, data_collator=collate, train_dataset=Rows()).train()


if __name__ == "__main__":
    main()
