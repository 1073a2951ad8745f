import torch
import torch.nn as nn


class Recorder:
    """Keeps the outputs of some layers during a forward pass."""

    def __init__(self, layers):
        self.layers = layers
        self.outputs = []
        self.active = True

    def hook(self, module, inputs, output):
        if self.active:
            self.outputs.append(output)

    def attach(self):
        self.active = True
        for layer in self.layers:
            layer.register_forward_hook(self.hook)

    def detach(self):
        self.active = False

    def penalty(self):
        total = sum(o.abs().mean() for o in self.outputs)
        self.outputs.clear()
        return total
