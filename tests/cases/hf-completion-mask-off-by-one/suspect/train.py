from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments, set_seed

from sft.data import Conversations
from sft.trainer import SFTTrainer

set_seed(18)
config = LlamaConfig(vocab_size=48, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
                     max_position_embeddings=16, attn_implementation="sdpa")
model = LlamaForCausalLM(config)
args = TrainingArguments(output_dir="out", gradient_accumulation_steps=2, max_steps=5, learning_rate=3e-3, use_cpu=True, seed=18, report_to=[],
                         save_strategy="no", logging_strategy="no", disable_tqdm=True, remove_unused_columns=False, max_grad_norm=0.5)
SFTTrainer(model=model, args=args, train_dataset=Conversations()).train()
