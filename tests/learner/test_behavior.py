"""Effect of a warped sampler on the policy gradient: exact expectations over every response there is.

Responses have one or two tokens, so all of them can be listed with their probabilities; the expected
gradient of an update is then a sum, to be compared with the gradient of the expected reward itself.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.rollout import MaskRule, Rollout, Sampling
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rejection import RejectionSampling
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from tests.learner.drawing import Drawer
from tests.learner.tiny import CRITIC_AS_PAID, VOCAB, make_learner, perturb, plain_logits, rollout

PROMPT, END = (3, 4), 2
# One step on the whole batch along the plain gradient of Σ ρ A: no clipping, whitening, critic or penalty.
PLAIN: dict[str, Any] = {
    **CRITIC_AS_PAID,
    "num_epochs": 1,
    "minibatch_size": None,
    "clip_range": 1e9,
    "gamma": 1.0,
    "gae_lambda": 1.0,
    "advantage_whitening": "none",
    "value_coef": 0.0,
    "max_grad_norm": None,
    "kl": KLSettings(coefficient=0.0),
}
WARPS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6, "max_tokens": 1},
    "top_k": {"top_k": 6, "max_tokens": 2},
    "top_p": {"top_p": 0.6, "max_tokens": 1},
    "min_tokens": {"min_tokens": 2, "top_k": 5, "max_tokens": 2},
    "all": {"temperature": 1.5, "top_k": 8, "top_p": 0.9, "min_tokens": 1, "max_tokens": 2},
}
everywhere = pytest.mark.parametrize("warp", WARPS)


@dataclass(frozen=True)
class Response:
    """One of all that could be drawn, with the sets that its tokens were drawn from."""

    tokens: tuple[int, ...]
    sets: tuple[tuple[int, ...], ...]
    logprobs: tuple[float, ...]
    reward: float

    @property
    def probability(self) -> float:
        return float(torch.tensor(self.logprobs).sum().exp())


def constant(tokens: tuple[int, ...]) -> float:
    return 1.0


def uneven(tokens: tuple[int, ...]) -> float:
    return 1.0 + sum(tokens) % 5 + 0.3 * len(tokens)


def responses(drawer: Drawer, reward: Callable[[tuple[int, ...]], float]) -> list[Response]:
    """All that `drawer` could write."""
    complete, open_ends = [], [Response((), (), (), 0.0)]
    while open_ends:
        begun = open_ends.pop()
        allowed = drawer.support(PROMPT, begun.tokens)
        p_V = drawer.distribution(drawer.lm, PROMPT, begun.tokens, allowed)
        for token in allowed:
            tokens = (*begun.tokens, token)
            logprobs = (*begun.logprobs, float(p_V[token].log()))
            longer = Response(tokens, (*begun.sets, tuple(allowed)), logprobs, reward(tokens))
            ended = token == END or len(tokens) == drawer.sampling.max_tokens
            (complete if ended else open_ends).append(longer)
    assert sum(response.probability for response in complete) == pytest.approx(1, abs=1e-4)
    return complete


def as_rollouts(all_of_them: list[Response]) -> list[Rollout]:
    """Rewards are weighted so that the batch's mean a token is the expectation a response."""
    num_tokens = sum(len(response.tokens) for response in all_of_them)
    return [
        rollout(i, PROMPT, r.tokens, num_tokens * r.probability * r.reward, logprobs=r.logprobs)
        for i, r in enumerate(all_of_them)
    ]


def expected_gradient(learner: Learner, all_of_them: list[Response], drift: float = 0.0) -> Tensor:
    """Uphill gradient of one update, (P,); `drift` first moves the policy away from the sampler."""
    policy, score = learner.pair.policy, learner._score_batch
    gradients: list[Tensor] = []

    def scored(*arguments: Any) -> Any:
        before = score(*arguments)
        perturb(policy, drift, seed=8)
        return before

    def step() -> None:
        gradients.append(torch.cat([-p.grad.flatten() for p in policy.parameters() if p.grad is not None]))

    learner._score_batch, learner.optimizer.step = scored, step  # type: ignore[method-assign,assignment]
    learner.update(as_rollouts(all_of_them))
    return gradients[0]


def true_gradient(
    learner: Learner, all_of_them: list[Response], weight: Callable[[Tensor, Response], Tensor]
) -> Tensor:
    """∇ Σ over all responses of weight(logits (N, V), response) · reward, by the weights as they are."""
    learner.pair.zero_grad(set_to_none=True)
    lm = learner.pair.lm
    terms = [weight(plain_logits(lm, rollout(0, PROMPT, r.tokens)), r) * r.reward for r in all_of_them]
    torch.stack(terms).sum().backward()
    return torch.cat([p.grad.flatten() for p in learner.pair.policy.parameters() if p.grad is not None])


