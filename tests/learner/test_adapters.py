"""LoRA and QLoRA: only the adapter trains, without it the model is the base, merged it is the same model."""

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoModelForSeq2SeqLM

from contracts.components import find
from contracts.errors import InputError, LearnerError
from learner.algorithms import ALGORITHMS
from learner.algorithms.base import Algorithm, LossInputs
from learner.algorithms.classes import algorithm_class
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.trpo import TRPO
from learner.batches.batching import collate
from learner.functional.logprobs import Restriction
from learner.learner import Learner
from learner.models import merged_weights
from learner.models.actor_critic import reference_of
from learner.models.quantization import base_sizes
from learner.optimization.kl_control import KLSettings
from learner.settings import ModelSettings
from tests.learner.adapted import KINDS, Kind, adapted_learner, adapted_pair, adapter, frozen, move, trained
from tests.learner.seq2seq import single_turns
from tests.learner.test_every_algorithm import in_groups, watched
from tests.learner.test_learning_from_data import scored
from tests.learner.tiny import (
    CONFIGS,
    VOCAB,
    make_model,
    make_pair,
    parts,
    plain_logprobs,
    random_rollouts,
    whole,
    without_times,
)

ROLLOUTS = random_rollouts(7)
SINGLE = single_turns(7)
SEQ2SEQ = ("t5", "t5_gated", "mt5", "bart")
ONLINE = [name for name in ALGORITHMS if algorithm_class(name).traits.learns_from == "rollouts"]


@pytest.fixture(scope="session")
def both(models: dict[str, Path], seq2seq: dict[Any, Path]) -> dict[str, Path]:
    return models | seq2seq


def logprobs(policy: Any, rollouts: Any = SINGLE) -> Tensor:
    with torch.no_grad():
        values: Tensor = policy(whole(collate(rollouts)))
    return values


# The model beside its adapter


