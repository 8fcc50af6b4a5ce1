"""Samplings that leave nothing to draw: their own requests fail, the others' answers stay the same."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from contracts.errors import WorkerError
from contracts.rollout import COOLEST, Sampling
from rollout_workers.engines.base import Engine, Generation, Undrawable
from tests.rollout_workers.generation import finish, load, load_lm, prompts_of_many_lengths

OVERFLOWS = 1e-300  # penalty: float32 rounds it to 0


@pytest.fixture
def drawing(get_engine: Callable[..., Engine], lm: Any) -> Engine:
    engine = get_engine("transformers", "llama")
    load(engine, lm, engine.weight_version + 1)
    return engine


def test_a_row_that_overflows_fails_alone(drawing: Engine) -> None:
    requests = prompts_of_many_lengths(8)
    alone = finish(drawing, requests)
    bad = {1, 4, 7}
    for request in requests:
        penalty = OVERFLOWS if request.id in bad else 1.0
        drawing.add(replace(request, sampling=replace(request.sampling, repetition_penalty=penalty)))
    generations: dict[int, Generation] = {}
    failed: set[int] = set()
    while drawing.num_unfinished:
        try:
            finished = drawing.step()
        except Undrawable as error:
            failed |= set(error.failed)
            finished = list(error.finished)
        generations |= {generation.request_id: generation for generation in finished}
    assert failed == bad
    assert generations.keys() == alone.keys() - bad
    for number, generation in generations.items():
        assert generation.tokens == alone[number].tokens
        assert generation.behavior_logprobs == pytest.approx(alone[number].behavior_logprobs, abs=1e-4)


def test_a_batch_of_one_that_overflows_leaves_the_engine_idle(drawing: Engine) -> None:
    drawing.add(prompts_of_many_lengths(1, repetition_penalty=OVERFLOWS)[0])
    with pytest.raises(Undrawable, match="no token to draw"):
        while drawing.num_unfinished:
            drawing.step()
    assert drawing.num_unfinished == 0
    assert len(finish(drawing, prompts_of_many_lengths(3))) == 3


def test_a_model_whose_own_logits_are_no_numbers_fails_as_a_whole(
    drawing: Engine, models: dict[str, Any]
) -> None:
    broken, version = load_lm(models["llama"]), drawing.weight_version + 1
    for weights in broken.parameters():
        torch.nn.init.constant_(weights, float("nan"))
    load(drawing, broken, version)
    drawing.add(prompts_of_many_lengths(1)[0])
    with pytest.raises(WorkerError, match="weights have diverged") as caught:
        drawing.step()
    assert not isinstance(caught.value, Undrawable)
    drawing.abort_all()


@pytest.mark.parametrize("temperature", [5e-324, 1e-300, 1e-40, 1e-38, 0.0099])
def test_a_temperature_near_zero_is_the_coolest(temperature: float) -> None:
    assert Sampling(1, temperature=temperature) == Sampling(1, temperature=COOLEST)
    assert replace(Sampling(1), temperature=temperature).temperature == 0.01
    assert Sampling(1, temperature=0).temperature == 0
