import torch
import torch.nn as nn
import torch.nn.functional as F


def net(*sizes):
    layers = []
    for a, b in zip(sizes, sizes[1:]):
        layers += [nn.Linear(a, b), nn.LeakyReLU(0.2)]
    return nn.Sequential(*layers[:-1])


class GAN(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = net(4, 16, 2)
        self.critic = net(2, 16, 1)

    def d_loss(self, real, z):
        with torch.no_grad():
            fake = self.generator(z)
        on_fake = self.critic(fake)
        on_real = self.critic(real)
        return (F.binary_cross_entropy_with_logits(on_fake, torch.zeros_like(on_fake))
                + F.binary_cross_entropy_with_logits(on_real, torch.ones_like(on_real)))

    def g_loss(self, z):
        score = self.critic(self.generator(z))
        return F.binary_cross_entropy_with_logits(score, torch.ones_like(score))