def warped(logits_NV: Tensor, response: Response, temperature: float) -> Tensor:
    """The probabilities (N,) of a response's tokens in the sets that they were drawn from."""
    rows = zip(logits_NV, response.sets, response.tokens, strict=True)
    return torch.stack([(z_V / temperature)[list(s)].softmax(-1)[s.index(token)] for z_V, s, token in rows])


def under_the_warp(temperature: float) -> Callable[[Tensor, Response], Tensor]:
    """The probability with which the worker writes a response."""
    return lambda logits_NV, response: warped(logits_NV, response, temperature).prod()


def surrogate(temperature: float) -> Callable[[Tensor, Response], Tensor]:
    """PPO's form: each token's ratio by itself."""

    def ratios(logits_NV: Tensor, response: Response) -> Tensor:
        old_N = torch.tensor(response.logprobs).exp()
        return response.probability * (warped(logits_NV, response, temperature) / old_N).sum()

    return ratios


def error(gradient: Tensor, expected: Tensor) -> float:
    return float((gradient - expected).norm() / expected.norm())


def setup(
    path: Path, warp: str, behavior: str, algorithm: PPO | None = None, **settings: Any
) -> tuple[Learner, Drawer]:
    sampling = Sampling(**WARPS[warp])
    learner = make_learner(path, algorithm or PPO(**PLAIN), sampling=sampling, behavior=behavior, **settings)
    rule = algorithm.mask_rule() if isinstance(algorithm, NLPO) else None
    if learner.mask is not None:
        perturb(learner.mask, 0.2)
    return learner, Drawer(learner.pair.lm, sampling, END, learner.mask and learner.mask.lm, rule)


@everywhere
@pytest.mark.parametrize("drift", [0.0, 0.03], ids=["first pass", "later pass"])
def test_exact_follows_the_gradient_of_what_the_worker_earns(
    models: dict[str, Path], warp: str, drift: float
) -> None:
    learner, drawer = setup(models["gpt2"], warp, "exact")
    all_of_them = responses(drawer, uneven)
    gradient = expected_gradient(learner, all_of_them, drift)
    temperature = drawer.sampling.temperature
    assert error(gradient, true_gradient(learner, all_of_them, surrogate(temperature))) < 1e-4
    if (
        not drift or drawer.sampling.max_tokens == 1
    ):  # with several tokens a surrogate is only nearly it later
        assert error(gradient, true_gradient(learner, all_of_them, under_the_warp(temperature))) < 1e-4


@everywhere
def test_ignoring_the_warp_is_biased(models: dict[str, Path], warp: str) -> None:
    """RL4LMs' way: sampled warped, scored unwarped."""
    learner, drawer = setup(models["gpt2"], warp, "ignore")
    all_of_them = responses(drawer, uneven)
    gradient = expected_gradient(learner, all_of_them)
    true = true_gradient(learner, all_of_them, under_the_warp(drawer.sampling.temperature))
    assert error(gradient, true) > 0.3
    # not the right direction at another length either
    assert float(torch.cosine_similarity(gradient, true, dim=0)) < 0.95


@everywhere
@pytest.mark.parametrize("behavior", ["exact", "ignore"])
def test_where_every_response_earns_the_same_only_a_bias_moves_the_policy(
    models: dict[str, Path], warp: str, behavior: str
) -> None:
    learner, drawer = setup(models["gpt2"], warp, behavior)
    norm = float(expected_gradient(learner, responses(drawer, constant)).norm())
    assert norm < 1e-4 if behavior == "exact" else norm > 0.05


@pytest.mark.parametrize("drift", [0.0, 0.03], ids=["first pass", "later pass"])
def test_exact_is_exact_under_nlpos_mask(models: dict[str, Path], drift: float) -> None:
    algorithm = NLPO(**PLAIN, top_p=0.7, target_update_iterations=2)
    learner, drawer = setup(models["gpt2"], "temperature", "exact", algorithm)
    all_of_them = responses(drawer, uneven)
    assert len(all_of_them) < VOCAB / 2
    gradient = expected_gradient(learner, all_of_them, drift)
    assert error(gradient, true_gradient(learner, all_of_them, under_the_warp(0.6))) < 1e-4


def under_the_softmax(logits_NV: Tensor, response: Response) -> Tensor:
    """The probability of a response of the model as it is."""
    return logits_NV.softmax(-1)[range(len(response.tokens)), response.tokens].prod()


