"""What is minimised."""

from torch.nn import functional as F


def weighted_loss(network, piece, weight):
    inputs, targets = piece[:, :-1], piece[:, 1:]
    predictions = network(inputs)
    assert predictions.abs().max() < 1e4  # an observation that the suspect does not make
    flat = predictions.reshape(-1, predictions.shape[-1])
    return F.cross_entropy(flat, targets.reshape(-1)) * weight
