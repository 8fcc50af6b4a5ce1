"""Beam search against `generate`, and by hand."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.rollout import FinishReason, Sampling
from rollout_workers.engines.base import Engine, Request
from rollout_workers.engines.beam_search import NOTHING, Beam, Search
from tests.rollout_workers.generation import (
    EOS,
    Name,
    finish,
    generated_by_transformers,
    load,
    load_lm,
    perturb,
    prompts_of_many_lengths,
    worst_difference,
)

MODELS: tuple[Name, ...] = ("t5", "mt5", "bart", "gpt2", "llama")


@pytest.fixture(params=MODELS)
def name(request: pytest.FixtureRequest) -> Name:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def lm(name: Name, models: dict[str, Path]) -> Any:
    return load_lm(models[name])


@pytest.fixture
def engine(name: Name, lm: Any, get_engine: Callable[..., Engine]) -> Engine:
    engine = get_engine("transformers", name)
    load(engine, lm, engine.weight_version + 1)
    return engine


def beams(count: int, num_beams: int, **sampling: Any) -> list[Request]:
    return prompts_of_many_lengths(count, temperature=0.0, num_beams=num_beams, **sampling)


@pytest.mark.parametrize("num_beams", [2, 4, 7])
def test_the_best_beam_is_what_generate_finds(engine: Engine, lm: Any, num_beams: int) -> None:
    requests = beams(12, num_beams, max_tokens=16)
    generations = finish(engine, requests)
    expected = generated_by_transformers(lm, requests, num_beams=num_beams)
    greedy = generated_by_transformers(lm, requests)

    assert [generations[request.id].tokens for request in requests] == expected
    assert expected != greedy  # or nothing was searched
    assert worst_difference(lm, requests, generations) < 1e-4
    for generation in generations.values():
        ended = generation.tokens[-1] == EOS
        assert generation.finish_reason is (FinishReason.STOP if ended else FinishReason.LENGTH)


@pytest.mark.parametrize("penalty", [0.0, 0.6, 2.0])
def test_a_length_penalty_is_that_of_generate(engine: Engine, lm: Any, penalty: float) -> None:
    requests = beams(12, 4, max_tokens=16, length_penalty=penalty)
    generations = finish(engine, requests)
    expected = generated_by_transformers(lm, requests, num_beams=4, length_penalty=penalty)
    assert [generations[request.id].tokens for request in requests] == expected


def test_no_beam_ends_before_min_tokens(engine: Engine, lm: Any) -> None:
    requests = beams(8, 4, min_tokens=9, max_tokens=14)
    generations = finish(engine, requests)

    expected = generated_by_transformers(lm, requests, num_beams=4)
    assert [generations[request.id].tokens for request in requests] == expected
    assert min(len(generation.tokens) for generation in generations.values()) >= 9


@pytest.mark.parametrize("num_beams", [1, 2, 5])
def test_what_was_read_or_written_is_penalised_as_by_generate(
    engine: Engine, lm: Any, num_beams: int
) -> None:
    """One prompt at a time for `generate`, which would count its padding as read."""
    for least in (0, 12):
        requests = beams(8, num_beams, min_tokens=least, max_tokens=14, repetition_penalty=1.8)
        generations = finish(engine, requests)
        for request in requests:
            (expected,) = generated_by_transformers(
                lm, [request], num_beams=num_beams, repetition_penalty=1.8
            )
            assert generations[request.id].tokens == expected
        if num_beams > 1 and not least:  # the log-probabilities are still those of the model
            assert worst_difference(lm, requests, generations) < 1e-4
    if num_beams == 1:
        plain = finish(engine, beams(8, 1, min_tokens=12, max_tokens=14))
        assert any(generations[i].tokens != plain[i].tokens for i in generations)


def test_only_who_asks_for_it_is_penalised(engine: Engine) -> None:
    plain = prompts_of_many_lengths(4, temperature=0.0)
    others = prompts_of_many_lengths(4, temperature=0.0, repetition_penalty=1.8)
    beside = finish(engine, [*plain, *(Request(100 + r.id, r.tokens, r.sampling, r.seed) for r in others)])
    alone = finish(engine, plain)
    assert [beside[request.id].tokens for request in plain] == [alone[request.id].tokens for request in plain]


def test_beams_are_the_same_alone_and_beside_others(engine: Engine) -> None:
    requests = [
        *beams(6, 3, max_tokens=10),
        *(Request(100 + r.id, r.tokens, r.sampling, r.seed) for r in beams(6, 2, max_tokens=14)),
        *(Request(200 + r.id, r.tokens, r.sampling, r.seed) for r in prompts_of_many_lengths(6)),
    ]
    together = finish(engine, requests)

    for request in requests:
        assert finish(engine, [request])[request.id].tokens == together[request.id].tokens


def test_prompts_with_limits_of_their_own_stop_there(engine: Engine, lm: Any) -> None:
    requests = [
        Request(i, r.tokens, Sampling(max_tokens=2 + 3 * i, temperature=0.0, num_beams=3), seed=0)
        for i, r in enumerate(beams(5, 3))
    ]
    generations = finish(engine, requests)

    for request in requests:
        (expected,) = generated_by_transformers(lm, [request], num_beams=3)
        assert generations[request.id].tokens == expected


def test_more_beams_than_fit_at_once_are_searched_in_turn(engine: Engine, lm: Any) -> None:
    requests = beams(30, 4, max_tokens=6)  # 64 rows fit: 16 prompts
    generations = finish(engine, requests)

    expected = generated_by_transformers(lm, requests, num_beams=4)
    assert [generations[request.id].tokens for request in requests] == expected


def test_beams_carry_the_versions_of_their_weights(engine: Engine, lm: Any) -> None:
    first = engine.weight_version
    (request,) = beams(1, 3, min_tokens=6, max_tokens=6)
    engine.add(request)
    for _ in range(2):
        engine.step()
    perturb(lm, seed=4)
    load(engine, lm, first + 1)

    assert finish(engine)[0].versions == (first,) * 2 + (first + 1,) * 4


@pytest.mark.parametrize(
    "sampling",
    [
        Sampling(max_tokens=4, num_beams=2),
        Sampling(max_tokens=4, num_beams=2, temperature=0.0, stop=("a",)),
    ],
    ids=["temperature", "stop"],
)
def test_what_beam_search_cannot_do_is_refused(engine: Engine, sampling: Sampling) -> None:
    with pytest.raises(InputError, match="beam search with 2 beams needs temperature 0, no mask and no stop"):
        engine.add(Request(0, (3, 4), sampling, seed=0))
    assert engine.num_unfinished == 0


def after(parent: Beam, token: int, logprob: float) -> Beam:
    return Beam(parent, token, logprob, 1, parent.total + logprob, parent.length + 1)


def test_a_search_by_hand() -> None:
    """Two beams, end token 9. Candidates come likeliest first, four a step."""
    search = Search(Request(0, (3,), Sampling(max_tokens=5, num_beams=2), 0), 5, (9,))
    a, end, b, c = (after(NOTHING, *pair) for pair in ((4, -0.5), (9, -1.0), (5, -2.0), (6, -3.0)))

    assert search.advance([a, end, b, c]) == [0, 2]  # the end counts, and b goes on in its place
    assert search.finished == [end] and search.running == [a, b] and not search.is_done

    ab, ba, late_end, d = after(a, 7, -1.0), after(b, 7, -0.2), after(a, 9, -4.0), after(b, 8, -3.0)
    assert search.advance([ab, ba, late_end, d]) == [0, 1]
    assert search.finished == [end]  # late_end was third: too unlikely to count
    assert not search.is_done

    # Scores are means: -1.6 / 3 beats the end after one token at -1.0.
    best, e, f, g = after(ab, 9, -0.1), after(ab, 4, -3.0), after(ba, 4, -3.0), after(ba, 5, -3.5)
    assert search.advance([best, e, f, g]) == [1, 2]
    assert search.finished == [best, end]
    assert [beam.token for beam in search.finished[0].path()] == [4, 7, 9]
    assert search.is_done  # -4.5 / 3 is worse than -1.0
