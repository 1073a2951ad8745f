"""A small Llama built from a config and trained by the Hugging Face Trainer; nothing is downloaded."""

import os
import sys
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from collator import Collator
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count=24, vocab=64):
        gen = torch.Generator().manual_seed(5)
        lengths = torch.randint(6, 14, (count,), generator=gen).tolist()
        self.rows = [{"input_ids": torch.randint(1, vocab, (n,), generator=gen).tolist()} for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def main():
    set_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    with tempfile.TemporaryDirectory() as out:
        arguments = TrainingArguments(
            output_dir=out,
            max_steps=4,
            per_device_train_batch_size=2,
            gradient_accumulation_steps=2,
            learning_rate=1e-3,
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            disable_tqdm=True,
            use_cpu=True,
            seed=3,
        )
        result = Trainer(model=model, args=arguments, train_dataset=Sentences(), data_collator=Collator()).train()
    print(f"loss {result.training_loss:.8f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
