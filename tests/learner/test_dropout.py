"""A model's dropout: its users, rates and random numbers."""

import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from contracts.components import find
from contracts.errors import InputError
from contracts.rollout import Rollout
from learner.algorithms import ALGORITHMS
from learner.algorithms.classes import algorithm_class
from learner.algorithms.dpo import DPO
from learner.algorithms.nll import NLL
from learner.algorithms.ppo import PPO
from learner.algorithms.r_lol import RLoL
from learner.algorithms.supervised import Supervised
from learner.batches.batching import collate
from learner.learner import Learner
from learner.models import dropout
from learner.models.actor_critic import ActorCritic, reference_of
from learner.optimization.kl_control import KLSettings
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.adapted import adapted_learner, adapted_pair, move
from tests.learner.seq2seq import NAMES, Name, load, read, single_turns
from tests.learner.tiny import (
    make_learner,
    make_pair,
    plain_logprobs,
    random_rollouts,
    rollout,
    snapshot,
    whole,
)

ON = {
    *("supervised", "nll", "wbc", "r_gold", "r_lol", "a_lol", "a_lol_seq", "a_lol_ref_free", "a_lol_kl"),
    *("dpo", "ipo", "simpo", "orpo", "kto", "pro"),
}
ONE = rollout(0, (3, 4, 5), (6, 7, 8, 2), 1.0)
FULL_KL = KLSettings(placement="loss", estimator="full", coefficient=0.1)


def pairs(num: int) -> list[Rollout]:
    return [replace(one, group=one.lease_id // 2) for one in single_turns(num)]


def weights_after(learner: Learner, *batches: Sequence[Rollout]) -> dict[str, Tensor]:
    for batch in batches:
        learner.update(batch)
    return snapshot(learner.pair)


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return all(torch.equal(one[name], other[name]) for name in one)


# Who trains with it


@pytest.mark.parametrize("name", ALGORITHMS)
def test_what_is_imitated_or_learned_from_data_is_learned_with_dropout(name: str) -> None:
    algorithm = find("algorithm", name, ALGORITHMS)()
    assert ModelSettings(path="m").drops_out(algorithm) == (name in ON)
    for dropout_asked in (True, False):
        assert ModelSettings(path="m", dropout=dropout_asked).drops_out(algorithm) is dropout_asked


def test_no_other_algorithm_has_come_since() -> None:
    sources = {name: algorithm_class(name).traits.learns_from for name in ALGORITHMS}
    assert {name for name, source in sources.items() if source != "rollouts"} == ON


@pytest.mark.parametrize("algorithm", [Supervised(), NLL(), RLoL(), DPO(), PPO(num_epochs=1)])
def test_an_update_runs_with_it_where_it_should(models: dict[str, Path], algorithm: Any) -> None:
    weights = {
        dropout_of: weights_after(make_learner(models["gpt2"], algorithm, dropout=dropout_of), pairs(6))
        for dropout_of in (None, True, False)
    }
    on = not isinstance(algorithm, PPO)
    assert not same(weights[True], weights[False])
    assert same(weights[None], weights[on])


@pytest.mark.parametrize("name", NAMES)
def test_encoder_decoders_are_imitated_with_it_too(seq2seq: dict[Name, Path], name: Name) -> None:
    weights = [
        weights_after(make_learner(seq2seq[name], Supervised(), dropout=dropout_of), single_turns(4))
        for dropout_of in (None, False)
    ]
    assert not same(*weights)


def test_a_reference_in_the_same_frozen_layers_allows_none(models: dict[str, Path]) -> None:
    model = ModelSettings(path=str(models["gpt2"]), trainable_layers=1, dropout=True)
    with pytest.raises(InputError, match=r"model\.dropout=true with model\.trainable_layers=1.*leave out"):
        Learner(model, PPO(), LearnerSettings(device="cpu"), seed=0, iterations=1)
    assert model.drops_out(Supervised())  # which has no reference
    assert not ModelSettings(path="m", trainable_layers=1).drops_out(PPO())


# At which rates


def in_training_mode(lm: Any) -> Any:
    torch.manual_seed(5)
    return lm.train()


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_a_policy_drops_out_as_its_model_does(
    models: dict[str, Path], name: str, checkpointing: bool
) -> None:
    from transformers import AutoModelForCausalLM

    pair = make_pair(models[name], dropout=True, gradient_checkpointing=checkpointing)
    got = in_training_mode(pair)(whole(collate([ONE])), with_values=False).logprobs_N
    lm = in_training_mode(AutoModelForCausalLM.from_pretrained(models[name], dtype=torch.float32))
    torch.testing.assert_close(got, plain_logprobs(lm, ONE), atol=1e-6, rtol=1e-6)
    quiet = plain_logprobs(lm.eval(), ONE)
    assert (got - quiet).abs().max() > 1e-3


BARTS_OWN = {"attention_dropout": 0.1, "activation_dropout": 0.1}  # as facebook/bart-base has them


@pytest.mark.parametrize(("name", "rates"), [*((name, {}) for name in NAMES), ("bart", BARTS_OWN)])
def test_an_encoder_decoder_drops_out_as_its_model_does(
    seq2seq: dict[Name, Path], name: Name, rates: dict[str, float], tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(seq2seq[name], tmp_path / "model"))
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | rates))
    pair = make_pair(folder, dropout=True)
    assert rates.items() <= dropout.rates(pair.lm.config.to_dict()).items()
    got = in_training_mode(pair)(whole(collate([ONE])), with_values=False).logprobs_N
    lm = in_training_mode(load(folder))
    logits_TV = lm(**read(lm, ONE), use_cache=False).logits[0]
    expected = logits_TV.log_softmax(-1)[range(4), ONE.turns[0].tokens]
    torch.testing.assert_close(got, expected, atol=1e-6, rtol=1e-6)


