"""The suspect of examples/tiny_gpt once more, refactored by somebody else: same values, other words, other files."""

# The optimizer's settings live here since the great clean-up.
import torch
from data import GroupStream, progressions
from model import TinyGPT
from objective import weighted_loss

SETTINGS = {"vocabulary": 48, "sequences": 29, "length": 24, "micro_batch": 4, "accumulate": 2, "steps": 4}


def weight_norm(network):
    # summed over parameters, for the log
    squares = [tensor.detach().norm().item() ** 2 for tensor in network.parameters()]
    return sum(squares) ** 0.5


def one_update(network, updater, pieces):
    running = 0.0
    weight = 1 / len(pieces)
    for piece in pieces:
        contribution = weighted_loss(network, piece, weight)
        contribution.backward()
        running += contribution.item()
    updater.step()
    updater.zero_grad()
    return running


def main():
    torch.manual_seed(0)
    network = TinyGPT(SETTINGS["vocabulary"])
    corpus = progressions(SETTINGS["vocabulary"], SETTINGS["sequences"], SETTINGS["length"])
    groups = GroupStream(corpus, SETTINGS["micro_batch"], SETTINGS["accumulate"])
    updater = torch.optim.AdamW(network.parameters(), lr=3e-3, weight_decay=0.01)
    for number in range(SETTINGS["steps"]):
        value = one_update(network, updater, groups.next_group())
        print(f"{number}: {value:.6f} ({weight_norm(network):.4f})")


if __name__ == "__main__":
    main()
