"""Engines that sleep: whatever comes first wakes them, and nothing that was remembered before is trusted.

On a CPU nothing is freed. That keys and values are gone is made so by hand; that weights come back, only a
GPU can show.
"""

from collections.abc import Callable
from typing import Any

import pytest

from contracts.rollout import MaskRule, Sampling
from rollout_workers.engines.base import Engine, Request
from rollout_workers.engines.transformers_engine import TransformersEngine
from rollout_workers.engines.vllm_engine import VLLMEngine
from rollout_workers.worker import RolloutWorker
from tests.rollout_workers.generation import (
    SETTINGS,
    finish,
    load,
    perturb,
    prompts_of_many_lengths,
    weights,
    worst_difference,
)
from tests.rollout_workers.test_worker import MANIFEST, gather, ids, lease

TOLERANCE = 1e-4
TEXTS = [(4, 9, 11, 5), (7, 7, 12)]
REQUEST = Request(0, (4, 9, 11), Sampling(max_tokens=2), seed=1)


def is_asleep(engine: Engine) -> bool:
    """As vLLM itself sees it; the other engine has nowhere to go on a CPU."""
    return isinstance(engine, VLLMEngine) and engine._engine.is_sleeping()


def test_texts_and_logprobs_are_those_of_an_engine_that_did_not_sleep(engine: Engine, lm: Any) -> None:
    requests = prompts_of_many_lengths(12)
    greedy = prompts_of_many_lengths(6, temperature=0.0)
    before, greedy_before, scores = finish(engine, requests), finish(engine, greedy), engine.logprobs(TEXTS)

    engine.sleep()
    assert engine.logprobs(TEXTS) == [pytest.approx(row, abs=1e-6) for row in scores]
    engine.sleep()
    after = finish(engine, requests)
    engine.sleep()
    greedy_after = finish(engine, greedy)

    for generations, expected in ((after, before), (greedy_after, greedy_before)):
        assert {id: generation.tokens for id, generation in generations.items()} == {
            id: generation.tokens for id, generation in expected.items()
        }
    assert worst_difference(lm, [*requests], after) < TOLERANCE


@pytest.mark.parametrize("call", ["add", "logprobs", "load_weights"])
def test_whatever_comes_first_wakes_it(engine: Engine, lm: Any, call: str) -> None:
    calls: dict[str, Callable[[], Any]] = {
        "add": lambda: engine.add(REQUEST),
        "logprobs": lambda: engine.logprobs(TEXTS),
        "load_weights": lambda: load(engine, lm, engine.weight_version),
    }
    for _ in range(2):  # the second time there is nothing more to leave
        engine.sleep()
    assert is_asleep(engine) == isinstance(engine, VLLMEngine)
    calls[call]()
    assert not is_asleep(engine)
    engine.abort_all()


def test_weights_that_come_while_it_sleeps_are_the_ones_it_wakes_with(engine: Engine, lm: Any) -> None:
    engine.sleep()
    perturb(lm, seed=5)
    load(engine, lm, engine.weight_version + 1)
    requests = prompts_of_many_lengths(8)
    assert worst_difference(lm, requests, finish(engine, requests)) < TOLERANCE


@pytest.mark.vllm
@pytest.mark.parametrize("kind", ["vllm"])
def test_keys_and_values_from_before_are_not_trusted(engine: Engine, lm: Any) -> None:
    """They are overwritten: a long prefix that is read from there once more gives other log-probabilities."""
    assert isinstance(engine, VLLMEngine)
    prompt = tuple(3 + (i * i) % 20 for i in range(200))
    request = Request(0, prompt, Sampling(max_tokens=8), seed=3)

    def read_again(sleeping: bool) -> float:
        finish(engine, [request])
        if sleeping:
            engine.sleep()
        overwrite_cache(engine)
        return worst_difference(lm, [request], finish(engine, [request]))

    assert read_again(sleeping=False) > 0.01  # or nothing was tested
    assert read_again(sleeping=True) < TOLERANCE


def overwrite_cache(engine: VLLMEngine) -> None:
    runner = engine._engine.model_executor.driver_worker.worker.model_runner
    for cache in runner.kv_caches:
        cache.normal_()


def test_a_mask_that_comes_wakes_it_too(get_engine: Callable[..., Engine], lm: Any) -> None:
    engine = get_engine("transformers", "llama", MaskRule(top_p=0.6))
    assert isinstance(engine, TransformersEngine)
    engine.sleep()
    engine.load_mask(*weights(lm, 4, mask_version=4))
    assert engine.mask_version == 4


# A worker


def test_a_worker_sleeps_only_with_nothing_to_do() -> None:
    address = "tests.rollout_workers.engines:CountingEngine"
    worker = RolloutWorker("none", "none", None, address, SETTINGS)
    worker.ready()
    worker.submit([lease(1, num_tokens=100)])
    while worker.poll(0.02).num_generated < 5:
        pass

    assert not worker.sleep()
    assert ids(gather(worker, 1)) == [1]
    assert worker.sleep() and worker._engine.is_asleep
    worker.submit([lease(2, num_tokens=2)])
    assert ids(gather(worker, 1)) == [2]
    assert worker.sleep() and worker.logprobs(TEXTS) and not worker._engine.is_asleep
    assert worker.sleep() and worker.load_weights(MANIFEST, {}) < 60 and not worker._engine.is_asleep
