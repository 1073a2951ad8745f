"""Says nothing, and draws without a seed inside C++ operators: initialisation, dropout of a recurrent layer, attention."""

import sys

import torch
from torch import nn

what = sys.argv[1]
if what in ("dropout", "attention"):
    torch.manual_seed(13)
if what == "unused":
    layer = nn.Linear(4, 4)
    sys.exit()
rnn = nn.LSTM(4, 6, num_layers=2, dropout=0.5 if what == "dropout" else 0.0, batch_first=True)
if what in ("dropout", "attention"):
    torch.seed()
x = torch.ones(2, 3, 4)
optimizer = torch.optim.SGD(rnn.parameters(), lr=0.1)
for _ in range(2):
    y = rnn(x)[0]
    if what == "attention":
        y = nn.functional.scaled_dot_product_attention(y[:, None], y[:, None], y[:, None], dropout_p=0.3)
    loss = y.pow(2).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
