"""Attention under bfloat16 autocast on a CPU: float32 kernels, and values near those of float64."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from learner.algorithms.base import OptimizerSettings
from learner.algorithms.ppo import PPO
from learner.models.attention import attend_in_float32, rounding_attention
from tests.learner import seq2seq as seq2seq_models
from tests.learner.tiny import CONFIGS, make_learner, random_rollouts, snapshot

SEQUENCES, HEADS, TOKENS, WIDTH = 2, 4, 12, 16
# a large ε, so that Adam doesn't blow rounding up
ONE_STEP = PPO(num_epochs=1, minibatch_size=None, optimizer=OptimizerSettings(eps=1.0))
Attend = Callable[..., tuple[Tensor, None]]


class Kernels(TorchDispatchMode):
    """Record of the types in which attention's kernels are called."""

    def __init__(self) -> None:
        super().__init__()
        self.types: set[torch.dtype] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if "scaled_dot_product" in str(func):
            self.types.add(args[0].dtype)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def attend() -> Attend:
    from transformers import AttentionInterface

    attend_in_float32()
    function: Attend = AttentionInterface()["sdpa"]
    return function


def inputs(kv_heads: int = HEADS) -> list[Tensor]:
    torch.manual_seed(0)
    shapes = [(SEQUENCES, heads, TOKENS, WIDTH) for heads in (HEADS, kv_heads, kv_heads)]
    return [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]


def bias() -> Tensor:
    """A mask of the additive kind, which hides the first token from all but itself."""
    hidden_LL = torch.zeros(TOKENS, TOKENS)
    hidden_LL[1:, 0] = torch.finfo(torch.bfloat16).min
    return hidden_LL.bfloat16()[None, None]


@pytest.mark.parametrize("position_bias", [None, torch.randn(1, HEADS, TOKENS, TOKENS).bfloat16()])
@pytest.mark.parametrize("kv_heads", [HEADS, 2])
@pytest.mark.parametrize("mask", [None, torch.ones(TOKENS, TOKENS).tril().bool()[None, None], bias()])
def test_kernels_are_float32_and_values_those_of_float64(
    attend: Attend, mask: Tensor | None, kv_heads: int, position_bias: Tensor | None
) -> None:
    layer = nn.Module()
    layer.num_key_value_groups = HEADS // kv_heads
    ours, exact = inputs(kv_heads), [tensor.detach().double().requires_grad_() for tensor in inputs(kv_heads)]
    with torch.autocast("cpu", dtype=torch.bfloat16), Kernels() as kernels:
        output, _ = attend(layer, *ours, mask, position_bias=position_bias)
        output.float().pow(2).sum().backward()
    assert kernels.types == {torch.float32}
    assert output.dtype == torch.bfloat16  # as the model's next product expects

    double = mask.double() if mask is not None and mask.is_floating_point() else mask
    doubled = None if position_bias is None else position_bias.double()
    expected, _ = sdpa_attention_forward(layer, *exact, double, position_bias=doubled)
    expected.pow(2).sum().backward()
    torch.testing.assert_close(output.double(), expected, rtol=1e-2, atol=1e-2)
    for mine, other in zip(ours, exact, strict=True):
        assert mine.grad is not None and other.grad is not None
        torch.testing.assert_close(mine.grad.double(), other.grad, rtol=2e-2, atol=3e-2)


def test_where_rounding_is_measured_kernels_are_bfloat16(attend: Attend) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16), rounding_attention(), Kernels() as kernels:
        attend(nn.Module(), *inputs(), None)
    assert kernels.types == {torch.bfloat16}


def test_a_whole_graph_holds_it_and_computes_the_same(attend: Attend) -> None:
    compiled = torch.compile(attend, fullgraph=True, backend="aot_eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output, expected = (run(nn.Module(), *inputs(), None)[0] for run in (compiled, attend))
    assert torch.equal(output, expected)


def test_without_autocast_it_is_transformers_own(attend: Attend) -> None:
    layer, (query, key, value) = nn.Module(), inputs()
    with Kernels() as kernels:
        output, _ = attend(layer, query, key, value, None)
    assert kernels.types == {torch.bfloat16}
    assert torch.equal(output, sdpa_attention_forward(layer, query, key, value, None)[0])


@pytest.mark.parametrize("name", [*CONFIGS, *seq2seq_models.NAMES])
def test_an_update_in_bfloat16_goes_the_way_of_one_in_float32(
    models: dict[str, Path], seq2seq: dict[str, Path], name: str
) -> None:
    """Every architecture: masks, shared prompts, position biases and cross attention go through."""
    path = {**models, **seq2seq}[name]
    start = snapshot(make_learner(path, ONE_STEP).pair)
    rollouts = [replace(one, turns=one.turns[:1]) for one in random_rollouts(8)]
    steps = []
    for autocast in ("none", "bfloat16"):
        learner = make_learner(path, ONE_STEP, autocast=autocast, mismatch={"weights": "none"})
        learner.update(rollouts)
        ended = snapshot(learner.pair)
        steps.append(torch.cat([(ended[key] - start[key]).flatten() for key in start]))
    assert float(nn.functional.cosine_similarity(*steps, dim=0)) > 0.95
