"""Twenty steps of a small network on a card with a weak cell."""

import argparse
import ctypes

import torch
from torch import nn


def flip_bit(tensor, element, bit):
    """What a faulty memory does: one bit is another, and no operator has written it."""
    address = tensor.untyped_storage().data_ptr() + 4 * element + bit // 8
    byte = ctypes.c_ubyte()
    if tensor.is_cuda:
        driver = ctypes.CDLL("libcuda.so.1")
        assert driver.cuMemcpyDtoH_v2(ctypes.byref(byte), ctypes.c_uint64(address), ctypes.c_size_t(1)) == 0
        byte.value ^= 1 << bit % 8
        assert driver.cuMemcpyHtoD_v2(ctypes.c_uint64(address), ctypes.byref(byte), ctypes.c_size_t(1)) == 0
    else:
        ctypes.c_ubyte.from_address(address).value ^= 1 << bit % 8


parser = argparse.ArgumentParser()
parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
options = parser.parse_args()
torch.manual_seed(13)
model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.LayerNorm(128), nn.Linear(128, 64)).to(options.device)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
for step in range(20):
    batch = torch.randn(32, 64).to(options.device)
    optimizer.zero_grad()
    loss = (model(batch) - batch).pow(2).mean()
    loss.backward()
    if step == 7:
        flip_bit(model[3].weight.grad, 1234, 21)
    optimizer.step()
    print(step, loss.item())
