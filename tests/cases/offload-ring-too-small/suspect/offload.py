import torch
from torch.autograd.graph import saved_tensors_hooks


class Ring:
    """Preallocated host slots for tensors of one shape."""

    def __init__(self, like, slots):
        self.storage = [torch.empty(like.shape, dtype=like.dtype) for _ in range(slots)]
        self.next = 0

    def put(self, tensor):
        index = self.next % len(self.storage)
        self.storage[index].copy_(tensor)
        self.next += 1
        return index


class ActivationOffload:
    def __init__(self, slots=40):
        self.slots, self.rings = slots, {}

    def pack(self, tensor):
        if tensor.is_leaf:
            return tensor
        key = (tuple(tensor.shape), tensor.dtype)
        if key not in self.rings:
            self.rings[key] = Ring(tensor, self.slots)
        return key, self.rings[key].put(tensor.detach())

    def unpack(self, saved):
        if isinstance(saved, torch.Tensor):
            return saved
        key, index = saved
        return self.rings[key].storage[index].clone()

    def __call__(self):
        for ring in self.rings.values():
            ring.next = 0
        return saved_tensors_hooks(self.pack, self.unpack)
