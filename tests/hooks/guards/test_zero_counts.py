"""Modules that die while small nets train, and zeros that are as they should be: each net says which of its parts."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from guardrun.hooks.guards.blank_batches import LOOKS, BlankBatches
from guardrun.hooks.guards.module_lives import DEAD
from guardrun.hooks.guards.zero_counts import ZeroCounts
from tests.hooks.guards.deep_rank import DeepRank, looked_into

EVERY = 2
FALLS_AT, LONG = 10 * EVERY, (DEAD + 4) * EVERY
SIZE = 16


class Watched(DeepRank):
    """Its modules and batches are looked at at every second step."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.rank.origin._zeros = ZeroCounts(self.rank, torch, EVERY)
        self.rank.origin._blank = BlankBatches(self.rank, torch, EVERY)

    def train(
        self, net: Any, batch: Callable[[int], Any], steps: int, loss: Callable[[Any], Any] | None = None
    ) -> None:
        """Take steps. batch: the input of a step; loss: of what the net gives out."""
        optimizer = self.torch.optim.SGD(net.parameters(), 1e-3)
        for step in self.steps(steps):
            (loss or (lambda out: out.square().mean()))(net(batch(step))).backward()
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)


@pytest.fixture
def watched() -> Iterator[Watched]:
    import torch

    one = Watched(torch)
    with looked_into(one, seed=5):
        yield one


def noise(step: int) -> Any:
    import torch

    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(step))


def linear() -> Any:
    import torch

    return torch.nn.Linear(SIZE, SIZE)


