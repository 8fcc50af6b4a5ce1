"""A learner on a GPU: in float32 its updates are a CPU's; in bfloat16 they hardly depend on the layout."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from learner.algorithms.base import Algorithm
from learner.algorithms.ppo import PPO
from learner.functional.linear_logprobs import LinearHead, linear_logprobs
from learner.functional.logprobs import token_logprobs
from learner.publishing.weight_publisher import as_array, wire_tensors
from tests.learner.test_every_algorithm import UNTAUGHT, in_groups, smooth, trained
from tests.learner.tiny import make_learner, perturb, random_rollouts, snapshot

pytestmark = pytest.mark.gpu
N, H, V = 4096, 16, 24  # so few words that each one's gradient is summed over all chunks


def started(model: Path, algorithm: Algorithm) -> dict[str, torch.Tensor]:
    """The parameters from which `trained` makes its update, on a CPU."""
    fresh = make_learner(model, algorithm)
    perturb(fresh.pair)
    return snapshot(fresh.pair)


@pytest.mark.parametrize("name", UNTAUGHT)
def test_an_update_in_float32_is_that_of_a_cpu(name: str, model: Path) -> None:
    algorithm, rollouts = smooth(name), in_groups(random_rollouts(12))
    start = started(model, algorithm)
    by_cpu, by_gpu = (
        snapshot(trained(model, algorithm, rollouts, device=device, autocast="none").pair)
        for device in ("cpu", "cuda")
    )
    moved = max(float((by_cpu[key] - start[key]).abs().max()) for key in start)
    assert moved > 1e-3
    for key, parameter in by_gpu.items():
        assert parameter.device.type == "cuda"
        torch.testing.assert_close(parameter.cpu(), by_cpu[key], atol=2e-4, rtol=1e-3)


@pytest.mark.parametrize("name", UNTAUGHT)
def test_in_bfloat16_an_update_hardly_depends_on_the_layout(name: str, model: Path) -> None:
    """Steps of two layouts point the same way; those of random rounding would stand at a right angle."""
    algorithm, rollouts = smooth(name), in_groups(random_rollouts(12))
    start = started(model, algorithm)
    packed, alone = (
        snapshot(trained(model, algorithm, rollouts, device="cuda", token_budget=budget).pair)
        for budget in (16384, 1)
    )
    steps = torch.cat([(packed[key].cpu() - start[key]).flatten() for key in start])
    others = torch.cat([(alone[key].cpu() - start[key]).flatten() for key in start])
    assert float(nn.functional.cosine_similarity(steps, others, dim=0)) > 0.8


def test_moments_are_updated_by_the_fused_kernel(model: Path) -> None:
    assert make_learner(model, PPO(), device="cuda").optimizer.defaults["fused"]


@pytest.mark.parametrize("chunks", [1, 16, 256])
@pytest.mark.parametrize("way", ["linear", "any"])
def test_the_gradient_of_the_head_in_bfloat16_is_near_that_in_float64(way: str, chunks: int) -> None:
    torch.manual_seed(0)
    hidden_NH, weight_VH, targets_N = torch.randn(N, H), 0.1 * torch.randn(V, H), torch.randint(V, (N,))
    exact_VH = weight_VH.double().requires_grad_()
    (hidden_NH.double() @ exact_VH.T).log_softmax(-1).gather(-1, targets_N[:, None]).sum().backward()
    found_VH = weight_VH.cuda().requires_grad_()
    on_gpu, budget = (hidden_NH.cuda(), targets_N.cuda()), N // chunks * V
    with torch.autocast("cuda", torch.bfloat16):
        if way == "linear":
            head = LinearHead(found_VH)
            logprobs_N, _ = linear_logprobs(*on_gpu, head, logits_budget=budget, with_entropy=False)
        else:
            logprobs_N, _ = token_logprobs(
                *on_gpu,
                lambda rows_NH: nn.functional.linear(rows_NH, found_VH),
                vocab_size=V,
                logits_budget=budget,
                with_entropy=False,
            )
    logprobs_N.sum().backward()
    assert exact_VH.grad is not None and found_VH.grad is not None
    error = (found_VH.grad.cpu().double() - exact_VH.grad).norm() / exact_VH.grad.norm()
    assert error < 0.004


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_it_publishes_the_weights_that_it_has(model: Path, dtype: str) -> None:
    learner = make_learner(model, PPO(), device="cuda")
    _, arrays = learner.publish(dtype)
    sent = dict(wire_tensors(learner.pair.lm, dtype))
    assert sent.keys() == arrays.keys()
    for name, tensor in sent.items():
        assert tensor.device.type == "cuda"
        assert np.array_equal(arrays[name], as_array(tensor.cpu()))
