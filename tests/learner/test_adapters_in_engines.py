"""Rollout workers write with the adapted model: the ratio is one with LoRA and QLoRA, in every engine.

Engines begin with the files of the base, as workers do, and are sent what differs from them.
"""

from collections.abc import Callable
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from contracts.components import find
from contracts.errors import InputError, WeightsError
from contracts.rollout import MaskRule, Sampling
from learner.algorithms.base import Algorithm
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from rollout_workers.engines import ENGINES
from rollout_workers.engines.base import Engine
from rollout_workers.worker import RolloutWorker
from tests.learner.adapted import KINDS, Kind, adapted_learner, move
from tests.learner.test_ratio_is_one import generate, push
from tests.rollout_workers.generation import SETTINGS, Name, prompts_of_many_lengths

RULE = MaskRule(top_p=0.8, min_tokens_to_keep=2)
ONE_PASS: dict[str, Any] = {"num_epochs": 1, "minibatch_size": None, "learning_rate": 3e-3}
ALGORITHMS: dict[str, Algorithm] = {
    "ppo": PPO(**ONE_PASS),
    "nlpo": NLPO(**ONE_PASS, top_p=0.8, min_tokens_to_keep=2, target_update_iterations=2),
}
vllm = pytest.mark.vllm
CASES = [
    ("transformers", "gpt2", "ppo"),
    ("transformers", "t5", "ppo"),
    ("transformers", "bart", "nlpo"),
    pytest.param("vllm", "llama", "ppo", marks=vllm),
    pytest.param("vllm", "gpt2", "ppo", marks=[vllm, pytest.mark.long]),
    pytest.param("vllm", "llama", "nlpo", marks=vllm),
]
runs = count(1)


@pytest.fixture(scope="module")
def engines(folders: Callable[[Name], Path]) -> Callable[..., Engine]:
    """One of each; what a QLoRA run has pushed, the next run's push replaces."""
    made: dict[tuple[str, Name, bool], Engine] = {}

    def engine(kind: str, model: Name, masked: bool) -> Engine:
        if (kind, model, masked) not in made:
            folder, rule = str(folders(model)), RULE if masked else None
            made[kind, model, masked] = find("engine", kind, ENGINES)(folder, folder, None, SETTINGS, rule)
        return made[kind, model, masked]

    return engine


@pytest.mark.parametrize("adapter", KINDS)
@pytest.mark.parametrize(("kind", "model", "algorithm"), CASES)
def test_the_ratio_is_one_on_the_first_pass(
    folders: Callable[[Name], Path],
    engines: Callable[..., Engine],
    kind: str,
    model: Name,
    algorithm: str,
    adapter: Kind,
) -> None:
    masked = algorithm == "nlpo"
    chosen: dict[str, Any] = {"max_tokens": 12, "masked": masked}
    learner = adapted_learner(folders(model), ALGORITHMS[algorithm], adapter, sampling=Sampling(**chosen))
    learner.version = learner.mask_version = 100 * next(runs)
    engine = engines(kind, model, masked)
    for iteration in range(3):
        push(learner, engine)
        metrics = learner.update(generate(engine, prompts_of_many_lengths(24, **chosen)))
        assert metrics["mismatch/max_ratio"] < 1 + 1e-4  # |log μ - log π_old|, of every token
        assert metrics["ratio/mean"] == pytest.approx(1, abs=1e-5)
        assert metrics["gradient_norm/policy"] > 0.01  # the next round has other weights
        if iteration == 0:
            assert metrics["kl/mean"] == pytest.approx(0, abs=1e-6)  # B is 0: the policy is the reference
            move(learner.pair.policy)
    assert metrics["kl/mean"] > 0.01


@vllm
def test_a_block_in_which_one_layer_is_adapted_arrives_whole(
    folders: Callable[[Name], Path], engines: Callable[..., Engine]
) -> None:
    """vLLM has queries, keys and values in one matrix, and here the queries alone have an adapter."""
    named = {"target_modules": ["q_proj", "up_proj"]}
    chosen: dict[str, Any] = {"max_tokens": 12}
    learner = adapted_learner(
        folders("llama"), ALGORITHMS["ppo"], sampling=Sampling(**chosen), adapter_options=named
    )
    learner.version = 100 * next(runs)
    move(learner.pair.policy)
    engine = engines("vllm", "llama", False)
    push(learner, engine)
    metrics = learner.update(generate(engine, prompts_of_many_lengths(24, **chosen)))
    assert metrics["mismatch/max_ratio"] < 1 + 1e-4


@vllm
def test_vllm_serves_the_adapter_beside_the_base(folders: Callable[[Name], Path]) -> None:
    """An adapter of rank 4, in vLLM's room for 8; its matrices alone cross the border."""
    chosen: dict[str, Any] = {"max_tokens": 12}
    learner = adapted_learner(
        folders("llama"), ALGORITHMS["ppo"], sampling=Sampling(**chosen), adapter_options={"serve": "adapter"}
    )
    folder = str(folders("llama"))
    engine = find("engine", "vllm", ENGINES)(folder, folder, None, SETTINGS, lora_rank=4)
    for iteration in range(3):
        push(learner, engine)
        manifest, arrays = learner.publish("float32")
        assert all("lora_" in name for name in arrays)
        assert manifest.num_bytes < sum(p.numel() for p in learner.pair.lm.parameters())
        (scored,) = engine.logprobs([manifest.probe.tokens])
        assert scored == pytest.approx(manifest.probe.logprobs, abs=1e-4)
        metrics = learner.update(generate(engine, prompts_of_many_lengths(24, **chosen)))
        assert metrics["mismatch/max_ratio"] < 1 + 1e-4
        if iteration == 0:
            move(learner.pair.policy)
    assert metrics["kl/mean"] > 0.01


@vllm
def test_an_architecture_that_vllm_serves_no_adapters_for_is_refused(folders: Callable[[Name], Path]) -> None:
    folder = str(folders("gpt2"))
    worker = RolloutWorker(folder, folder, None, "vllm", SETTINGS, lora_rank=4)
    with pytest.raises(
        InputError, match=r"does not support LoRA yet\. Expected model\.adapter\.serve=merged"
    ):
        worker.ready()


def test_an_engine_that_serves_no_adapters_is_refused(folders: Callable[[Name], Path]) -> None:
    folder = str(folders("gpt2"))
    worker = RolloutWorker(folder, folder, None, "transformers", SETTINGS, lora_rank=4)
    with pytest.raises(
        InputError, match=r"serve=adapter: rollout\.engine=transformers does not serve adapters"
    ):
        worker.ready()


def test_the_probe_tells_a_worker_without_the_adapter(folders: Callable[[Name], Path]) -> None:
    folder = str(folders("gpt2"))
    learner = adapted_learner(folders("gpt2"), ALGORITHMS["ppo"])
    move(learner.pair.policy)
    manifest, arrays = learner.publish("float32")
    worker = RolloutWorker(folder, folder, None, "transformers", SETTINGS)
    with pytest.raises(WeightsError, match="arrived wrong"):
        worker.load_weights(manifest, {})
    worker.load_weights(manifest, arrays)
