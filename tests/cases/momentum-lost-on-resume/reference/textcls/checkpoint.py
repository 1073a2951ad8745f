import io

import torch


def save(model, optimizer):
    blob = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, blob)
    return blob.getvalue()


def load(data, model, optimizer):
    state = torch.load(io.BytesIO(data), weights_only=True)
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
