"""Pushes of changed weights alone, in real engines: as if all of the weights had come."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from contracts.errors import WeightsError
from contracts.rollout import MaskRule
from contracts.weights import ChangedElements
from learner.publishing.last_published import LastPublished
from learner.publishing.weight_publisher import arrays_of, publish
from rollout_workers.engines.base import Engine
from rollout_workers.weights.received_weights import ReceivedWeights, block_of
from tests.rollout_workers.conftest import versions
from tests.rollout_workers.generation import (
    CausalName,
    finish,
    load,
    load_lm,
    prompts_of_many_lengths,
)

# One layer of a block; the embedding (gpt2: also the head); the last norm.
TOUCHED: dict[CausalName, tuple[str, ...]] = {
    "llama": ("layers.1.self_attn.q_proj", "layers.0.mlp.up_proj", "embed_tokens"),
    "gpt2": ("h.1.attn.c_attn", "wte", "ln_f"),
}


@torch.no_grad()
def nudge(lm: Any, names: tuple[str, ...]) -> None:
    """Change every fifth element of the parameters that bear one of these names."""
    for name, parameter in lm.named_parameters():
        if any(part in name for part in names):
            parameter.view(-1)[::5] += 0.3


@pytest.mark.parametrize("name", ["llama", "gpt2"])
def test_an_engine_that_gets_changes_writes_as_one_that_gets_all(
    kind: str, name: CausalName, models: dict[str, Path], get_engine: Callable[..., Engine]
) -> None:
    engine, lm = get_engine(kind, name), load_lm(models[name])
    last, received = LastPublished(), ReceivedWeights()
    requests = prompts_of_many_lengths(12, max_tokens=16, temperature=0.0)

    def push() -> set[str]:
        manifest, sent = publish(lm, next(versions), "float32", last=last)
        taken = received.take(manifest, sent)
        engine.load_weights(manifest, taken)
        (scored,) = engine.logprobs([manifest.probe.tokens])
        assert scored == pytest.approx(manifest.probe.logprobs, abs=1e-4)
        return {block_of(name) for name in taken}

    everything = push()
    before = finish(engine, requests)
    nudge(lm, TOUCHED[name])
    assert len(push()) == 3 < len(everything)
    got = finish(engine, requests)
    load(engine, lm, next(versions))
    expected = finish(engine, requests)
    assert {id: (one.tokens, one.behavior_logprobs) for id, one in got.items()} == {
        id: (one.tokens, one.behavior_logprobs) for id, one in expected.items()
    }
    assert any(one.tokens != before[id].tokens for id, one in got.items())


def test_a_mask_that_comes_whole_and_a_policy_of_which_the_changes_come(
    kind: str, models: dict[str, Path], get_engine: Callable[..., Engine]
) -> None:
    engine, lm = (
        get_engine(kind, "llama", MaskRule(top_p=0.7, min_tokens_to_keep=1)),
        load_lm(models["llama"]),
    )
    last, received = LastPublished(), ReceivedWeights()
    requests = prompts_of_many_lengths(8, max_tokens=12, temperature=0.0, masked=True)
    for change in (None, "layers.1"):
        if change:
            nudge(lm, (change,))
        manifest, sent = publish(lm, next(versions), "float32", next(versions), last=last)
        engine.load_weights(manifest, received.take(manifest, sent))
    engine.load_mask(manifest, arrays_of(lm, "float32"))
    got = finish(engine, requests)
    load(engine, lm, next(versions))
    expected = finish(engine, requests)
    assert [one.behavior_logprobs for one in got.values()] == [
        one.behavior_logprobs for one in expected.values()
    ]


def test_changes_that_are_laid_in_wrongly_are_noticed(models: dict[str, Path]) -> None:
    """One number, a bit away: far within the tolerance of any probe."""
    lm, last, received = load_lm(models["gpt2"]), LastPublished(), ReceivedWeights()
    received.take(*publish(lm, next(versions), "float32", last=last))
    nudge(lm, ("wte",))
    manifest, sent = publish(lm, next(versions), "float32", last=last)
    (changed,) = sent.values()
    values = changed.values.copy()
    values.view("u4")[3] ^= 1
    with pytest.raises(
        WeightsError, match=r"arrived wrong: the bytes of 1 parameters have the checksum [0-9a-f]+"
    ):
        received.take(manifest, {name: ChangedElements(changed.indices, values) for name in sent})
