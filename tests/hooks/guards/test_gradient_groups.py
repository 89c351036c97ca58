"""Whose gradients have grown: by group of modules, before they are clipped, against what was usual for each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from guardrun.hooks.guards import gradient_groups
from guardrun.hooks.guards.gradient_groups import (
    GREW,
    LEAST,
    MAX_GROUPS,
    SETTLES,
    THE_REST,
    GradientGroups,
    NormHistory,
)
from guardrun.hooks.guards.module_names import group_of
from guardrun.hooks.wire.board import Field
from tests.hooks.guards.deep_rank import DeepRank, looked_into


@pytest.mark.parametrize(
    ("parameter", "group"),
    [
        ("module.model.layers.11.self_attn.q_proj.weight", "module.model.layers.11"),
        ("layers.0.experts.7.w1", "layers.0"),
        ("0.weight", "0"),
        ("embed.weight", "embed"),
        ("model.encoder.norm.inner.deep.weight", "model.encoder.norm.inner"),
        ("scale", "scale"),
    ],
)
def test_names_of_groups(parameter: str, group: str) -> None:
    assert group_of(parameter) == group


def test_what_is_usual() -> None:
    one = NormHistory()
    for _ in range(LEAST):
        one.add(2.0)
        assert one.times == 0.0, "too few"
    one.add(2.2)
    assert one.times == pytest.approx(1.1)
    for _ in range(SETTLES - 1):
        one.add(20.0)
        assert one.times == 10.0, "what is high is kept from what is usual"
    for _ in range(3 * SETTLES):
        one.add(20.0)
    assert one.times == 1.0, "until it stays"


class Watched(DeepRank):
    """Its gradients are looked at at every second step."""

    def __init__(self, torch: Any) -> None:
        super().__init__(torch)
        self.rank.origin._groups = GradientGroups(self.rank, torch, 2)
        self.clip = gradient_groups.wrap_clip(self.rank, torch.nn.utils.clip_grad_norm_)

    def train(
        self, net: Any, steps: int, grows: Callable[[int], None] = lambda step: None, *, clips: bool = True
    ) -> None:
        """Take steps. grows: called before each one, with its number."""
        torch = self.torch
        optimizer = torch.optim.SGD(net.parameters(), 1e-6)
        for step in self.steps(steps):
            grows(step)
            net(torch.randn(32, 16, generator=torch.Generator().manual_seed(step))).square().mean().backward()
            if clips:
                self.clip(net.parameters(), 1e-3)
            optimizer.step()
            optimizer.zero_grad()


@pytest.fixture
def watched() -> Iterator[Watched]:
    import torch
    from torch.optim.optimizer import register_optimizer_step_pre_hook as register

    one = Watched(torch)
    removed: list[Any] = []
    module = SimpleNamespace(register_optimizer_step_pre_hook=lambda hook: removed.append(register(hook)))
    with looked_into(one, seed=7):
        gradient_groups.install(module, one.rank)
        yield one
    for hook in removed:
        hook.remove()


def layers(torch: Any) -> Any:
    return torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(16, 16), torch.nn.Tanh()) for _ in range(3)))


@pytest.mark.parametrize("clips", [True, False])
def test_the_layer_whose_gradients_grow_is_first(watched: Watched, clips: bool) -> None:
    """Norms are those from before clipping, which would make them all alike."""
    net = layers(watched.torch)

    def grows(step: int) -> None:
        if step == 60:
            net[1][0].weight.register_hook(lambda gradient: 40 * gradient)

    watched.train(net, 100, grows, clips=clips)
    (told,) = watched.sent
    assert told["kind"] == "GradientsGrew" and told["step"] == 1060 and told["count"] == 3
    (name, usual, now), *others = told["groups"]
    assert name == "1" and 20 < now / usual < 60
    assert {other[0] for other in others} == {"0", "2"} and all(now < GREW * usual for _, usual, now in others)


def test_noise_a_slow_rise_and_a_fall_say_nothing(watched: Watched) -> None:
    net = layers(watched.torch)
    scale = {"now": 1.0}
    net[2][0].weight.register_hook(lambda gradient: gradient * scale["now"])

    def drift(step: int) -> None:
        scale["now"] = math.exp(step / 150) if step < 200 else 4 * math.exp((200 - step) / 20)

    watched.train(net, 400, drift)
    assert watched.sent == []


def test_what_is_as_high_again_is_not_said_again(watched: Watched) -> None:
    groups = watched.rank.origin._groups
    for step in range(2, 200, 2):
        groups._note(step, ["a", "b"], [3.0 if step % 20 == 0 else 1.0, 1.0])
    assert [told["step"] for told in watched.sent] == [1020]
    groups._due_ns = 0
    groups._note(202, ["a", "b"], [50.0, math.nan])
    assert watched.sent[1]["groups"] == [("a", 1.0, 50.0)], "what is not finite has no norm"
    assert watched.failed == []


def test_more_groups_than_are_kept_are_one(watched: Watched) -> None:
    groups = watched.rank.origin._groups
    names = [str(number) for number in range(2 * MAX_GROUPS)]
    for step in range(2, 40, 2):
        groups._note(step, names, [1.0] * MAX_GROUPS + [10.0 if step > 30 else 1.0] * MAX_GROUPS)
    assert len(groups._groups) == MAX_GROUPS + 1
    assert [told["groups"][0][0] for told in watched.sent] == [THE_REST]


def test_a_scaled_gradient_that_a_fused_optimizer_is_given_is_left_alone(watched: Watched) -> None:
    net = layers(watched.torch)
    net(watched.torch.ones(4, 16)).mean().backward()
    optimizer = watched.torch.optim.SGD(net.parameters(), 1e-6, fused=True)
    watched.rank.words[Field.STEP] = 1
    optimizer.grad_scale, optimizer.found_inf = watched.torch.ones(()), watched.torch.zeros(())
    optimizer.step()
    assert watched.rank.origin._groups._looked_at == 0
    del optimizer.grad_scale, optimizer.found_inf
    optimizer.step()
    assert watched.rank.origin._groups._looked_at == 2
