"""The same training after a clean-up: the parts are functions, a callback prints the losses."""

import argparse
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

from collator import Collator
from data import Sentences
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainerCallback, TrainingArguments, set_seed


class Losses(TrainerCallback):
    def on_log(self, args, state, control, logs=None, **_):
        if "loss" in logs:
            print(f"step {state.global_step} of {state.max_steps}: loss {logs['loss']}")


def build_model(vocabulary: int = 64, width: int = 32) -> LlamaForCausalLM:
    shape = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 32}
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlamaConfig(vocab_size=vocabulary, hidden_size=width, intermediate_size=2 * width, attention_dropout=0.1, **shape, **special)
    return LlamaForCausalLM(config)


def training_arguments(options: argparse.Namespace) -> TrainingArguments:
    schedule = {"learning_rate": 1e-3, "warmup_steps": 2, "lr_scheduler_type": "cosine", "max_steps": 6}
    batches = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2, "dataloader_num_workers": options.workers}
    return TrainingArguments(
        output_dir="out",
        seed=3,
        use_cpu=True,
        gradient_checkpointing=True,
        gradient_checkpointing_kwargs={"use_reentrant": options.reentrant},
        logging_steps=1,
        save_steps=3,
        remove_unused_columns=False,
        report_to=[],
        disable_tqdm=True,
        **schedule,
        **batches,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--resume")
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--reentrant", action="store_true")
    options = parser.parse_args()
    set_seed(3)
    trainer = Trainer(
        model=build_model(),
        args=training_arguments(options),
        train_dataset=Sentences(),
        data_collator=Collator(longest=13),
        callbacks=[Losses()],
    )
    trainer.train(resume_from_checkpoint=options.resume)


if __name__ == "__main__":
    main()
