"""NLPO inside vLLM against two Hugging Face models: only what the mask allows is sampled, and the
log-probabilities know of nothing else.
"""

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.errors import InputError
from contracts.rollout import FinishReason, MaskRule, Sampling
from contracts.weights import Probe
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.engines.vllm_engine import VLLMEngine
from tests.models import make_tiny_model
from tests.rollout_workers.generation import (
    EOS,
    SETTINGS,
    VOCAB,
    WINDOW,
    finish,
    load,
    load_lm,
    logits_TV,
    logprobs_T,
    perturb,
    prompts_of_many_lengths,
    weights,
    with_sampling,
    worst_difference,
)

pytestmark = pytest.mark.vllm

TOLERANCE = 1e-5
SECOND_END = 7  # Qwen2's other end token here, by its generation config
RULES = {
    "llama": MaskRule(top_p=0.8),
    "gpt2": MaskRule(top_p=0.5, min_tokens_to_keep=2),
    "qwen2": MaskRule(top_k=4),
}
PROMPT = (4, 9, 11)


class Twin:
    """An engine with a mask, and the two Hugging Face models whose weights its halves have."""

    def __init__(self, folder: Path, rule: MaskRule) -> None:
        self.engine: Engine = VLLMEngine(str(folder), str(folder), None, SETTINGS, rule)
        self.rule, self.folder, self.versions = rule, folder, count(1)
        self.fresh = finish(self.engine, masked(8))  # by the checkpoint's own weights
        self.reset()

    def reset(self) -> None:
        """A policy and a mask that differ from each other and from the checkpoint."""
        self.policy, self.mask = load_lm(self.folder), load_lm(self.folder)
        perturb(self.policy, seed=1)
        perturb(self.mask, seed=2, scale=0.2)
        self.engine.abort_all()
        self.sync_policy()
        self.sync_mask()

    def sync_policy(self) -> None:
        load(self.engine, self.policy, next(self.versions))

    def sync_mask(self) -> None:
        version = next(self.versions)
        self.engine.load_mask(*weights(self.mask, version, mask_version=version))

    def allowed(self, request: Request, tokens: tuple[int, ...]) -> list[set[int]]:
        """By the definition, token by token: what the mask model lets each of `tokens` be."""
        logits = logits_TV(self.mask, request.tokens, tokens)
        return [likely(row_V, self.rule) for row_V in without_early_ends(logits, request)]

    def logprobs(self, request: Request, tokens: tuple[int, ...]) -> list[float]:
        """The log-probabilities of `tokens` under the policy, masked and renormalised, then warped."""
        logits = without_early_ends(logits_TV(self.policy, request.tokens, tokens), request)
        logprobs = []
        for row_V, kept, token in zip(logits, self.allowed(request, tokens), tokens, strict=True):
            logprobs.append(warped(row_V, kept, request.sampling)[token])
        return logprobs


def without_early_ends(logits_TV: Tensor, request: Request) -> Tensor:
    logits_TV[: request.sampling.min_tokens, EOS] = -torch.inf
    return logits_TV


def likely(logits_V: Tensor, rule: MaskRule) -> set[int]:
    """Tokens in the order of their probability, until they are enough."""
    shares = logits_V.double().softmax(-1).tolist()
    kept: list[int] = []
    for token in sorted(range(len(shares)), key=lambda token: -shares[token]):
        enough = len(kept) == rule.top_k if rule.top_k else sum(shares[t] for t in kept) >= (rule.top_p or 1)
        if enough and len(kept) >= rule.min_tokens_to_keep:
            break
        kept.append(token)
    return set(kept)


def warped(logits_V: Tensor, kept: set[int], sampling: Sampling) -> dict[int, float]:
    """The rest after the mask: temperature, top-k, top-p; only tokens that can be drawn are in the result."""
    order = sorted(
        (token for token in kept if logits_V[token].isfinite()), key=lambda token: -logits_V[token]
    )
    order = order[: sampling.top_k or None]
    shares = (logits_V[order].double() / sampling.temperature).softmax(-1)
    nucleus = next(
        n for n in range(1, len(order) + 1) if n == len(order) or shares[:n].sum() >= sampling.top_p
    )
    logprobs = (shares[:nucleus] / shares[:nucleus].sum()).log().tolist()
    return dict(zip(order[:nucleus], logprobs, strict=True))


@pytest.fixture(scope="session")  # an engine that goes takes vLLM's process groups from those that stay
def get_twin(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Twin]:
    folders = {**models, "qwen2": make_qwen2(tmp_path_factory.mktemp("qwen2"))}
    made: dict[str, Twin] = {}

    def get(name: str) -> Twin:
        if name in made:
            made[name].reset()
        else:
            made[name] = Twin(folders[name], RULES[name])
        return made[name]

    return get


