import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments, set_seed

PROMPTS = [0] * 8 + [4, 5, 2, 0, 3, 6, 1, 0, 5, 5, 2, 4]


def rows():
    g = torch.Generator().manual_seed(17)
    return [{"input_ids": torch.randint(3, 48, (10,), generator=g), "prompt": torch.tensor(p)} for p in PROMPTS]


class CompletionTrainer(Trainer):
    def get_train_dataloader(self):
        return DataLoader(self.train_dataset, batch_size=2, shuffle=False)

    def compute_loss(self, model, inputs, return_outputs=False, num_items_in_batch=None):
        ids, prompt = inputs["input_ids"], inputs["prompt"]
        logits = model(input_ids=ids).logits[:, :-1]
        per_token = F.cross_entropy(logits.transpose(1, 2), ids[:, 1:], reduction="none")
        # label t of the shifted sequence is token t+1: it belongs to the completion if t + 1 >= prompt
        keep = (torch.arange(1, ids.size(1)) >= prompt[:, None]).float()
        return (per_token * keep).sum() / keep.sum()

    def training_step(self, *args, **kwargs):
        loss = super().training_step(*args, **kwargs)
        print(f"step {self.state.global_step} micro loss {loss.item():.7f}")
        return loss


def main():
    set_seed(18)
    model = LlamaForCausalLM(LlamaConfig(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
                                         num_key_value_heads=2, max_position_embeddings=16, attn_implementation="sdpa"))
    args = TrainingArguments("out", gradient_accumulation_steps=2, max_steps=5, learning_rate=3e-3, use_cpu=True, seed=18, report_to=[],
                             save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, max_grad_norm=0.5)
    CompletionTrainer(model, args, train_dataset=rows()).train()


if __name__ == "__main__":
    main()
