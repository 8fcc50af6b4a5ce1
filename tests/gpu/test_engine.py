"""vLLM on a GPU: its log-probabilities are those of Hugging Face's pass, before and after new weights."""

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest
import torch

from contracts.rollout import Sampling
from rollout_workers.engines.base import Request
from rollout_workers.engines.vllm_engine import VLLMEngine
from rollout_workers.settings import RolloutSettings
from tests.rollout_workers.generation import finish, load, load_lm, perturb, worst_difference

pytestmark = [pytest.mark.gpu, pytest.mark.vllm]
# Twice the largest step of a log-probability, 0.15, between Hugging Face's passes in float32 and in bfloat16
ROUNDING = 0.3
SETTINGS = RolloutSettings(max_concurrent=32, gpu_memory_utilization=0.3, sleep=True, kv_cache_gib=0.25)
# Graphs of a second engine in one process fail, so it has none.
WHILE_WRITING = SETTINGS.model_copy(update={"max_staleness": 1, "engine_args": {"enforce_eager": True}})
versions = count(1)


@pytest.fixture(scope="module")
def engine(model: Path) -> Iterator[VLLMEngine]:
    made = VLLMEngine(str(model), str(model), None, SETTINGS)
    yield made
    made.sleep()  # its memory is needed by the runs of the next file
    torch.cuda.empty_cache()


def requests(count: int = 16, max_tokens: int = 24, min_tokens: int = 0) -> list[Request]:
    sampling = Sampling(max_tokens=max_tokens, min_tokens=min_tokens)
    return [
        Request(i, tuple(1 + (5 * i + 7 * k) % 60 for k in range(1 + i % 12)), sampling, seed=1000 + i)
        for i in range(count)
    ]


def test_what_it_writes_has_the_probabilities_of_its_model(engine: VLLMEngine, model: Path) -> None:
    lm = load_lm(model)
    load(engine, lm, next(versions))
    batch = requests()
    assert worst_difference(lm, batch, finish(engine, batch)) < ROUNDING


def test_new_weights_are_those_that_write(engine: VLLMEngine, model: Path) -> None:
    lm = load_lm(model)
    load(engine, lm, next(versions))
    batch = requests()
    before = finish(engine, batch)
    perturb(lm, seed=1)
    load(engine, lm, next(versions))
    assert worst_difference(lm, batch, before) > 3 * ROUNDING
    assert worst_difference(lm, batch, finish(engine, batch)) < ROUNDING


def test_asleep_it_leaves_its_memory_and_awake_it_is_the_same(engine: VLLMEngine, model: Path) -> None:
    load(engine, load_lm(model), next(versions))
    texts = [(*request.tokens, 1, 2, 3) for request in requests(8)]
    before, free = engine.logprobs(texts), torch.cuda.mem_get_info()[0]
    engine.sleep()
    assert torch.cuda.mem_get_info()[0] > free + 1e9
    assert engine.logprobs(texts) == before


def test_each_token_carries_the_version_that_wrote_it(engine: VLLMEngine, model: Path) -> None:
    """Weights that come while texts are written have an engine whose steps do not run ahead."""
    engine.sleep()  # its memory is needed here
    engine = VLLMEngine(str(model), str(model), None, WHILE_WRITING)
    assert not engine._engine.vllm_config.scheduler_config.async_scheduling
    lm, first, second = load_lm(model), next(versions), next(versions)
    load(engine, lm, first)
    batch = requests(4, max_tokens=12, min_tokens=12)
    for request in batch:
        engine.add(request)
    for _ in range(5):
        assert engine.step() == []
    written = {key: engine._tokens_so_far(active) for key, active in engine._active.items()}
    load(engine, lm, second)
    for generation in finish(engine).values():
        num_first = written[str(generation.request_id)]
        assert generation.versions == (first,) * num_first + (second,) * (len(generation.tokens) - num_first)