def gradients(pair: ActorCritic) -> dict[str, Tensor]:
    loss = in_training_mode(pair)(whole(collate(random_rollouts(5))), with_values=False).logprobs_N.sum()
    named = [(name, p) for name, p in pair.policy.named_parameters() if p.requires_grad]
    gradients_of = torch.autograd.grad(loss, [p for _, p in named])
    return {name: gradient for (name, _), gradient in zip(named, gradients_of, strict=True)}


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_what_is_recomputed_is_dropped_out_again_alike(models: dict[str, Path], name: str) -> None:
    plainly, recomputed = (
        gradients(make_pair(models[name], dropout=True, gradient_checkpointing=checkpointing))
        for checkpointing in (False, True)
    )
    torch.testing.assert_close(recomputed, plainly, atol=1e-6, rtol=1e-5)


def test_frozen_layers_drop_out_like_the_others(models: dict[str, Path]) -> None:
    every, top = (
        gradients(make_pair(models["gpt2"], dropout=True, **options))
        for options in ({}, {"trainable_layers": 1})
    )
    assert 0 < len(top) < len(every)
    torch.testing.assert_close(top, {name: every[name] for name in top}, atol=1e-6, rtol=1e-5)


def test_an_adapters_reference_has_none_while_the_policy_has(models: dict[str, Path]) -> None:
    pair = adapted_pair(models["gpt2"], model={"dropout": True}, lora_dropout=0.2)
    move(pair)
    reference, micro = reference_of(pair), whole(collate([ONE]))
    expected = reference(micro)
    pair.train()
    assert torch.equal(reference(micro), expected)
    assert all(module.training for module in pair.modules())
    assert not torch.equal(pair.policy(micro), pair.policy(micro))


def test_dropout_leaves_a_kl_to_an_adapters_reference_finite_and_above_zero(models: dict[str, Path]) -> None:
    learner = adapted_learner(models["gpt2"], PPO(num_epochs=1, kl=FULL_KL), model={"dropout": True})
    assert learner.update(random_rollouts(4))["loss/kl"] > 0


def test_rates_of_configurations_within_are_found_and_switched_off() -> None:
    from transformers import GPT2Config, GPTNeoXConfig, MptConfig

    mpt = MptConfig(resid_pdrop=0.1, attn_config={"attn_pdrop": 0})
    assert dropout.rates(mpt.to_dict()) == {"resid_pdrop": 0.1}
    within = GPT2Config()
    within.text_config = GPT2Config(attn_pdrop=0.3, embd_pdrop=0.0, resid_pdrop=0.0)
    expected = {"resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1, "text_config.attn_pdrop": 0.3}
    assert dropout.rates(within.to_dict()) == expected
    for config in (mpt, within):
        dropout.switch_off(config)
        assert dropout.rates(config.to_dict()) == {}
    assert dropout.rates(GPTNeoXConfig().to_dict()) == {}  # its classifier's is no language model's


# Which random numbers


def test_an_update_with_dropout_can_be_repeated(models: dict[str, Path], tmp_path: Path) -> None:
    first, second, third = (random_rollouts(5, seed) for seed in range(3))
    straight = make_learner(models["gpt2"], Supervised(learning_rate=1e-3), dropout=None)
    weights_after(straight, first)
    straight.save(str(tmp_path))
    expected = weights_after(straight, second, third)

    resumed = make_learner(models["gpt2"], Supervised(learning_rate=1e-3), dropout=None)
    resumed.load(str(tmp_path))
    torch.rand(100)  # whatever else is drawn in the process
    assert same(weights_after(resumed, second, third), expected)
    other = make_learner(models["gpt2"], Supervised(learning_rate=1e-3), dropout=None, seed=1)
    other.load(str(tmp_path))
    assert not same(weights_after(other, second, third), expected)


def test_every_update_and_every_rank_draws_other_numbers() -> None:
    drawn = {}
    for key in [(0, 0, 0), (0, 0, 1), (0, 1, 0), (1, 0, 0), (0, 0, 0)]:
        dropout.seed_update(*key)
        numbers = tuple(torch.rand(3).tolist())
        assert drawn.setdefault(key, numbers) == numbers
    assert len(set(drawn.values())) == 4
