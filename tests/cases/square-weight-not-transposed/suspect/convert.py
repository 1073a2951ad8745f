import re

import torch

RENAMES = [(r"^h(\d+)/(?:attn|mlp)/(\w+)$", r"h.\1.\2.weight"), (r"^(embed|head)$", r"\1.weight")]


def target_name(name):
    for pattern, replacement in RENAMES:
        if re.match(pattern, name):
            return re.sub(pattern, replacement, name)
    raise KeyError(name)


@torch.no_grad()
def import_weights(model, stored):
    """Copies stored tensors into the model; turns those that do not fit."""
    own = dict(model.named_parameters())
    for name, value in stored.items():
        param = own.pop(target_name(name))
        if value.shape != param.shape:
            value = value.t()
        param.copy_(value)
    assert not own, sorted(own)
