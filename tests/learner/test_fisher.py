"""The Fisher matrix times a vector: by its definition, as the KL's second derivative, however it is split."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from contracts.rollout import Rollout, Sampling
from learner.algorithms.trpo import TRPO
from learner.batches.batching import MicroBatch
from learner.batches.splitting import micro_batches
from learner.models.actor_critic import ActorCritic
from learner.updates.context import UpdateContext
from learner.updates.fisher import FisherProduct
from learner.updates.parameter_vector import ParameterVector
from tests.learner import seq2seq as encoder_decoders
from tests.learner import tiny
from tests.learner.contexts import UNCUT, make_context
from tests.learner.tiny import CONFIGS, VOCAB, make_pair, random_rollouts, whole

CUT = Sampling(max_tokens=20, temperature=0.7, top_k=9, min_tokens=3)
PENALISED = Sampling(max_tokens=20, temperature=0.7, top_k=9, repetition_penalty=1.5)


@pytest.fixture(scope="session")
def every_model(models: dict[str, Path], seq2seq: dict[encoder_decoders.Name, Path]) -> dict[str, Path]:
    return {**models, **seq2seq}


def case(name: str, num: int) -> tuple[list[Rollout], Any]:
    """Rollouts for the model's family, and its plain logits."""
    if name in CONFIGS:
        return random_rollouts(num), tiny.plain_logits
    return encoder_decoders.single_turns(num), encoder_decoders.plain_logits


def product_of(context: UpdateContext, damping: float = 0.0) -> FisherProduct:
    def all_of_it() -> Iterator[MicroBatch]:
        rows_B = torch.arange(context.batch.num_rollouts)
        return micro_batches(context.batch, rows_B, context.settings.token_budget)

    return FisherProduct(context, ParameterVector(context.models.pair.policy), damping, all_of_it)


def direction(pair: ActorCritic, seed: int = 1) -> Tensor:
    """As large in each parameter as the parameter itself, so that none is lost beside another."""
    generator = torch.Generator().manual_seed(seed)
    trained = [p for p in pair.policy.parameters() if p.requires_grad]
    return torch.cat([torch.randn(p.numel(), generator=generator) * p.detach().std() for p in trained])


def flat(gradients: tuple[Tensor | None, ...], like: list[Tensor]) -> Tensor:
    pairs = zip(gradients, like, strict=True)
    return torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs])


def error(product_P: Tensor, expected_P: Tensor) -> float:
    """Error as a share of the expected vector's length: its entries are of very uneven sizes."""
    return float((product_P - expected_P).norm() / expected_P.norm())


def by_definition(pair: ActorCritic, logits_NV: Tensor, vector_P: Tensor) -> Tensor:
    """Σ_a p(a) (∇ log p(a)·v) ∇ log p(a), a gradient for each token and each thing it could have been."""
    trained = [p for p in pair.policy.parameters() if p.requires_grad]
    logprobs_M, total_P = logits_NV.log_softmax(-1).flatten(), torch.zeros_like(vector_P)
    for ones_KM in torch.eye(len(logprobs_M)).split(len(logits_NV[0])):
        gradients = torch.autograd.grad(
            logprobs_M, trained, ones_KM, retain_graph=True, allow_unused=True, is_grads_batched=True
        )
        scores_KP = torch.cat(
            [
                torch.zeros(len(ones_KM), p.numel()) if g is None else g.flatten(1)
                for p, g in zip(trained, gradients, strict=True)
            ],
            dim=1,
        )
        total_P += (ones_KM @ logprobs_M.detach()).exp() * (scores_KP @ vector_P) @ scores_KP
    return total_P / len(logits_NV)


def by_two_backward_passes(pair: ActorCritic, logits_NV: Tensor, vector_P: Tensor) -> Tensor:
    """∇(∇KL·v), as sb3-contrib has it: a graph of a graph, over the whole vocabulary."""
    trained = [p for p in pair.policy.parameters() if p.requires_grad]
    logprobs_NV = logits_NV.log_softmax(-1)
    inside_NV = logits_NV.isfinite()
    difference_NV = (logprobs_NV - logprobs_NV.detach()).masked_fill(~inside_NV, 0.0)
    kl = (logprobs_NV.exp() * difference_NV).sum(-1).mean()
    gradients = torch.autograd.grad(kl, trained, create_graph=True, allow_unused=True)
    slope = flat(gradients, trained).dot(vector_P)
    return flat(torch.autograd.grad(slope, trained, allow_unused=True), trained)


