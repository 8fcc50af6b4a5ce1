"""Weights that go straight to vLLM's kernels: the engine writes as after vLLM's own reload."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM, BloomConfig

from contracts.rollout import MaskRule
from rollout_workers.engines.base import Engine
from rollout_workers.weights.reloading import reload_model
from tests.models import make_tiny_model
from tests.rollout_workers.conftest import versions
from tests.rollout_workers.generation import (
    NAMES,
    VOCAB,
    WINDOW,
    CausalName,
    finish,
    load,
    load_lm,
    perturb,
    prompts_of_many_lengths,
    weights,
    worst_difference,
)

pytestmark = pytest.mark.vllm


def reload(engine: Any, lm: Any, half: str = "") -> None:
    """Load the weights by vLLM's own reload alone."""
    tensors = {name: parameter.detach().clone() for name, parameter in lm.named_parameters()}
    reload_model(engine._engine.vllm_config, engine._model.get_submodule(half), tensors)
    engine._num_loads += 1  # no prefix of older weights


def written(engine: Engine, **sampling: Any) -> Any:
    """Scores of texts, and many generations at once, whose steps have many sizes."""
    generations = finish(engine, prompts_of_many_lengths(20, max_tokens=12, **sampling))
    texts = [tuple(3 + (5 * i + 7 * k) % 20 for k in range(2 + 9 * i)) for i in range(6)]
    return engine.logprobs(texts), [
        (generations[id].tokens, generations[id].behavior_logprobs) for id in sorted(generations)
    ]


def two_models(folder: Path) -> list[Any]:
    models = [load_lm(folder), load_lm(folder)]
    for seed, lm in enumerate(models):
        perturb(lm, seed)
    return models


@pytest.mark.parametrize("name", NAMES)
def test_a_direct_push_equals_vllms_reload_to_the_bit(
    name: CausalName, models: dict[str, Path], get_engine: Callable[..., Any]
) -> None:
    engine = get_engine("vllm", name)
    load(engine, load_lm(models[name]), next(versions))  # watched
    num_direct, direct = engine._loaders["policy"].num_direct, []
    for lm in two_models(models[name]):
        load(engine, lm, next(versions))
        direct.append(written(engine))
    assert engine._loaders["policy"].num_direct == num_direct + 2
    assert direct[0] != direct[1]

    for lm, expected in zip(two_models(models[name]), direct, strict=True):
        reload(engine, lm)
        assert written(engine) == expected


def test_both_halves_of_a_twin(models: dict[str, Path], get_engine: Callable[..., Any]) -> None:
    engine = get_engine("vllm", "llama", MaskRule(top_p=0.7, min_tokens_to_keep=1))
    policy, mask = two_models(models["llama"])
    for _ in range(2):
        engine.load_weights(*weights(policy, next(versions), mask_version=1))
        engine.load_mask(*weights(mask, next(versions), mask_version=1))
    assert all(engine._loaders[half].num_direct for half in ("policy", "mask"))
    direct = written(engine, masked=True)

    reload(engine, mask, "policy")
    assert written(engine, masked=True) != direct
    reload(engine, policy, "policy")
    reload(engine, mask, "mask")
    assert written(engine, masked=True) == direct


def test_what_is_no_plain_copy_is_left_to_vllm(
    models: dict[str, Path],
    get_engine: Callable[..., Any],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Bloom's queries, keys and values come interleaved; vLLM sorts them in memory of its own."""
    make_tiny_model(tmp_path, vocab=VOCAB, window=WINDOW)
    config = BloomConfig(
        vocab_size=23, hidden_size=64, n_layer=2, n_head=2, initializer_range=0.15, seq_length=64
    )
    lm: Any = AutoModelForCausalLM.from_config(config).eval()
    lm.save_pretrained(tmp_path)
    models["bloom"] = tmp_path
    engine = get_engine("vllm", "bloom")
    for seed in (1, 2):
        perturb(lm, seed)
        load(engine, lm, next(versions))
        requests = prompts_of_many_lengths(8, max_tokens=8)
        assert worst_difference(lm, requests, finish(engine, requests)) < 2e-3  # GELU by a formula of its own
    assert engine._loaders["policy"].num_direct == 0
    assert re.findall(r"vLLM's reload, which is slower: not all of (.*) was", caplog.text) == [
        "transformer.h.0.self_attention.query_key_value.bias"
    ]
