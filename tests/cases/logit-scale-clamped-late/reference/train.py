import torch

from clip import TwoTower

torch.manual_seed(90)
model = TwoTower()
opt = torch.optim.AdamW([
    {"params": [model.image.weight, model.text.weight], "lr": 1e-4},
    {"params": [model.logit_scale], "lr": 0.012, "weight_decay": 0.0},
])
pixels = torch.randn(1, 20) + 0.15 * torch.randn(6, 20)
tokens = pixels + 0.03 * torch.randn(6, 20)
for step in range(5):
    loss = model(pixels, tokens)
    opt.zero_grad()
    loss.backward()
    opt.step()
    model.clamp_scale()
    print(step, f"{loss.item():.9g} {model.logit_scale.item():.9g}")
