"""Several Python threads; the first ones take turns, so that even the order of their events is one."""

import _thread
import threading
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import nn

from tests.support.engine_programs.catalogue import program


def alone(target, *args):
    thread = threading.Thread(target=target, args=args)
    thread.start()
    thread.join()


@program
def backward_on_another_thread():
    x = torch.ones(3, requires_grad=True)
    y = x.exp().sum()
    alone(y.backward)

    def train():
        (x * 2).sin().sum().backward()

    alone(train)
    alone(train)
    return x.grad


@program
def workers_in_turn():
    net = nn.Linear(3, 3)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    seen = []

    def forward(number):
        with torch.no_grad() if number % 2 else torch.enable_grad():
            y = net(torch.full((2, 3), float(number)))
            seen.append(y.detach())
            if not number % 2:
                y.sum().backward()

    for number in range(4):
        alone(forward, number)
    optimizer.step()
    with ThreadPoolExecutor(1) as pool:
        seen += list(pool.map(lambda x: x * 2, [torch.ones(2), torch.zeros(2)]))
    return seen, [p.detach() for p in net.parameters()]


@program
def raw_threads():
    done = threading.Event()
    seen = []

    def raw():
        seen.append(torch.ones(2) * 3)
        done.set()

    _thread.start_new_thread(raw, ())
    assert done.wait(30)
    return seen


@program
def futures():
    future, seen = torch.futures.Future(), []
    future.add_done_callback(lambda done: seen.append(done.value() + 1))
    then = future.then(lambda done: done.value() * 2)
    future.set_result(torch.ones(2))
    return then.wait(), seen


@program
def modes_of_one_thread():
    from tests.support.engine_programs.modes import Noting

    seen = []

    def work():
        with Noting() as noting:
            torch.ones(2) + 1
        seen.append(noting.calls)

    with Noting() as noting:
        torch.ones(2) * 2
        alone(work)
    return seen, noting.calls


@program(overlaps=True)
def side_by_side():
    nets = [nn.Linear(4, 4) for _ in range(3)]
    for net in nets:
        net(torch.ones(1, 4))  # models are named in the order of their first calls

    def train(net, number):
        for step in range(20):
            net(torch.full((2, 4), float(number + step))).sum().backward()

    def first():
        train(nets[0], 0)

    def second():
        train(nets[1], 1)

    def third():
        train(nets[2], 2)

    threads = [threading.Thread(target=target) for target in (first, second, third)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [net.weight.grad for net in nets]


@program(overlaps=True, full=True)
def side_by_side_in_a_pool_with_views():
    def work(number):
        x = torch.full((8, 8), float(number))
        for _ in range(50):
            x[::2] += 1
            x = x.t().contiguous()
        return x.sum()

    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(work, range(8)))
