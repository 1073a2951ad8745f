"""A communication hook: gradients are averaged as bfloat16 from some step on; what rounding loses is added the next time."""

import torch
import torch.distributed as dist


class FeedbackState:
    def __init__(self, start):
        self.start, self.step, self.lost = start, 0, {}


def bf16_feedback_hook(state, bucket):
    world = dist.get_world_size()
    buffer = bucket.buffer()
    if state.step < state.start:
        buffer.div_(world)
        state.step += bucket.is_last()
        return dist.all_reduce(buffer, async_op=True).get_future().then(lambda future: future.value()[0])
    lost = state.lost.setdefault(bucket.index(), torch.zeros_like(buffer))
    whole = buffer + lost
    small = whole.to(torch.bfloat16)
    torch.sub(whole, small, out=lost)
    small.div_(world)
    state.step += bucket.is_last()

    def widen(future):
        buffer.copy_(future.value()[0])
        return buffer

    return dist.all_reduce(small, async_op=True).get_future().then(widen)
