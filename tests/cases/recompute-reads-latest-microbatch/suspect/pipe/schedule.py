class GPipe:
    """All forwards of the window, then all backwards, oldest first."""

    def __init__(self, stage, loss_fn):
        self.stage, self.loss_fn = stage, loss_fn

    def run(self, micro_batches):
        self.stage.begin([m["hidden"] for m in micro_batches])
        losses = []
        for index, m in enumerate(micro_batches):
            self.stage.select(index)
            losses.append(self.loss_fn(self.stage(m["ids"]), m["ids"]) / len(micro_batches))
        for loss in losses:
            loss.backward()
        return sum(l.item() for l in losses)