def test_importance_weights_give_the_unwarped_models_gradient(models: dict[str, Path]) -> None:
    """A temperature cuts nothing off, so with no cap on the weights it is corrected to the last digit."""
    learner, drawer = setup(models["gpt2"], "temperature", "importance", importance_cap=1e9)
    all_of_them = responses(drawer, uneven)
    gradient = expected_gradient(learner, all_of_them)
    assert error(gradient, true_gradient(learner, all_of_them, under_the_softmax)) < 1e-4


def test_a_cap_on_the_weights_trades_a_bias_for_variance(models: dict[str, Path]) -> None:
    """E[min(π/μ, c) r ∇ log π] under μ; the published default c = 2."""
    learner, drawer = setup(models["gpt2"], "temperature", "importance")
    assert learner.settings.importance_cap == 2.0
    all_of_them = responses(drawer, uneven)
    capped = []

    def weight(logits_NV: Tensor, response: Response) -> Tensor:
        logprob = logits_NV[0].log_softmax(-1)[response.tokens[0]]
        importance = float(logprob.detach().exp()) / response.probability
        capped.append(importance > 2.0)
        return response.probability * min(importance, 2.0) * logprob

    gradient = expected_gradient(learner, all_of_them)
    assert error(gradient, true_gradient(learner, all_of_them, weight)) < 1e-4
    assert 0 < sum(capped) < len(capped)
    assert error(gradient, true_gradient(learner, all_of_them, under_the_softmax)) > 0.01


def test_importance_weights_cannot_speak_for_tokens_that_are_never_drawn(models: dict[str, Path]) -> None:
    """Top-k: the gradient of the unwarped reward, but of the tokens in the set alone."""
    learner, drawer = setup(models["gpt2"], "top_p", "importance", importance_cap=1e9)
    all_of_them = responses(drawer, uneven)
    everything = responses(Drawer(drawer.lm, Sampling(max_tokens=1), END), uneven)
    gradient = expected_gradient(learner, all_of_them)
    assert error(gradient, true_gradient(learner, all_of_them, under_the_softmax)) < 1e-4
    assert error(gradient, true_gradient(learner, everything, under_the_softmax)) > 0.1


@pytest.mark.parametrize("behavior", ["exact", "importance", "ignore"])
def test_without_warping_all_three_are_the_same(models: dict[str, Path], behavior: str) -> None:
    sampling = Sampling(max_tokens=1)
    learner = make_learner(models["gpt2"], PPO(**PLAIN), sampling=sampling, behavior=behavior)
    all_of_them = responses(Drawer(learner.pair.lm, sampling, END), uneven)
    gradient = expected_gradient(learner, all_of_them)
    assert error(gradient, true_gradient(learner, all_of_them, under_the_softmax)) < 1e-4


def test_the_mismatch_is_measured(models: dict[str, Path]) -> None:
    mismatches = {}
    for behavior in ("exact", "ignore"):
        learner, drawer = setup(models["gpt2"], "temperature", behavior)
        metrics = learner.update(drawer.rollouts([PROMPT] * 20))
        mismatches[behavior] = metrics["mismatch/kl"], metrics["mismatch/max_ratio"] - 1
    assert max(mismatches["exact"]) < 1e-4
    assert min(mismatches["ignore"]) > 0.05


def test_what_is_imitated_is_the_models_own_likelihood(models: dict[str, Path]) -> None:
    """Rejection sampling has no ratio; were its likelihood warped, tokens outside would never fade."""
    sampling = Sampling(max_tokens=3, temperature=0.5, top_k=4)
    learner = make_learner(models["gpt2"], RejectionSampling(top_share=1.0), sampling=sampling)
    drawn = Drawer(learner.pair.lm, sampling, END).rollouts([PROMPT] * 4)
    with torch.no_grad():
        logprobs = [
            plain_logits(learner.pair.lm, one).log_softmax(-1)[range(one.num_generated), one.turns[0].tokens]
            for one in drawn
        ]
    assert learner.update(drawn)["loss/policy"] == pytest.approx(-float(torch.cat(logprobs).mean()), abs=1e-5)


@pytest.mark.parametrize("algorithm", [GRPO(), PPO()])
def test_whoever_has_a_ratio_has_the_warped_one(models: dict[str, Path], algorithm: Any) -> None:
    sampling = Sampling(max_tokens=3, top_k=4)
    learner = make_learner(models["gpt2"], algorithm, sampling=sampling)
    assert (
        learner.sampling_distribution.sampling == sampling
        and learner.sampling_distribution.end_tokens == (END,)
    )
    assert learner.sampling_distribution.mask is None
    masked = make_learner(models["gpt2"], NLPO(top_p=0.5), sampling=sampling)
    assert masked.sampling_distribution.mask == MaskRule(top_p=0.5)