@pytest.mark.parametrize("name", [*CONFIGS, *SEQ2SEQ])
def test_without_its_adapter_the_model_is_the_base_to_the_last_bit(both: dict[str, Path], name: str) -> None:
    pair, base = adapted_pair(both[name]), make_pair(both[name])
    reference = reference_of(pair)
    assert logprobs(pair.policy).equal(logprobs(base.policy))  # B is 0 at first
    move(pair)
    assert not torch.allclose(logprobs(pair.policy), logprobs(base.policy), atol=1e-2)
    assert logprobs(reference).equal(logprobs(base.policy))
    with torch.no_grad():
        without, plain = (one.logits(one.probe_states(torch.arange(9))) for one in (reference, base.policy))
    assert without.equal(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_the_reference_takes_no_memory_and_the_mask_the_adapters(models: dict[str, Path], kind: Kind) -> None:
    learner = adapted_learner(models["llama"], NLPO(), kind)
    policy_ids = {id(parameter) for parameter in learner.pair.parameters()}
    assert learner.reference is not None and learner.mask is not None
    assert {id(parameter) for parameter in learner.reference.parameters()} <= policy_ids
    added = [name for name, parameter in learner.mask.named_parameters() if id(parameter) not in policy_ids]
    assert added == list(trained(learner.pair.policy))


def test_switching_off_between_forward_and_backward_changes_no_gradient(models: dict[str, Path]) -> None:
    """As a KL over the vocabulary does, whose reference is asked in the loss."""
    micro = whole(collate(ROLLOUTS))

    def gradient(switch: bool) -> list[Tensor]:
        torch.manual_seed(0)
        pair = adapted_pair(models["gpt2"], model={"gradient_checkpointing": True})
        move(pair)
        pair.train()
        loss = pair.policy(micro).sum()
        if switch:
            logprobs(reference_of(pair))
        loss.backward()
        return [p.grad for p in pair.policy.parameters() if p.requires_grad and p.grad is not None]

    expected = gradient(False)
    assert len(expected) == 2 * 8
    assert all(one.equal(other) for one, other in zip(gradient(True), expected, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
def test_a_critic_trains_on_its_trunk_and_shares_the_base(
    models: dict[str, Path], kind: Kind, value_trunk: str
) -> None:
    learner = adapted_learner(models["llama"], PPO(), kind, model={"value_trunk": value_trunk})
    base, before = frozen(learner.pair.policy), trained(learner.pair.critic)
    metrics = learner.update(ROLLOUTS)
    assert metrics["gradient_norm/critic"] > 0
    after = trained(learner.pair.critic)
    changed = [name for name in before if not after[name].equal(before[name])]
    assert any("lora_B" in name for name in changed) is (value_trunk == "separate")
    assert "head.weight" in changed
    assert all(value.equal(base[name]) for name, value in frozen(learner.pair.policy).items())
    policy_ids = {id(parameter) for parameter in learner.pair.policy.parameters()}
    copied = [name for name, p in learner.pair.critic.named_parameters() if id(p) not in policy_ids]
    assert copied == list(after)


# Training


def algorithm_of(name: str, **options: Any) -> Algorithm:
    kind: Any = find("algorithm", name, ALGORITHMS)
    return kind(**{key: value for key, value in options.items() if key in kind.model_fields})  # type: ignore[no-any-return]


@pytest.mark.parametrize("family", ["llama", "t5"])
@pytest.mark.parametrize("name", [*ONLINE, "supervised"])
def test_every_algorithm_moves_the_adapter_and_nothing_else(
    both: dict[str, Path], name: str, family: str
) -> None:
    options = {"num_epochs": 1, "learning_rate": 3e-3, "target_update_iterations": 1, "cg_max_steps": 2}
    options |= {"k": 2, "pass_at": 0.0}  # of groups of four
    if name == "self_distillation":
        options["weight"] = 0.5  # with 1, rewards teach nothing
    learner = adapted_learner(both[family], algorithm_of(name, **options))
    base, before = frozen(learner.pair), trained(learner.pair.policy)
    assert all("lora_" in key for key in before)
    for _ in range(4):
        metrics = learner.update(in_groups(single_turns(8)))
    after = trained(learner.pair.policy)
    assert [key for key in after if after[key].equal(before[key])] == []
    assert all(value.equal(base[key]) for key, value in frozen(learner.pair).items())
    if name == "nlpo":
        assert learner.mask is not None and metrics["mask/age"] == 0
        assert all(p.equal(after[key]) for key, p in learner.mask.named_parameters() if "lora_" in key)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["a_lol", "dpo"])
def test_on_a_data_set_the_first_weights_are_one(models: dict[str, Path], name: str, kind: Kind) -> None:
    """The data set was scored by the model in float32; with 4 bits its base is another."""
    seen: list[LossInputs] = []
    algorithm = watched(algorithm_of(name, minibatch_size=None), seen)
    data = scored(make_pair(models["llama"]), SINGLE[:6], group_size=2)
    learner = adapted_learner(models["llama"], algorithm, kind)
    base, before = frozen(learner.pair), trained(learner.pair.policy)
    learner.update(data)
    for inputs in seen:
        assert inputs.ref_logprobs_N is not None
        torch.testing.assert_close(inputs.logprobs_N.detach(), inputs.ref_logprobs_N, atol=1e-5, rtol=1e-5)
    after = trained(learner.pair.policy)
    assert any(not after[key].equal(before[key]) for key in after)
    assert all(value.equal(base[key]) for key, value in frozen(learner.pair).items())


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_adapter_and_the_critic_have_an_optimizers_state(
    models: dict[str, Path], kind: Kind
) -> None:
    learner = adapted_learner(models["gpt2"], PPO(), kind)
    learner.update(ROLLOUTS)
    state = learner.optimizer.state
    assert {id(p) for p in state} == {id(p) for p in learner.pair.parameters() if p.requires_grad}
    numbers = sum(entry["exp_avg"].numel() for entry in state.values())
    assert numbers == sum(p.numel() for p in trained(learner.pair).values())


@pytest.mark.parametrize("kind", KINDS)
def test_evaluation_and_training_mode_compute_the_same(models: dict[str, Path], kind: Kind) -> None:
    """bitsandbytes has a coarser way of its own for evaluation on some CPUs."""
    pair = adapted_pair(models["llama"], kind)
    move(pair)
    micro = whole(collate(ROLLOUTS))
    quiet = logprobs(pair.eval().policy, ROLLOUTS)
    torch.testing.assert_close(pair.train().policy(micro).detach(), quiet, atol=1e-6, rtol=0)


@pytest.mark.parametrize("estimator", ["full", "forward_full"])
def test_a_kl_over_the_vocabulary_is_to_the_base(models: dict[str, Path], estimator: Any) -> None:
    pair, base = adapted_pair(models["llama"]), make_pair(models["llama"])
    move(pair)
    micro, forward = whole(collate(ROLLOUTS)), estimator == "forward_full"
    with torch.no_grad():
        hidden_NH, base_NH = pair.policy.states(micro), base.policy.states(micro)
        got = pair.policy.kl_to(reference_of(pair), hidden_NH, base_NH, Restriction(), forward)
        expected = pair.policy.kl_to(base.policy, hidden_NH, base_NH, Restriction(), forward)
    assert got.equal(expected) and float(got.mean()) > 1e-3
    kl = KLSettings(placement="loss", estimator=estimator, coefficient=0.1)
    metrics = adapted_learner(models["llama"], PPO(kl=kl)).update(ROLLOUTS)
    assert metrics["kl/mean"] == pytest.approx(0, abs=1e-6)


def test_splitting_a_batch_changes_nothing(models: dict[str, Path]) -> None:
    batch = collate(ROLLOUTS)
    pair = adapted_pair(models["gpt2"])
    move(pair)
    logprobs_BT = torch.zeros_like(batch.rewards_BT)
    for micro in parts(batch, 20):
        micro.place(logprobs_BT, pair.policy(micro).detach())
    torch.testing.assert_close(logprobs_BT[batch.mask_BT], _in_rows(batch, logprobs(pair.policy, ROLLOUTS)))


def _in_rows(batch: Any, values_N: Tensor) -> Tensor:
    placed = torch.zeros_like(batch.rewards_BT)
    whole(batch).place(placed, values_N)
    return placed[batch.mask_BT]


# What leaves the learner


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied", "opt", "t5", "bart"])
def test_the_exported_model_is_the_adapted_one(
    both: dict[str, Path], tmp_path: Path, name: str, kind: Kind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(merged_weights, "FILE_BYTES", 8192)  # in several files
    learner = adapted_learner(both[name], PPO(), kind)
    move(learner.pair)
    before = logprobs(learner.pair.policy)
    learner.export(str(tmp_path))
    exported = make_pair(tmp_path)  # by transformers alone
    torch.testing.assert_close(logprobs(exported.policy), before, atol=1e-5, rtol=1e-5)
    assert logprobs(learner.pair.policy).equal(before)
    assert len(list(tmp_path.glob("model-*-of-*.safetensors"))) > 1
    assert "quantization_config" not in json.loads((tmp_path / "config.json").read_text())


@pytest.mark.parametrize("name", ["gpt2", "llama", "t5"])
def test_the_adapter_alone_loads_in_peft(both: dict[str, Path], tmp_path: Path, name: str) -> None:
    from peft import PeftModel

    learner = adapted_learner(both[name], PPO())
    move(learner.pair)
    learner.export(str(tmp_path))
    assert {"adapter_config.json", "adapter_model.safetensors"} <= {
        f.name for f in (tmp_path / "adapter").iterdir()
    }
    kind = AutoModelForSeq2SeqLM if name == "t5" else AutoModelForCausalLM
    lm = PeftModel.from_pretrained(kind.from_pretrained(both[name]), tmp_path / "adapter").eval()
    inputs = learner.pair.policy.probe_inputs(torch.arange(9))
    with torch.no_grad():
        expected = learner.pair.lm(**inputs).logits
        torch.testing.assert_close(lm(**inputs).logits, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_what_differs_from_the_files_is_published(models: dict[str, Path], kind: Kind) -> None:
    learner = adapted_learner(models["gpt2"], PPO(), kind, adapter_options={"target_modules": ["c_attn"]})
    move(learner.pair)
    manifest, arrays = learner.publish("float32")
    attention = {
        f"transformer.h.{i}.attn.{m}.{k}"
        for i in (0, 1)
        for m in ("c_attn", "c_proj")
        for k in ("weight", "bias")
    }
    mlp = {name.replace("attn.c_attn", "mlp.c_fc").replace("attn.c_proj", "mlp.c_proj") for name in attention}
    assert set(arrays) == set(manifest.dtypes) == (attention if kind == "lora" else attention | mlp)
    assert set(manifest.dtypes.values()) == {"float32"}
    assert manifest.num_bytes == sum(array.nbytes for array in arrays.values())
    lm = AutoModelForCausalLM.from_pretrained(models["gpt2"]).eval()
    with torch.no_grad():
        for name, array in arrays.items():
            lm.get_parameter(name).copy_(torch.from_numpy(array))
    expected = torch.cat([plain_logprobs(learner.pair.lm, one) for one in ROLLOUTS[:2]])
    torch.testing.assert_close(
        torch.cat([plain_logprobs(lm, one) for one in ROLLOUTS[:2]]), expected, atol=1e-5, rtol=0
    )


def test_a_quantized_base_takes_little_more_than_half_a_byte_a_parameter(tmp_path: Path) -> None:
    """Memory of 21 million parameters in linear layers, scales included; the embeddings stay in float32."""
    sizes = {
        "hidden_size": 1024,
        "intermediate_size": 2048,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
    }
    pair = adapted_pair(make_model(tmp_path, "llama", **sizes), "qlora")
    linear, rest = base_sizes(pair.lm)
    # each of two layers: 4 squares of the width, and 3 matrices of width × 2 widths
    assert linear.num_parameters == 2 * (4 * 1024**2 + 3 * 1024 * 2048) == 20_971_520
    assert 0.5 < linear.num_bytes / linear.num_parameters < 0.53
    # input and output embedding, two norms a layer and one after them
    assert rest.num_parameters == 2 * VOCAB * 1024 + 5 * 1024 and rest.num_bytes == 4 * rest.num_parameters
    whole_lm, _ = base_sizes(make_pair(tmp_path).lm)
    assert (whole_lm.num_parameters, whole_lm.num_bytes) == (linear.num_parameters, 4 * linear.num_parameters)


# Checkpoints


ADAPTING = PPO(minibatch_size=4, num_epochs=2, kl=KLSettings(coefficient=0.1, target=0.05))
QUICK_NLPO = NLPO(minibatch_size=4, num_epochs=1, target_update_iterations=2)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("algorithm", "value_trunk"), [(ADAPTING, "shared"), (QUICK_NLPO, "separate")])
def test_a_loaded_learner_continues_to_the_last_bit(
    models: dict[str, Path], tmp_path: Path, algorithm: Algorithm, value_trunk: str, kind: Kind
) -> None:
    def fresh() -> Learner:
        return adapted_learner(models["llama_tied"], algorithm, kind, model={"value_trunk": value_trunk})

    uninterrupted, resumed = fresh(), fresh()
    uninterrupted.update(random_rollouts(10, seed=1))
    uninterrupted.save(str(tmp_path))
    expected = [without_times(uninterrupted.update(random_rollouts(10, seed=seed))) for seed in (2, 3)]
    resumed.update(random_rollouts(5, seed=9))  # something else was there before
    resumed.load(str(tmp_path))
    assert [without_times(resumed.update(random_rollouts(10, seed=seed))) for seed in (2, 3)] == expected
    torch.testing.assert_close(trained(resumed.pair), trained(uninterrupted.pair), atol=0, rtol=0)
    saved = load_file(tmp_path / "policy.safetensors")
    moments = {f"value_norm.{name}" for name in ("mean", "square", "weight")}
    assert set(saved) == set(trained(uninterrupted.pair)) | moments | {"frozen"}


def test_a_checkpoint_of_another_base_or_another_adapter_is_refused(
    models: dict[str, Path], tmp_path: Path
) -> None:
    adapted_learner(models["gpt2"], PPO()).save(str(tmp_path))
    with pytest.raises(LearnerError, match=r"parameters differ.*model\.adapter\.kind"):
        adapted_learner(models["gpt2"], PPO(), adapter_options={"r": 2}).load(str(tmp_path))
    other = adapted_learner(models["gpt2"], PPO())
    with torch.no_grad():
        other.pair.lm.transformer.wte.weight[3, 2] += 1e-3
    with pytest.raises(LearnerError, match=r"the frozen layers of model\.path differ"):
        other.load(str(tmp_path))


# Refusals


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adapter": {"r": 8}}, "r set, but kind=none has no adapter"),
        ({"adapter": {"kind": "lora", "r": 0}}, "greater than or equal to 1"),
        ({"adapter": {"kind": "lora"}, "trainable_layers": 2}, "set only one of the two"),
        ({"adapter": {"kind": "qlora", "serve": "adapter"}}, "expected serve=merged, or kind=lora"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ModelSettings(path="gpt2", **options)


@pytest.mark.parametrize(
    ("named", "message"),
    [
        (["c_atn"], r"target_modules=\('c_atn',\).*not found"),
        (["c_attn", "lm_head"], "names lm_head, a Linear; expected linear layers between"),
        (["wte"], "a Embedding; expected linear layers"),
    ],
)
def test_modules_that_can_have_no_adapter_are_refused(
    models: dict[str, Path], named: list[str], message: str
) -> None:
    with pytest.raises(InputError, match=message):
        adapted_pair(models["gpt2"], target_modules=named)


def test_trpo_is_refused_on_a_quantized_base(models: dict[str, Path]) -> None:
    with pytest.raises(InputError, match=r"algorithm=trpo needs forward-mode derivatives.*kind=lora"):
        adapted_learner(models["llama"], TRPO(), "qlora")


def test_a_policy_that_trains_something_else_is_refused(models: dict[str, Path]) -> None:
    with pytest.raises(InputError, match="OwnScale has parameters of its own that train"):
        adapted_pair(models["llama"], model={"policy": "tests.learner.adapted_policy:OwnScale"})


@pytest.mark.parametrize(("kind", "absent"), [("lora", "peft"), ("qlora", "bitsandbytes")])
def test_what_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, kind: Kind, absent: str) -> None:
    there = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == absent else there(name))
    with pytest.raises(
        InputError, match=rf"needs {absent}, which is not installed: pip install 'whetstone\[adapt"
    ):
        adapter(kind).check_installed()