# What dies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("inplace", [False, True])
def test_a_relu_that_dies_is_named(watched: Watched, inplace: bool) -> None:
    torch = watched.torch
    net = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear(), torch.nn.ReLU(inplace), linear())
    watched.train(net, noise, FALLS_AT)
    net[2].bias.data.fill_(-1e3)
    watched.train(net, noise, DEAD * EVERY)
    assert watched.sent == [], "not yet"
    watched.train(net, noise, LONG - DEAD * EVERY)
    (told,) = watched.sent
    assert (told["kind"], told["what"], told["modules"], told["count"]) == ("ModulesDied", "output", ["3 (ReLU)"], 1)
    assert told["since"] == 1000 + FALLS_AT + EVERY and told["step"] == 1000 + FALLS_AT + DEAD * EVERY
    assert (told["looks"], told["alive"], told["every"]) == (DEAD, FALLS_AT // EVERY, EVERY)
    watched.train(net, noise, 2 * LONG)
    assert len(watched.sent) == 1, "once"


def test_a_relu_that_is_no_module(watched: Watched) -> None:
    """Nothing gives out zeros, and the layer before it has no gradient any more."""
    torch = watched.torch

    class Plain(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.last = linear(), torch.nn.Dropout(0.2), linear()

        def forward(self, x: Any) -> Any:
            return self.last(torch.relu(self.drop(self.first(x))))

    net = Plain()
    watched.train(net, noise, FALLS_AT)
    net.first.bias.data.fill_(-1e3)
    watched.train(net, noise, LONG)
    (told,) = watched.sent
    assert (told["what"], told["modules"]) == ("gradient", ["first (Linear)"])


def test_a_block_with_a_relu_inside(watched: Watched) -> None:
    torch = watched.torch

    class Block(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.inner = linear()

        def forward(self, x: Any) -> Any:
            return torch.relu(self.inner(x))

    net = torch.nn.Sequential(Block(), Block(), linear())
    watched.train(net, noise, FALLS_AT)
    net[0].inner.bias.data.fill_(-1e3)
    watched.train(net, noise, LONG)
    assert watched.sent[0]["modules"] == ["0 (Block)"]


def test_one_of_the_places_of_a_shared_relu(watched: Watched) -> None:
    torch = watched.torch

    class Twice(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.act, self.first, self.second, self.last = torch.nn.ReLU(inplace=True), linear(), linear(), linear()

        def forward(self, x: Any) -> Any:
            return self.last(self.act(self.second(self.act(self.first(x)))))

    net = Twice()
    watched.train(net, noise, FALLS_AT)
    net.second.bias.data.fill_(-1e3)
    watched.train(net, noise, LONG)
    (told,) = watched.sent
    assert (told["what"], told["modules"], told["count"]) == ("output", ["act (ReLU)"], 1)


# What does not -----------------------------------------------------------------------------------------------------


def half_dead(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """Nine tenths of a ReLU's numbers are zero."""
    net = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())
    net[0].bias.data.fill_(-0.7)
    return net, noise


def one_unit_left(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    net = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())

    def batch(step: int) -> Any:
        if step == FALLS_AT:
            net[0].bias.data.fill_(-1e3)
            net[0].bias.data[0] = 0.0
        return noise(step)

    return net, batch


def much_dropped(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """Nothing is left of some steps, and in the end of none."""
    net = torch.nn.Sequential(linear(), torch.nn.Dropout(0.5), linear())

    def batch(step: int) -> Any:
        net[1].p = 0.5 if step < FALLS_AT else 1.0
        return noise(step)

    return net, batch


def sparse_rows(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """A thousand rows, of which one is looked up; then padding alone."""
    net = torch.nn.Sequential(torch.nn.Embedding(1000, SIZE, padding_idx=7), linear())
    return net, lambda step: torch.full((SIZE,), step % 3 + 1 if step < FALLS_AT else 7)


def padding(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    net = torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE, bias=False), torch.nn.ReLU(), linear())
    return net, lambda step: noise(step) * (step < FALLS_AT)


def experts(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """The router sends nothing to the second one any more: it is given zeros."""

    class Mixture(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            made = [
                torch.nn.Sequential(torch.nn.Linear(SIZE, SIZE, bias=False), torch.nn.ReLU(), linear())
                for _ in range(3)
            ]
            self.router, self.experts = torch.nn.Linear(SIZE, 3), torch.nn.ModuleList(made)
            self.step = 0

        def forward(self, x: Any) -> Any:
            weights = self.router(x).softmax(-1)
            self.step += 1
            if self.step > FALLS_AT:
                weights = weights * torch.tensor([1.0, 0.0, 1.0])
            chosen = torch.nn.functional.one_hot(weights.argmax(-1), 3).to(x.dtype)
            parts = [expert(x * chosen[:, n : n + 1]) * weights[:, n : n + 1] for n, expert in enumerate(self.experts)]
            return x + sum(parts)

    return Mixture(), noise


def frozen(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    net = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())

    def batch(step: int) -> Any:
        if step == FALLS_AT:
            net[0].requires_grad_(False)
            net[0].bias.data.fill_(-1e3)
        return noise(step)

    return net, batch


def begins_with_zeros(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """LoRA's second matrix, adaLN's gate: nothing until they are trained."""
    net = torch.nn.Sequential(linear(), torch.nn.Linear(SIZE, SIZE, bias=False))
    net[1].weight.data.zero_()
    net[1].weight.requires_grad_(False)

    def batch(step: int) -> Any:
        net[1].weight.requires_grad_(step > 10 * EVERY)
        return noise(step)

    return net, batch


def loss_that_is_nil(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """All margins are kept: nothing is left to learn."""

    class Margins(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = linear()
            self.loss = torch.nn.MarginRankingLoss(margin=0.5, reduction="none")

        def forward(self, x: Any) -> Any:
            out = self.body(x)
            return self.loss(out, torch.zeros_like(out), torch.ones_like(out)) + torch.relu(0.5 - out)

    net = Margins()

    def batch(step: int) -> Any:
        if step == FALLS_AT:
            net.body.bias.data.fill_(1e3)
        return noise(step)

    return net, batch


def weighs_nothing(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """The loss of a second head is left out from some step on: its gradients are zero."""

    class Heads(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.second, self.first = linear(), torch.nn.Sequential(linear(), linear()), linear()
            self.step = 0

        def forward(self, x: Any) -> Any:
            self.step += 1
            x = self.body(x)
            second = self.second(x)
            return self.first(x) + second * (self.step <= FALLS_AT)

    return Heads(), noise


def comes_back(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """A branch that is shut most of the time, and opens at every fortieth look."""
    net = torch.nn.Sequential(linear(), torch.nn.ReLU(), linear())

    def batch(step: int) -> Any:
        if step >= FALLS_AT:
            net[0].bias.data.fill_(0.0 if step // EVERY % 40 == 0 else -1e3)
        return noise(step)

    return net, batch


def shared_relu(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    """One in all places of a residual net, which writes over what it is given."""

    class Residual(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.act, self.layers = torch.nn.ReLU(inplace=True), torch.nn.ModuleList(linear() for _ in range(3))
            self.norm = torch.nn.BatchNorm1d(SIZE)

        def forward(self, x: Any) -> Any:
            for layer in self.layers:
                x = self.act(x + self.norm(layer(x)))
            return x

    return Residual(), noise


def transformer(torch: Any) -> tuple[Any, Callable[[int], Any]]:
    layer = torch.nn.TransformerEncoderLayer(SIZE, 2, 32, dropout=0.3, batch_first=True)
    net = torch.nn.Sequential(torch.nn.TransformerEncoder(layer, 2), linear())
    return net, lambda step: noise(step).reshape(4, 4, SIZE)


DECOYS = [
    half_dead,
    one_unit_left,
    much_dropped,
    sparse_rows,
    padding,
    experts,
    frozen,
    begins_with_zeros,
    loss_that_is_nil,
    weighs_nothing,
    comes_back,
    shared_relu,
    transformer,
]


@pytest.mark.parametrize("decoy", DECOYS, ids=lambda one: one.__name__)
def test_zeros_that_are_as_they_should_be(watched: Watched, decoy: Callable[[Any], tuple[Any, Any]]) -> None:
    net, batch = decoy(watched.torch)
    watched.train(net, batch, FALLS_AT + LONG + 5 * EVERY)
    assert watched.sent == []
    assert watched.rank.origin._zeros is not None, "it was looked at until the end"


# Batches -----------------------------------------------------------------------------------------------------------


def blank(torch: Any, net: Any = None) -> Any:
    """A net that is called with one or more tensors, and what it gives out."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body = linear()

        def forward(self, parts: Any) -> Any:
            return net(self, *parts) if net is not None else self.body(parts)

    return Model()


@pytest.mark.parametrize("number", [0.0, -2.1])
def test_a_model_that_is_given_one_number_all_over(watched: Watched, number: float) -> None:
    """As blank pictures are, of which a transform takes the mean; the model is told by its size."""
    torch = watched.torch
    small, net = torch.nn.Linear(SIZE, 1), torch.nn.Sequential(linear(), torch.nn.Tanh(), linear())
    watched.train(net, lambda step: torch.full((SIZE, SIZE), number), LOOKS * EVERY, lambda out: small(out).mean())
    assert watched.sent == [], "not yet"
    watched.train(net, lambda step: torch.full((SIZE, SIZE), number), 3 * EVERY, lambda out: small(out).mean())
    (told,) = watched.sent
    assert (told["what"], told["modules"], told["looks"]) == ("input", ["Sequential"], LOOKS)
    assert told["since"] == 1000 + 2 * EVERY, "the first look finds the model"


def others(torch: Any) -> dict[str, Callable[[int], Any]]:
    ones, steps = torch.ones(SIZE, SIZE), torch.arange(SIZE)
    return {
        "data": noise,
        "one number that differs": lambda step: (ones + 0).index_put((steps[:1], steps[:1]), ones[0, 0] * 2),
        "another sample once in a while": lambda step: noise(step) if step == 4 * EVERY else ones,
        "few numbers": lambda step: torch.ones(2, SIZE),
    }


@pytest.mark.parametrize(
    "kind", ["data", "one number that differs", "another sample once in a while", "few numbers"], ids=str
)
def test_batches_with_something_in_them(watched: Watched, kind: str) -> None:
    net = blank(watched.torch)
    watched.train(net, others(watched.torch)[kind], (LOOKS + 10) * EVERY)
    assert watched.sent == []


def test_a_mask_beside_the_data_and_what_is_no_tensor_are_no_blank_batches(watched: Watched) -> None:
    torch = watched.torch
    count = watched.rank.origin._blank._count
    mask, data, names = torch.ones(SIZE, 1, SIZE), torch.arange(4 * SIZE), {"a": noise(1)}
    assert [int(each) for each in count((mask, None, 0.5))] == [0]
    assert [int(each) for each in count((data, mask))] == [4 * SIZE - 1, 0], "of words, say"
    for unknown in ((mask, names), (names,), (), (data,), (mask.to_sparse(),), (torch.nn.Parameter(mask),)):
        assert count(unknown) == []


def called(torch: Any, forward: Any) -> Any:
    """A net that is called with (tensor, step), and what it makes of them."""

    class Model(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.body, self.expert = linear(), linear()

        def forward(self, *args: Any, **named: Any) -> Any:
            return forward(self, *args, **named)

    return Model()


def take(watched: Watched, net: Any, calls: Callable[[int], list[tuple[Any, dict[str, Any]]]], steps: int) -> None:
    """Train. calls: of each step, what the net is called with by position and by name."""
    optimizer = watched.torch.optim.SGD(net.parameters(), 1e-4)
    for step in watched.steps(steps):
        for args, named in calls(step):
            out = net(*args, **named)
            out = out["logits"] if isinstance(out, dict) else out
            (out if out.dim() == 0 else out.sum()).backward()
        optimizer.step()
        optimizer.zero_grad()


def plainly(self: Any, x: Any) -> Any:
    return self.body(x)


EMPTY_FAULTS: dict[str, tuple[Any, Callable[[Any], tuple[Any, dict[str, Any]]]]] = {
    "no rows": (plainly, lambda none: ((none,), {})),
    "inputs and targets, and a number": (lambda self, x, y, p: self.body(x) * p, lambda none: ((none, none, 0.5), {})),
    "what it gives out is a dict": (lambda self, x: {"logits": self.body(x)}, lambda none: ((none,), {})),
    "more by name, and none of that either": (lambda self, x, y: self.body(y), lambda none: ((none,), {"y": none})),
}


@pytest.mark.parametrize("fault", EMPTY_FAULTS)
@pytest.mark.parametrize("micro_batches", [1, 2])
def test_a_model_that_is_given_no_samples(watched: Watched, fault: str, micro_batches: int) -> None:
    torch = watched.torch
    forward, make = EMPTY_FAULTS[fault]
    net, call = called(torch, forward), make(torch.zeros(0, SIZE))
    take(watched, net, lambda step: [call] * micro_batches, (LOOKS + 1) * EVERY)
    assert watched.sent == [], "not yet"
    take(watched, net, lambda step: [call] * micro_batches, 2 * EVERY)
    (told,) = watched.sent
    assert (told["what"], told["modules"], told["looks"]) == ("empty", ["Model"], LOOKS)
    assert told["since"] == 1000 + 2 * EVERY and watched.rank.origin._blank is None


def no_samples(torch: Any) -> dict[str, tuple[Any, Callable[[int], list[tuple[Any, dict[str, Any]]]]]]:
    """Decoys: a net, and what it is called with."""
    none, some = torch.zeros(0, SIZE), torch.ones(2, SIZE)

    def routed(self: Any, x: Any) -> Any:
        return self.body(x) + self.expert(x[:0]).sum()

    return {
        "the last batch of an epoch": (plainly, lambda step: [((none if step % 50 == 0 else some,), {})]),
        "once there were some": (plainly, lambda step: [((some if step == 3 * EVERY else none,), {})]),
        "one of a step's": (plainly, lambda step: [((none,), {}), ((some,), {})]),
        "the first of a step's": (plainly, lambda step: [((some,), {}), ((none,), {})]),
        "data by name beside a placeholder": (lambda self, x, y: self.body(y), lambda step: [((none,), {"y": some})]),
        "data by name alone": (lambda self, y: self.body(y), lambda step: [((), {"y": none})]),
        "a mask, a cache or boxes without any": (lambda self, x, y: self.body(x), lambda step: [((some, none), {})]),
        "an expert that is sent nothing": (routed, lambda step: [((some,), {})]),
        "lists of boxes, of which nothing is known": (
            lambda self, x: self.body(x[0]),
            lambda step: [(([none, none],), {})],
        ),
        "samples without features": (lambda self, x: self.body(some)[:, :0], lambda step: [((some[:, :0],), {})]),
        "a loss from within": (lambda self, x: self.body(x).sum(), lambda step: [((none,), {})]),
    }


@pytest.mark.parametrize(
    "decoy",
    [
        "the last batch of an epoch", "once there were some", "one of a step's", "the first of a step's",
        "data by name beside a placeholder", "data by name alone", "a mask, a cache or boxes without any",
        "an expert that is sent nothing", "lists of boxes, of which nothing is known", "samples without features",
        "a loss from within",
    ],
)  # fmt: skip
def test_batches_that_are_empty_now_and_then_or_in_part(watched: Watched, decoy: str) -> None:
    forward, calls = no_samples(watched.torch)[decoy]
    take(watched, called(watched.torch, forward), calls, (LOOKS + 4) * EVERY)
    assert [told for told in watched.sent if told["what"] == "empty"] == []


# What it does to training ------------------------------------------------------------------------------------------


def test_steps_that_are_not_looked_at_keep_nothing(watched: Watched) -> None:
    net = watched.torch.nn.Sequential(linear(), watched.torch.nn.ReLU())
    watched.train(net, noise, 2 * EVERY + 3)
    zeros = watched.rank.origin._zeros
    assert zeros._calls is None and zeros._sent is None and len(zeros._lives) == 3
    del net
    watched.rank.origin._steps.clear()
    gc.collect()
    assert len(zeros._lives) == 0, "modules that are gone are let go of"


def test_numbers_of_kinds_that_are_not_looked_into(watched: Watched) -> None:
    torch = watched.torch
    zeros = watched.rank.origin._zeros
    for tensor in (torch.ones(4).to_sparse(), torch.ones(4, device="meta"), torch.ones(0)):
        assert zeros._count(tensor) is None
    count, size = zeros._count(torch.tensor([0.0, -0.0, float("nan"), 1e-45]))
    assert (int(count), size) == (2, 4)
