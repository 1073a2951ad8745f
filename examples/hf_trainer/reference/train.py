"""A small Llama built from a config and trained by the Hugging Face Trainer; nothing is downloaded.

Accumulation, gradient checkpointing, dropout, a checkpoint every three steps. `--resume FOLDER` goes on from one of them,
`--workers N` collates in other processes, `--reentrant` checkpoints the other way.
"""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import torch
from collator import Collator
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed


class Sentences(torch.utils.data.Dataset):
    def __init__(self, count=32, vocab=64):
        gen = torch.Generator().manual_seed(182)
        lengths = torch.randint(8, 15, (count,), generator=gen).tolist()
        self.rows = [{"input_ids": torch.randint(1, vocab, (n,), generator=gen).tolist(), "prompt": 2 + n % 3} for n in lengths]

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, index):
        return self.rows[index]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--reentrant", action="store_true")
    options = parser.parse_args()
    set_seed(3)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=32,
        attention_dropout=0.1,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
    )
    model = LlamaForCausalLM(config)
    arguments = TrainingArguments(
        output_dir="out",
        max_steps=6,
        per_device_train_batch_size=2,
        gradient_accumulation_steps=2,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": options.reentrant},
        learning_rate=1e-3,
        warmup_steps=2,
        lr_scheduler_type="cosine",
        logging_steps=1,
        save_steps=3,
        dataloader_num_workers=options.workers,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        use_cpu=True,
        seed=3,
    )
    trainer = Trainer(model=model, args=arguments, train_dataset=Sentences(), data_collator=Collator(longest=13))
    trainer.train(resume_from_checkpoint=options.resume)


if __name__ == "__main__":
    main()
