import argparse

from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

from collator import NextTokenCollator
from corpus import Rows

SIZES = dict(vocab_size=64, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)


class LoggedTrainer(Trainer):
    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} loss {loss.item():.7f}")
        return loss


def build(seed):
    set_seed(seed)
    return LlamaForCausalLM(LlamaConfig(**SIZES, max_position_embeddings=32, pad_token_id=0, bos_token_id=1, eos_token_id=2,
                                        attn_implementation="eager"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--steps", type=int, default=4)
    opts = parser.parse_args()
    model = build(7)
    args = TrainingArguments(output_dir="out", per_device_train_batch_size=5, max_steps=opts.steps, learning_rate=opts.lr, use_cpu=True,
                             seed=7, report_to=[], save_strategy="no", logging_strategy="no", disable_tqdm=True,
                             dataloader_pin_memory=False)
    trainer = LoggedTrainer(model=model, args=args, data_collator=NextTokenCollator(), train_dataset=Rows())
    trainer.train()


if __name__ == "__main__":
    main()
