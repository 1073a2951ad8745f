import torch

NO_DECAY = ("bias", "LayerNorm.weight")


def build(model, lr, wd, betas):
    decay, rest = [], []
    for name, p in model.named_parameters():
        (rest if any(key in name for key in NO_DECAY) else decay).append(p)
    groups = [{"params": decay, "weight_decay": wd}, {"params": rest, "weight_decay": 0.0}]
    opt = torch.optim.AdamW(groups, lr=lr, betas=betas)
    return opt, torch.optim.lr_scheduler.LinearLR(opt, 0.25, 1.0, total_iters=4)
