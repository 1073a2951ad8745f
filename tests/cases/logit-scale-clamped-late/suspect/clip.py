import torch
import torch.nn as nn
import torch.nn.functional as F

MAX_SCALE = 100


class TwoTower(nn.Module):
    def __init__(self):
        super().__init__()
        self.image = nn.Linear(20, 16, bias=False)
        self.text = nn.Linear(20, 16, bias=False)
        self.text.load_state_dict(self.image.state_dict())
        self.logit_scale = nn.Parameter(torch.tensor(4.58))

    def encode(self, pixels, tokens):
        return F.normalize(self.image(pixels), dim=-1), F.normalize(self.text(tokens), dim=-1)

    def forward(self, pixels, tokens):
        a, b = self.encode(pixels, tokens)
        logits = self.logit_scale.exp() * a @ b.t()
        target = torch.arange(len(a))
        return (F.cross_entropy(logits, target) + F.cross_entropy(logits.t(), target)) / 2

    def clamp_scale(self):
        with torch.no_grad():
            self.logit_scale.clamp_(0, MAX_SCALE)