def make_qwen2(folder: Path) -> Path:
    """With two end tokens, and a tied head that is in the checkpoint nevertheless, as some tools write it."""
    from safetensors.torch import load_file, save_file
    from transformers import AutoModelForCausalLM, Qwen2Config

    make_tiny_model(folder, vocab=VOCAB, window=WINDOW)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = Qwen2Config(
        vocab_size=len(VOCAB) + 3,
        max_position_embeddings=WINDOW,
        num_key_value_heads=1,
        tie_word_embeddings=True,
        initializer_range=0.15,
        eos_token_id=EOS,
        **sizes,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        lm = AutoModelForCausalLM.from_config(config)
    lm.generation_config.eos_token_id = [EOS, SECOND_END]
    lm.save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    head = tensors["model.embed_tokens.weight"].clone()
    save_file({**tensors, "lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture
def twin(get_twin: Callable[[str], Twin]) -> Twin:
    return get_twin("llama")


def masked(count: int, **sampling: Any) -> list[Request]:
    return prompts_of_many_lengths(count, masked=True, **sampling)


def check(twin: Twin, requests: list[Request], generations: dict[int, Generation]) -> None:
    """Every token is one that the mask allows, with the log-probability that it has among these."""
    for request in requests:
        generation = generations[request.id]
        sets = twin.allowed(request, generation.tokens)
        assert all(token in kept for token, kept in zip(generation.tokens, sets, strict=True))
        expected = twin.logprobs(request, generation.tokens)
        assert generation.behavior_logprobs == pytest.approx(expected, abs=TOLERANCE)


@torch.no_grad()
def flatten(lm: Any) -> None:
    """Make every token equally likely, whatever the layers say."""
    lm.lm_head.weight.zero_()


def drawn(engine: Engine, is_masked: bool = True, draws: int = 300) -> set[int]:
    """The first tokens of many draws: of a flat policy, in all likelihood each that can be drawn."""
    sampling = Sampling(max_tokens=1, masked=is_masked)
    generations = finish(engine, [Request(seed, PROMPT, sampling, seed) for seed in range(draws)])
    return {generation.tokens[0] for generation in generations.values()}


@pytest.mark.parametrize("name", RULES)
def test_logprobs_are_those_of_the_renormalised_masked_policy(
    name: str, get_twin: Callable[[str], Twin]
) -> None:
    twin = get_twin(name)
    requests = masked(24)
    check(twin, requests, finish(twin.engine, requests))


@pytest.mark.parametrize("name", RULES)
def test_what_can_be_drawn_is_the_mask_and_changes_only_when_the_mask_is_synced(
    name: str, get_twin: Callable[[str], Twin]
) -> None:
    twin = get_twin(name)
    before = likely(logits_TV(twin.mask, PROMPT, (0,))[0], twin.rule)
    flatten(twin.policy)
    twin.sync_policy()
    assert drawn(twin.engine) == before
    assert drawn(twin.engine, is_masked=False) == set(range(len(VOCAB) + 3))

    perturb(twin.policy, seed=3, scale=0.3)
    flatten(twin.policy)
    twin.sync_policy()
    assert drawn(twin.engine) == before

    perturb(twin.mask, seed=4, scale=0.3)
    assert drawn(twin.engine) == before  # not synced yet
    twin.sync_mask()
    after = likely(logits_TV(twin.mask, PROMPT, (0,))[0], twin.rule)
    assert after != before
    assert drawn(twin.engine) == after


@pytest.mark.parametrize("name", RULES)
def test_both_halves_begin_with_the_checkpoints_weights(name: str, get_twin: Callable[[str], Twin]) -> None:
    twin = get_twin(name)
    twin.policy = twin.mask = load_lm(twin.folder)
    check(twin, masked(8), twin.fresh)


def test_a_twin_that_slept_has_both_halves_and_is_woken_by_either(twin: Twin) -> None:
    for wake in (twin.sync_mask, twin.sync_policy, lambda: None):
        twin.engine.sleep()
        wake()
        requests = masked(8)
        check(twin, requests, finish(twin.engine, requests))


def test_masked_and_unmasked_requests_side_by_side(twin: Twin) -> None:
    """They leave at different steps, so that rows move within the batch."""
    requests = [
        replace(request, sampling=Sampling(max_tokens=1 + (7 * request.id) % 20, masked=request.id % 3 != 0))
        for request in prompts_of_many_lengths(48)
    ]
    generations = finish(twin.engine, requests)

    free = [request for request in requests if not request.sampling.masked]
    check(twin, [request for request in requests if request.sampling.masked], generations)
    assert worst_difference(twin.policy, free, generations) < TOLERANCE
    outside = [
        token not in kept
        for request in free
        for token, kept in zip(
            generations[request.id].tokens, twin.allowed(request, generations[request.id].tokens), strict=True
        )
    ]
    assert sum(outside) > 10
    alone = finish(twin.engine, requests[10:11])[10]
    assert alone.tokens == generations[10].tokens


@pytest.mark.parametrize(
    "sampling",
    [{"temperature": 0.0}, {"temperature": 0.6}, {"temperature": 1.3, "top_k": 3, "top_p": 0.8}],
    ids=str,
)
def test_temperature_top_k_and_top_p_come_behind_the_mask(twin: Twin, sampling: dict[str, Any]) -> None:
    requests = masked(16, **sampling)
    generations = finish(twin.engine, requests)
    if sampling["temperature"] > 0:
        check(twin, requests, generations)
        return
    for request in requests:
        tokens = generations[request.id].tokens
        rows = logits_TV(twin.policy, request.tokens, tokens)
        for row_V, kept, token in zip(rows, twin.allowed(request, tokens), tokens, strict=True):
            assert token == max(kept, key=lambda token: float(row_V[token]))
    check(twin, with_sampling(requests, temperature=1.0), generations)  # unwarped, as without a mask


def test_a_mask_that_allows_only_the_end_still_lets_min_tokens_be_written(twin: Twin) -> None:
    allow_only_the_end(twin.mask)
    twin.sync_mask()
    (at_once,) = finish(twin.engine, masked(1)).values()
    assert (at_once.tokens, at_once.behavior_logprobs) == ((EOS,), (0.0,))

    requests = masked(12, min_tokens=4)
    generations = finish(twin.engine, requests)

    assert {len(generation.tokens) for generation in generations.values()} == {5}
    assert {generation.tokens[-1] for generation in generations.values()} == {EOS}
    assert {generation.finish_reason for generation in generations.values()} == {FinishReason.STOP}
    check(twin, requests, generations)


@torch.no_grad()
def allow_only_the_end(lm: Any) -> None:
    """Every token gets the same hidden state h, and token v the logit 0.05 v |h|², the end token 2 |h|²."""
    lm.model.embed_tokens.weight.copy_(lm.model.embed_tokens.weight[3].expand_as(lm.lm_head.weight))
    for layer in lm.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    hidden_H = lm.model.norm(lm.model.embed_tokens.weight[0])
    scale_V = 0.05 * torch.arange(len(lm.lm_head.weight)) / 8
    scale_V[EOS] = 2.0
    lm.lm_head.weight.copy_(scale_V[:, None] * hidden_H)


def test_a_prompt_seen_under_an_old_mask_is_read_again_under_the_new_one(twin: Twin) -> None:
    prompt = tuple(3 + (i * i) % 20 for i in range(WINDOW - 40))
    request = Request(0, prompt, Sampling(max_tokens=8, min_tokens=8, masked=True), seed=3)
    for _ in range(2):  # the second time its prefix can come from a cache
        check(twin, [request], finish(twin.engine, [request]))

    perturb(twin.mask, seed=77)
    twin.sync_mask()

    check(twin, [request], finish(twin.engine, [request]))


def test_the_probe_is_the_policys_own_also_while_masked_requests_go_on(twin: Twin) -> None:
    probe = Probe((5, 9, 3, 12, 20), tuple(logprobs_T(twin.policy, (5,), (9, 3, 12, 20)).tolist()), TOLERANCE)
    requests = masked(8)
    for request in requests:
        twin.engine.add(request)
    generations = {generation.request_id: generation for generation in twin.engine.step()}

    assert twin.engine.logprobs([probe.tokens]) == [pytest.approx(probe.logprobs, abs=TOLERANCE)]

    check(twin, requests, generations | finish(twin.engine))


def test_every_end_token_ends_a_response_and_counts_for_min_tokens(get_twin: Callable[[str], Twin]) -> None:
    twin = get_twin("qwen2")
    generations = finish(twin.engine, prompts_of_many_lengths(64)).values()
    stopped = [generation for generation in generations if generation.finish_reason is FinishReason.STOP]

    assert {generation.tokens[-1] for generation in stopped} == {EOS, SECOND_END}
    for generation in generations:
        assert not {EOS, SECOND_END} & set(generation.tokens[:-1])

    requests = prompts_of_many_lengths(64, min_tokens=6)
    for generation in finish(twin.engine, requests).values():
        assert len(generation.tokens) > 6
        assert not {EOS, SECOND_END} & set(generation.tokens[:6])
        rows_TV = logits_TV(twin.policy, requests[generation.request_id].tokens, generation.tokens)
        rows_TV[:6, [EOS, SECOND_END]] = -torch.inf
        expected = rows_TV.log_softmax(-1)[range(len(generation.tokens)), generation.tokens]
        assert generation.behavior_logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_versions_are_kept_apart(twin: Twin) -> None:
    before = (twin.engine.weight_version, twin.engine.mask_version)
    twin.sync_policy()
    policy = twin.engine.weight_version
    assert policy > before[0] and twin.engine.mask_version == before[1]
    twin.sync_mask()
    assert twin.engine.weight_version == policy and twin.engine.mask_version == policy + 1
    (generation,) = finish(twin.engine, masked(1)).values()
    assert set(generation.versions) == {policy}


def test_what_an_engine_cannot_do_is_refused(twin: Twin, get_engine: Callable[..., Engine]) -> None:
    plain = get_engine("vllm", "llama")
    with pytest.raises(InputError, match="without a mask_rule"):
        plain.add(masked(1)[0])
    with pytest.raises(InputError, match="without a mask_rule"):
        plain.load_mask(*weights(twin.mask, 1, mask_version=1))
    with pytest.raises(InputError, match="engine=transformers"):
        plain.add(Request(0, PROMPT, Sampling(max_tokens=4, temperature=0.0, num_beams=2), seed=0))
    assert plain.num_unfinished == 0 and plain.mask_version is None
