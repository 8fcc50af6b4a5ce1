"""Both engines against one Hugging Face pass: the same distribution, sampled as requested."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, MambaConfig, MistralConfig

from contracts.errors import InputError
from contracts.rollout import FinishReason, Sampling
from learner.publishing.weight_publisher import publish
from rollout_workers.engines.base import Engine, Generation, Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from tests.models import make_tiny_model
from tests.rollout_workers.generation import (
    EOS,
    NAMES,
    SETTINGS,
    VOCAB,
    WINDOW,
    Name,
    finish,
    generated_by_transformers,
    load,
    load_lm,
    logits_TV,
    logprobs_T,
    perturb,
    prompts_of_many_lengths,
    worst_difference,
)

TOLERANCE = 1e-4


@pytest.mark.parametrize("model", NAMES)
def test_logprobs_are_the_models_also_after_ten_weight_loads(
    kind: str, model: Name, models: dict[str, Path], get_engine: Callable[..., Engine]
) -> None:
    engine, lm = get_engine(kind, model), load_lm(models[model])
    load(engine, lm, 0)
    requests = prompts_of_many_lengths(16)
    assert worst_difference(lm, requests, finish(engine, requests)) < TOLERANCE

    for version in range(1, 11):
        perturb(lm, seed=version)
        load(engine, lm, version)
        probe = publish(lm, version, "float32")[0].probe
        assert engine.logprobs([probe.tokens]) == [pytest.approx(probe.logprobs, abs=TOLERANCE)]

    after = finish(engine, requests)
    assert worst_difference(lm, requests, after) < TOLERANCE
    assert worst_difference(load_lm(models[model]), requests, after) > 0.1  # the old weights' are others
    assert {version for generation in after.values() for version in generation.versions} == {10}


def test_a_seed_draws_the_same_tokens_whoever_is_generated_beside_it(engine: Engine) -> None:
    requests = prompts_of_many_lengths(12)
    together = finish(engine, requests)
    backwards = finish(engine, reversed(requests))
    alone = {request.id: finish(engine, [request])[request.id] for request in requests}

    for request in requests:
        assert together[request.id].tokens == backwards[request.id].tokens == alone[request.id].tokens
        assert together[request.id].behavior_logprobs == pytest.approx(
            alone[request.id].behavior_logprobs, abs=1e-5
        )


def test_other_seeds_draw_other_tokens(engine: Engine) -> None:
    (request,) = prompts_of_many_lengths(1, min_tokens=20)
    generations = finish(engine, [replace(request, id=seed, seed=seed) for seed in range(8)])

    assert len({generation.tokens for generation in generations.values()}) == 8


def test_first_tokens_come_as_often_as_the_softmax_says(engine: Engine, lm: Any) -> None:
    prompt, draws = (4, 9, 11), 1500
    sampling = Sampling(max_tokens=1)
    generations = finish(engine, [Request(seed, prompt, sampling, seed) for seed in range(draws)])

    expected = draws * logits_TV(lm, prompt, (0,))[0].softmax(-1).double().numpy()
    counts = np.bincount([g.tokens[0] for g in generations.values()], minlength=len(expected))
    often = expected >= 5  # the rest in one bin, as Pearson's test asks
    expected = np.append(expected[often], expected[~often].sum())
    counts = np.append(counts[often], counts[~often].sum())
    chi_square = ((counts - expected) ** 2 / expected).sum()
    freedom = len(expected) - 1
    # Wilson and Hilferty's cube-root normal; 4 standard deviations, with seeds that never change.
    assert (chi_square / freedom) ** (1 / 3) < 1 - 2 / (9 * freedom) + 4 * (2 / (9 * freedom)) ** 0.5
    assert often.sum() >= 8  # the distribution is broad enough to tell


def test_temperature_zero_writes_what_greedy_decoding_writes(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(6, temperature=0.0)
    generations = finish(engine, requests)

    for request in requests:
        prompt = torch.tensor([request.tokens])
        greedy = lm.generate(
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=20
        )[0, len(request.tokens) :]
        assert generations[request.id].tokens == tuple(greedy.tolist())
    assert worst_difference(lm, requests, generations) < TOLERANCE


def test_a_repetition_penalty_counts_the_prompt_and_the_answer(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(6, temperature=0.0, repetition_penalty=1.8)
    generations = finish(engine, requests)
    for request in requests:
        (expected,) = generated_by_transformers(lm, [request], repetition_penalty=1.8)
        assert generations[request.id].tokens == expected
    plain = finish(engine, prompts_of_many_lengths(6, temperature=0.0))
    assert any(generations[i].tokens != plain[i].tokens for i in generations)


def test_ignoring_the_end_writes_on_to_the_limit(engine: Engine, lm: Any) -> None:
    """Half the requests; the others of the same batch end where the model ends them."""
    plain = prompts_of_many_lengths(12, min_tokens=2)
    requests = [replace(r, sampling=replace(r.sampling, ignore_eos=r.id % 2 == 0)) for r in plain]
    generations, ended = finish(engine, requests), finish(engine, plain)
    behind = 0
    for request in requests:
        got, before = generations[request.id], ended[request.id]
        assert EOS not in got.tokens[:2]  # the minimum length holds all the same
        if not request.sampling.ignore_eos:
            assert (got.tokens, got.finish_reason) == (before.tokens, before.finish_reason)
            continue
        assert len(got.tokens) == 20 and got.finish_reason is FinishReason.LENGTH
        assert got.tokens[: len(before.tokens)] == before.tokens  # the seed draws the same, then goes on
        behind += EOS in got.tokens[:-1]
        assert got.text == engine.tokenizer.decode(got.tokens, skip_special_tokens=True)
    assert behind >= 3
    assert worst_difference(lm, requests, generations) < TOLERANCE


@pytest.mark.parametrize(
    "warped",
    [
        {"top_k": 3},
        {"top_p": 0.6},
        {"temperature": 0.7},
        {"temperature": 1.3, "top_k": 6, "top_p": 0.8},
    ],
    ids=str,
)
def test_warped_sampling_gives_the_logprobs_of_what_is_left_renormalised(
    engine: Engine, lm: Any, warped: dict[str, float]
) -> None:
    requests = prompts_of_many_lengths(24, **warped)
    generations = finish(engine, requests)

    for request in requests:
        generation = generations[request.id]
        rows_TV = logits_TV(lm, request.tokens, generation.tokens).double().numpy()
        expected = [warped_logprobs(row_V, request.sampling) for row_V in rows_TV]
        assert [row[token] for row, token in zip(expected, generation.tokens, strict=True)] == pytest.approx(
            generation.behavior_logprobs, abs=TOLERANCE
        )


def warped_logprobs(logits_V: np.ndarray[Any, Any], sampling: Sampling) -> dict[int, float]:
    """By the definitions, token by token: only kept tokens are in the result."""
    scaled = logits_V / sampling.temperature
    order = sorted(range(len(scaled)), key=lambda token: -scaled[token])
    kept = order[: sampling.top_k or None]
    weights = np.exp(scaled[kept] - scaled[kept[0]])
    shares = weights / weights.sum()
    nucleus = next(n for n in range(1, len(kept) + 1) if n == len(kept) or shares[:n].sum() >= sampling.top_p)
    shares = shares[:nucleus] / shares[:nucleus].sum()
    return dict(zip(kept[:nucleus], np.log(shares).tolist(), strict=True))


def test_the_end_token_is_part_of_the_answer_but_not_of_its_text(engine: Engine) -> None:
    generations = finish(engine, prompts_of_many_lengths(48, max_tokens=40)).values()

    stopped = [generation for generation in generations if generation.finish_reason is FinishReason.STOP]
    cut = [generation for generation in generations if generation.finish_reason is FinishReason.LENGTH]
    assert stopped and cut
    for generation in stopped:
        assert generation.tokens[-1] == EOS and EOS not in generation.tokens[:-1]
        assert "<eos>" not in generation.text
        assert len(generation.text.split()) <= len(generation.tokens) - 1
    for generation in cut:
        assert len(generation.tokens) == 40 and EOS not in generation.tokens


def test_no_end_before_min_tokens_and_the_logprobs_know(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(48, min_tokens=10, max_tokens=15)
    free = finish(engine, [replace(r, sampling=Sampling(max_tokens=15)) for r in requests])
    generations = finish(engine, requests)

    assert min(len(generation.tokens) for generation in free.values()) < 10  # or nothing was tested
    assert min(len(generation.tokens) for generation in generations.values()) >= 10
    for request in requests:
        generation = generations[request.id]
        rows_TV = logits_TV(lm, request.tokens, generation.tokens)
        rows_TV[:10, EOS] = -torch.inf
        expected = rows_TV.log_softmax(-1)[range(len(generation.tokens)), generation.tokens]
        assert generation.behavior_logprobs == pytest.approx(expected.tolist(), abs=TOLERANCE)


def test_a_stop_string_ends_the_answer_and_is_cut_off_its_text(engine: Engine) -> None:
    request, free = a_full_answer(engine)
    words = free.text.split()
    first = next(i for i in range(3, 10) if words[i] not in words[:i])

    stopping = replace(request, sampling=Sampling(max_tokens=10, stop=("zz", words[first])))
    generation = finish(engine, [stopping])[request.id]

    assert generation.finish_reason is FinishReason.STOP
    assert generation.tokens == free.tokens[: first + 1]  # the tokens that were drawn stay
    assert generation.text.split() == words[:first]


def test_a_stop_string_within_min_tokens_does_not_count(engine: Engine) -> None:
    request, free = a_full_answer(engine)
    word = free.text.split()[0]

    def length(min_tokens: int) -> int:
        sampling = Sampling(max_tokens=10, min_tokens=min_tokens, stop=(word,))
        return len(finish(engine, [replace(request, sampling=sampling)])[request.id].tokens)

    assert length(min_tokens=0) == 1
    assert length(min_tokens=1) > 1


def a_full_answer(engine: Engine) -> tuple[Request, Generation]:
    """A request that writes ten tokens, each a word: no special ones among them."""
    requests = prompts_of_many_lengths(64, max_tokens=10)
    generations = finish(engine, requests)
    full = next(
        r for r in requests if len(generations[r.id].tokens) == 10 and min(generations[r.id].tokens) > 2
    )
    return full, generations[full.id]


def test_an_answer_ends_where_the_models_window_ends(engine: Engine, lm: Any) -> None:
    prompt = tuple(3 + i % 20 for i in range(WINDOW - 6))
    request = Request(0, prompt, Sampling(max_tokens=20, min_tokens=20), seed=1)
    generation = finish(engine, [request])[0]

    assert len(generation.tokens) == 6 and generation.finish_reason is FinishReason.LENGTH


def test_every_token_carries_the_version_it_was_drawn_with(engine: Engine, lm: Any) -> None:
    """Only the head changes, so keys and values in the cache are the same under all three versions, and
    a pass with the right version's head must give the token's log-probability.
    """
    first = engine.weight_version
    requests = prompts_of_many_lengths(5, min_tokens=12, max_tokens=12)
    expected = {first: scored_by(lm)}
    for request in requests:
        engine.add(request)
    for version, steps in ((first + 1, 4), (first + 2, 3)):
        for _ in range(steps):
            engine.step()
        perturb(lm, seed=version, scale=0.2, only="lm_head")
        load(engine, lm, version)
        expected[version] = scored_by(lm)
    generations = finish(engine)

    for request in requests:
        generation = generations[request.id]
        assert list(generation.versions) == sorted(generation.versions)
        assert set(generation.versions) == set(expected)
        passes = {
            version: score(request, generation.tokens, forbidden=(EOS,))
            for version, score in expected.items()
        }
        for t, version in enumerate(generation.versions):
            assert generation.behavior_logprobs[t] == pytest.approx(passes[version][t], abs=TOLERANCE)
            others = [passes[other][t] for other in expected if other != version]
            assert all(abs(generation.behavior_logprobs[t] - other) > TOLERANCE for other in others)


def scored_by(lm: Any) -> Callable[..., list[float]]:
    """A pass with the head as it is now."""
    head = lm.lm_head.weight.detach().clone()

    def score(request: Request, tokens: tuple[int, ...], forbidden: tuple[int, ...]) -> list[float]:
        before = lm.lm_head.weight.detach().clone()
        with torch.no_grad():
            lm.lm_head.weight.copy_(head)
            rows_TV = logits_TV(lm, request.tokens, tokens)
            lm.lm_head.weight.copy_(before)
        rows_TV[:, list(forbidden)] = -torch.inf
        return rows_TV.log_softmax(-1)[range(len(tokens)), tokens].tolist()

    return score


def test_a_prompt_seen_under_old_weights_is_read_again_under_new_ones(engine: Engine, lm: Any) -> None:
    prompt = tuple(3 + (i * i) % 20 for i in range(WINDOW - 40))
    request = Request(0, prompt, Sampling(max_tokens=8), seed=3)
    for _ in range(2):  # the second time its prefix can come from a cache
        assert worst_difference(lm, [request], finish(engine, [request])) < TOLERANCE

    perturb(lm, seed=77)
    load(engine, lm, engine.weight_version + 1)

    assert worst_difference(lm, [request], finish(engine, [request])) < TOLERANCE


def test_a_probe_in_the_middle_of_generation_loses_nothing(engine: Engine, lm: Any) -> None:
    requests = [replace(r, sampling=Sampling(max_tokens=1 + r.id)) for r in prompts_of_many_lengths(8)]
    for request in requests:
        engine.add(request)
    generations = {generation.request_id: generation for generation in engine.step()}
    probe = publish(lm, 1, "float32")[0].probe

    assert engine.logprobs([probe.tokens]) == [pytest.approx(probe.logprobs, abs=TOLERANCE)]

    generations |= finish(engine)
    assert sorted(generations) == list(range(8))
    assert worst_difference(lm, requests, generations) < TOLERANCE


def test_after_abort_all_nothing_is_left_and_new_requests_are_served(engine: Engine, lm: Any) -> None:
    for request in prompts_of_many_lengths(6):
        engine.add(request)
    engine.step()
    engine.abort_all()

    assert engine.num_unfinished == 0
    (request,) = prompts_of_many_lengths(1, max_tokens=3)
    assert finish(engine, [request])[0].behavior_logprobs == pytest.approx(
        logprobs_T(lm, request.tokens, finish(engine, [request])[0].tokens).tolist(), abs=TOLERANCE
    )


def test_requests_that_are_given_up_leave_the_batch_and_the_others_draw_the_same(engine: Engine) -> None:
    requests = prompts_of_many_lengths(6, min_tokens=10)
    alone = finish(engine, requests)
    for request in requests:
        engine.add(request)
    engine.step()
    engine.abort([requests[1].id, requests[4].id, 10**6])

    assert engine.num_unfinished == 4
    left = finish(engine)
    assert sorted(left) == sorted({request.id for request in requests} - {requests[1].id, requests[4].id})
    assert all(left[number].tokens == alone[number].tokens for number in left)
    engine.add(requests[0])
    engine.abort([requests[0].id])
    assert engine.num_unfinished == 0


def test_progress_is_counted_in_tokens(engine: Engine) -> None:
    before = engine.num_generated
    generations = finish(engine, prompts_of_many_lengths(4, min_tokens=5, max_tokens=5))

    assert engine.num_generated - before == sum(len(g.tokens) for g in generations.values()) == 20


def test_more_requests_than_fit_at_once_are_served_in_turn(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(150, max_tokens=4)  # 64 fit

    assert worst_difference(lm, requests, finish(engine, requests)) < TOLERANCE


def test_a_model_that_sees_only_the_newest_tokens_does_so_here_too(tmp_path: Path) -> None:
    lm, engine = made_of(tmp_path, MistralConfig(sliding_window=6, **TINY))
    requests = prompts_of_many_lengths(12)

    assert worst_difference(lm, requests, finish(engine, requests)) < TOLERANCE
    lm.config.sliding_window = None
    assert worst_difference(lm, requests, finish(engine, requests)) > 0.01  # or nothing was tested


def test_a_model_that_remembers_more_than_keys_and_values_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"keys and values only; mamba .* Set rollout.engine=vllm"):
        made_of(tmp_path, MambaConfig(vocab_size=23, hidden_size=64, num_hidden_layers=2))


TINY = {
    "vocab_size": 23,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "initializer_range": 0.15,
    "eos_token_id": EOS,
}


def made_of(folder: Path, config: Any) -> tuple[Any, Engine]:
    """A random model and the transformers engine on it, with the tokenizer of any tiny model."""
    make_tiny_model(folder, vocab=VOCAB)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    return load_lm(folder), TransformersEngine(str(folder), str(folder), None, SETTINGS)
