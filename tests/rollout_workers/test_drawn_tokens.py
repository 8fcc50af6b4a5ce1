"""Tokens collected from vLLM's core as arrays: the same as by vLLM's own output processor, to the bit."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from contracts.errors import RunError
from rollout_workers.engines import vllm_engine
from rollout_workers.engines.base import Generation, Request
from rollout_workers.engines.drawn_tokens import Drawn
from tests.rollout_workers.conftest import versions
from tests.rollout_workers.generation import (
    finish,
    load,
    load_lm,
    perturb,
    prompts_of_many_lengths,
    with_sampling,
)


def output(tokens: list[int], scored: list[int], logprobs: list[float]) -> Any:
    arrays = SimpleNamespace(
        logprob_token_ids=np.array(scored)[:, None], logprobs=np.array(logprobs, np.float32)[:, None]
    )
    return SimpleNamespace(new_token_ids=tokens, new_logprobs=arrays)


def test_steps_are_joined_in_order() -> None:
    drawn = Drawn()
    assert drawn.one_each() == ()
    drawn.take(output([7], [7], [-0.5]))
    drawn.take(output([], [], []))
    drawn.take(output([8, 9], [8, 9], [-0.25, -2.0]))
    assert drawn.tokens == [7, 8, 9]
    assert drawn.one_each() == (-0.5, -0.25, -2.0)


def test_log_probabilities_of_other_tokens_are_an_error() -> None:
    drawn = Drawn()
    drawn.take(output([7, 8], [7, 9], [-0.5, -0.5]))
    with pytest.raises(RunError, match=r"of the tokens \[7, 9\] for the tokens \[7, 8\]"):
        drawn.one_each()


def requests() -> list[Request]:
    """Return requests of many lengths; some may not end early, some have stop strings."""
    plain = prompts_of_many_lengths(18)
    some = with_sampling(plain[:6], min_tokens=5, max_tokens=30, temperature=1.5)
    longest = with_sampling(plain[6:9], ignore_eos=True)
    stopped = with_sampling(plain[9:12], stop=("c", "d e"), max_tokens=30)
    return [*some, *longest, *stopped, *plain[12:]]


def everything(engine: Any, models: dict[str, Path]) -> Any:
    """Return texts written while texts are scored, weights are replaced, and requests are given up."""
    first, second = load_lm(models["llama"]), load_lm(models["llama"])
    perturb(second, seed=3)
    load(engine, first, 1)
    generations: dict[int, Generation] = {}
    for request in requests():
        engine.add(request)
    for _ in range(3):
        generations |= {one.request_id: one for one in engine.step()}
    scores = engine.logprobs([(4, 5, 6, 7), (8, 9)])
    engine.abort([0, 7, 10])
    load(engine, second, 2)
    generations |= finish(engine)
    assert not engine._drawn and not engine._active
    engine.add(replace(requests()[0], id=99))
    engine.step()
    engine.abort_all()
    assert not engine._drawn and not engine.num_unfinished
    load(engine, first, next(versions))
    return scores, generations


@pytest.mark.vllm
def test_all_is_as_by_vllms_output_processor(
    models: dict[str, Path], get_engine: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = get_engine("vllm", "llama")
    collected = everything(engine, models)
    monkeypatch.setattr(vllm_engine, "Drawn", lambda: None)  # all requests go vLLM's way
    processed = everything(engine, models)
    assert collected == processed
    rollout = collected[1]
    assert sorted(rollout) == sorted({*range(18)} - {0, 7, 10})
    assert any(set(one.versions) == {1, 2} for one in rollout.values())
