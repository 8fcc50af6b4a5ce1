"""NLPO's mask in the transformers engine, against two Hugging Face models and the definition."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from contracts.errors import InputError
from contracts.rollout import MaskRule, Sampling
from rollout_workers.engines.base import Engine, Generation, Request
from tests.rollout_workers.generation import (
    EOS,
    Name,
    finish,
    load,
    load_lm,
    logits_TV,
    perturb,
    prompts_of_many_lengths,
    weights,
    with_sampling,
    worst_difference,
)

TOLERANCE = 1e-4
NUCLEUS = MaskRule(top_p=0.6)
MODELS: tuple[Name, ...] = ("llama", "gpt2", "t5", "mt5", "bart")


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> Name:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def policy(name: Name, models: dict[str, Path]) -> Any:
    return load_lm(models[name])


@pytest.fixture
def mask(policy: Any) -> Any:
    """A model that agrees with the policy on much, but not on all."""
    other = deepcopy(policy)
    perturb(other, seed=2, scale=0.1)
    return other


def get_masked(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any, rule: MaskRule
) -> Engine:
    engine = get_engine("transformers", name, rule)
    version = engine.weight_version + 1
    load(engine, policy, version)
    engine.load_mask(*weights(mask, version, mask_version=version))
    return engine


def kept_by(logits_V: "np.ndarray[Any, Any]", rule: MaskRule) -> set[int]:
    """The definition, token by token."""
    order = sorted(range(len(logits_V)), key=lambda token: -logits_V[token])
    p_V = np.exp(logits_V - logits_V.max())
    p_V /= p_V.sum()
    if rule.top_k is not None:
        count = rule.top_k
    else:
        count = next(
            n for n in range(1, len(order) + 1) if n == len(order) or p_V[order[:n]].sum() >= rule.top_p
        )
    return set(order[: max(count, rule.min_tokens_to_keep)])


def check(
    policy: Any, mask: Any, rule: MaskRule, requests: list[Request], generations: dict[int, Generation]
) -> int:
    """Every token is allowed, with the log-probability of the renormalised distribution; returns how many
    tokens in all were forbidden.
    """
    forbidden = 0
    for request in requests:
        generation, sampling = generations[request.id], request.sampling
        rows_TV = logits_TV(policy, request.tokens, generation.tokens).double().numpy()
        mask_TV = logits_TV(mask, request.tokens, generation.tokens).double().numpy()
        for t, token in enumerate(generation.tokens):
            if t < sampling.min_tokens:
                rows_TV[t, EOS] = mask_TV[t, EOS] = -np.inf
            kept = kept_by(mask_TV[t], rule)
            assert token in kept
            scaled = {k: rows_TV[t, k] / sampling.temperature for k in kept}
            if sampling.top_k:
                best = sorted(scaled, key=lambda k: -scaled[k])[: sampling.top_k]
                scaled = {k: scaled[k] for k in best}
            total = np.logaddexp.reduce(list(scaled.values()))
            assert generation.behavior_logprobs[t] == pytest.approx(scaled[token] - total, abs=TOLERANCE)
            forbidden += rows_TV.shape[1] - len(kept)
    return forbidden


@pytest.mark.parametrize(
    "rule", [NUCLEUS, MaskRule(top_k=4), MaskRule(top_p=0.1, min_tokens_to_keep=3)], ids=str
)
def test_only_allowed_tokens_are_drawn_with_the_logprobs_of_what_is_left_renormalised(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any, rule: MaskRule
) -> None:
    engine = get_masked(get_engine, name, policy, mask, rule)
    requests = prompts_of_many_lengths(16, masked=True)
    generations = finish(engine, requests)

    forbidden = check(policy, mask, rule, requests, generations)
    assert forbidden > 5 * sum(len(generation.tokens) for generation in generations.values())
    assert worst_difference(policy, requests, generations) > 0.1  # without the mask they would be others


def test_the_warpers_work_on_what_the_mask_leaves(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any
) -> None:
    engine = get_masked(get_engine, name, policy, mask, NUCLEUS)
    requests = prompts_of_many_lengths(16, masked=True, temperature=0.7, top_k=3)

    check(policy, mask, NUCLEUS, requests, finish(engine, requests))


def test_an_end_that_comes_too_early_leaves_the_mask_too(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any
) -> None:
    """With one token kept, a mask model that wants the end would else allow nothing that may be drawn."""
    rule = MaskRule(top_k=1)
    engine = get_masked(get_engine, name, policy, mask, rule)
    requests = prompts_of_many_lengths(32, masked=True, min_tokens=12, max_tokens=14)
    generations = finish(engine, requests)

    check(policy, mask, rule, requests, generations)
    assert min(len(generation.tokens) for generation in generations.values()) >= 12
    wanted = [
        int(row.argmax())
        for r in requests
        for row in logits_TV(mask, r.tokens, generations[r.id].tokens[:12])
    ]
    assert EOS in wanted  # or nothing was tested


def test_the_mask_changes_only_when_it_is_loaded(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any
) -> None:
    engine = get_masked(get_engine, name, policy, mask, NUCLEUS)
    first = engine.mask_version
    requests = prompts_of_many_lengths(8, masked=True)
    newer = deepcopy(policy)
    perturb(newer, seed=5, scale=0.2)

    load(engine, newer, engine.weight_version + 1)  # the policy alone
    check(newer, mask, NUCLEUS, requests, finish(engine, requests))
    assert engine.mask_version == first

    engine.load_mask(*weights(newer, engine.weight_version, mask_version=engine.weight_version))
    check(newer, newer, NUCLEUS, requests, finish(engine, requests))
    assert engine.mask_version == engine.weight_version


def test_requests_that_are_not_masked_cost_the_mask_model_nothing(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any
) -> None:
    engine: Any = get_masked(get_engine, name, policy, mask, NUCLEUS)
    masked = prompts_of_many_lengths(6, masked=True)
    free = [Request(100 + r.id, r.tokens, r.sampling, r.seed) for r in with_sampling(masked, masked=False)]
    calls: list[int] = []
    hook = engine._mask_lm.register_forward_pre_hook(lambda *_: calls.append(1))
    generations = finish(engine, free)
    assert not calls

    together = finish(engine, [*masked, *free])  # side by side they are what they are alone
    hook.remove()
    assert calls
    check(policy, mask, NUCLEUS, masked, together)
    assert {r.id: generations[r.id].tokens for r in free} == {r.id: together[r.id].tokens for r in free}
    assert worst_difference(policy, free, together) < TOLERANCE


def test_a_masked_answer_does_not_depend_on_its_neighbours(
    get_engine: Callable[..., Engine], name: Name, policy: Any, mask: Any
) -> None:
    engine = get_masked(get_engine, name, policy, mask, NUCLEUS)
    requests = prompts_of_many_lengths(10, masked=True)
    together = finish(engine, requests)

    for request in requests:
        assert finish(engine, [request])[request.id].tokens == together[request.id].tokens


def test_an_engine_without_a_mask_refuses_masked_requests(
    get_engine: Callable[..., Engine], models: dict[str, Path]
) -> None:
    engine = get_engine("transformers", "t5")
    with pytest.raises(InputError, match="without a mask_rule"):
        engine.add(Request(0, (3, 4), Sampling(max_tokens=4, masked=True), seed=0))
    with pytest.raises(InputError, match="without a mask_rule"):
        engine.load_mask(*weights(load_lm(models["t5"]), 1, mask_version=1))
    assert engine.mask_version is None and engine.num_unfinished == 0


def test_beams_are_not_searched_under_a_mask(get_engine: Callable[..., Engine]) -> None:
    engine = get_engine("transformers", "t5", NUCLEUS)
    sampling = Sampling(max_tokens=4, temperature=0.0, num_beams=2, masked=True)
    with pytest.raises(InputError, match=r"beam search with 2 beams needs .* no mask .* masked=True"):
        engine.add(Request(0, (3, 4), sampling, seed=0))
