import os
import tempfile

import torch
from session import Session


def main():
    gen = torch.Generator().manual_seed(52)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "last.pt")
        first = Session()
        first.train(gen, 3)
        first.save(path)
        Session.resume(path).train(gen, 4)


main()
