"""Side of Hugging Face: its own Llama, with the weights of `setting`."""

import torch
from setting import EPS, HEADS, INNER, KEY_HEADS, LAYERS, THETA, VOCABULARY, WIDTH, train, weight
from transformers.models.llama.configuration_llama import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaForCausalLM


def main():
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=KEY_HEADS,
        rms_norm_eps=EPS,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        attn_implementation="eager",
        use_cache=False,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config).train()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(weight(meaning(name), parameter.shape))
    train(model, model.parameters(), lambda model, tokens: model(input_ids=tokens, labels=tokens).loss)


def meaning(name):
    name = name.removeprefix("model.").removesuffix(".weight").replace("self_attn.", "").replace("mlp.", "")
    return name.replace("input_layernorm", "first_norm").replace("post_attention_layernorm", "second_norm")


if __name__ == "__main__":
    main()