@pytest.mark.parametrize("name", ["gpt2", "llama_tied", "bart"])
def test_it_is_the_expected_product_of_scores(every_model: dict[str, Path], name: str) -> None:
    rollouts, plain_logits = case(name, 1)
    pair = make_pair(every_model[name])
    vector_P = direction(pair)
    product_P = product_of(make_context(pair, rollouts, TRPO()), damping=0.5)(vector_P)
    with sdpa_kernel(SDPBackend.MATH):
        logits_NV = torch.cat([plain_logits(pair.lm, one) for one in rollouts])
        expected_P = by_definition(pair, logits_NV, vector_P)
    assert error(product_P, expected_P + 0.5 * vector_P) < 1e-4


@pytest.mark.parametrize("sampling", [UNCUT, CUT, PENALISED], ids=["uncut", "cut", "penalised"])
@pytest.mark.parametrize("name", [*CONFIGS, *encoder_decoders.NAMES])
def test_it_is_the_second_derivative_of_the_kl(
    every_model: dict[str, Path], name: str, sampling: Sampling
) -> None:
    rollouts, plain_logits = case(name, 6)
    pair = make_pair(every_model[name])
    vector_P = direction(pair)
    context = make_context(pair, rollouts, TRPO(), sampling=sampling, token_budget=40)
    product_P = product_of(context)(vector_P)
    with sdpa_kernel(SDPBackend.MATH):
        logits_NV = torch.cat([plain_logits(pair.lm, one) for one in rollouts])
    restriction = context.scored.restriction(whole(context.batch))
    expected_P = by_two_backward_passes(pair, restriction(logits_NV), vector_P)
    assert error(product_P, expected_P) < 1e-4


@pytest.mark.parametrize("name", ["gpt2", "gemma2", "t5"])
def test_it_is_symmetric_and_positive(every_model: dict[str, Path], name: str) -> None:
    """Symmetry and sign, which conjugate gradients take for granted."""
    pair = make_pair(every_model[name])
    product = product_of(make_context(pair, case(name, 6)[0], TRPO()))
    one_P, other_P = direction(pair, 1), direction(pair, 2)
    there, back = float(one_P @ product(other_P)), float(other_P @ product(one_P))
    assert there == pytest.approx(back, rel=1e-3, abs=1e-4 * float(one_P @ product(one_P)))
    assert float(one_P @ product(one_P)) > 0


@pytest.mark.parametrize("name", ["llama_tied", "t5"])
def test_micro_batches_chunks_order_and_padding_change_nothing(
    every_model: dict[str, Path], name: str
) -> None:
    rollouts, _ = case(name, 9)
    pair = make_pair(every_model[name])
    vector_P = direction(pair)
    expected_P = product_of(make_context(pair, rollouts, TRPO(), sampling=CUT))(vector_P)
    split = make_pair(every_model[name], logits_budget=8 * 3 * VOCAB)  # three rows a chunk
    for budget in (1, 40):
        context = make_context(split, rollouts[::-1], TRPO(), sampling=CUT, token_budget=budget)
        assert error(product_of(context)(vector_P), expected_P) < 1e-5


@pytest.mark.parametrize("part", ["h.0.attn", "lm_head"])
def test_frozen_parameters_are_no_part_of_it(models: dict[str, Path], part: str) -> None:
    """Adapters: the product is a part of the whole one, for a v that is 0 in what is frozen."""
    rollouts, pair = random_rollouts(4), make_pair(models["llama"] if part == "lm_head" else models["gpt2"])
    everything_P = direction(pair)
    chosen_P = torch.cat(
        [torch.full((p.numel(),), part in name) for name, p in pair.policy.named_parameters()]
    )
    assert 0 < int(chosen_P.sum()) < len(chosen_P)
    whole_P = product_of(make_context(pair, rollouts, TRPO()))(everything_P * chosen_P)
    for name, parameter in pair.policy.named_parameters():
        parameter.requires_grad_(part in name)
    product_P = product_of(make_context(pair, rollouts, TRPO()))(everything_P[chosen_P])
    assert error(product_P, whole_P[chosen_P]) < 1e-5


def test_a_product_leaves_no_gradients_behind(models: dict[str, Path]) -> None:
    pair = make_pair(models["gpt2"])
    product, vector_P = product_of(make_context(pair, random_rollouts(4), TRPO())), direction(pair)
    first_P = product(vector_P)
    assert all(parameter.grad is None for parameter in pair.parameters())
    assert torch.equal(product(vector_P), first_P)
