"""Training only the last layers equals training the whole model mathematically, at those layers' cost."""

import gc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from contracts.errors import InputError, LearnerError
from learner.algorithms.base import Algorithm
from learner.algorithms.grpo import GRPO
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.supervised import Supervised
from learner.algorithms.trpo import TRPO
from learner.batches.batching import collate
from learner.learner import Learner
from learner.models.actor_critic import ActorCritic, frozen_copy
from learner.models.shared_trunk import decoder_layers
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.seq2seq import Name
from tests.learner.tiny import (
    CONFIGS,
    SMOOTH,
    VOCAB,
    WINDOW,
    make_model,
    make_pair,
    parts,
    perturb,
    plain_logprobs,
    random_rollouts,
    snapshot,
    without_times,
)

LAYERS, TOP = 4, 2
# Of 2 … 30 tokens, so with much padding; for algorithms with groups two of those
ROLLOUTS = [replace(one, group=one.lease_id // 4) for one in random_rollouts(7)]
BATCH = collate(ROLLOUTS)
SIZES: dict[str, Any] = {"vocab_size": VOCAB, "max_position_embeddings": WINDOW}
DECODER: dict[str, Any] = {
    **SIZES,
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "initializer_range": 0.3,
}
# Beside those of `CONFIGS`; with windows shorter than some rows where there are any, and not in every layer
MORE: dict[str, dict[str, Any]] = {
    "qwen2": {**DECODER, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1},
    "mistral": {**DECODER, "sliding_window": 4},
    "gpt_neo": {
        **SIZES,
        "hidden_size": 16,
        "num_layers": LAYERS,
        "num_heads": 2,
        "attention_types": [[["global", "local"], LAYERS // 2]],
        "window_size": 4,
        "initializer_range": 0.3,
    },
    "gpt_neox": DECODER,
    "mixtral": {**DECODER, "num_local_experts": LAYERS, "num_experts_per_tok": 2},  # as many as layers
    "bloom": {
        "vocab_size": VOCAB,
        "hidden_size": 16,
        "n_layer": LAYERS,
        "n_head": 2,
        "initializer_range": 0.3,
    },
}
FAMILIES = (*CONFIGS, *MORE)
LOADED = ("gpt2", "llama", "llama_tied")  # one with a tied head, one untied, one tied and with rotations


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A model of four layers of each family."""
    folders = {}
    for name in FAMILIES:
        folder = tmp_path_factory.mktemp(name)
        if name in CONFIGS:
            count = {"n_layer": LAYERS} if name == "gpt2" else {"num_hidden_layers": LAYERS}
            folders[name] = make_model(folder, name, **count)
        else:
            folders[name] = _written(folder, name, MORE[name])
    return folders


def _written(folder: Path, model_type: str, options: dict[str, Any]) -> Path:
    from transformers import AutoConfig

    torch.manual_seed(7)
    AutoModelForCausalLM.from_config(AutoConfig.for_model(model_type, **options)).save_pretrained(folder)
    return folder


def learner_of(path: Path, algorithm: Algorithm, **model: Any) -> Learner:
    return Learner(
        ModelSettings(path=str(path), **{"trainable_layers": TOP, "dropout": False, **model}),
        algorithm,
        LearnerSettings(device="cpu", token_budget=64),
        seed=0,
        iterations=4,
    )


def trained(pair: ActorCritic) -> set[str]:
    return {name for name, parameter in pair.policy.named_parameters() if parameter.requires_grad}


def frozen(module: nn.Module) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in module.named_parameters() if not p.requires_grad}


def passes(*policies: Any) -> list[str]:
    """Each pass of a lowest and of a highest layer that computes: what is inside of it is called."""
    seen: list[str] = []
    for policy in policies:
        layers = decoder_layers(policy.lm)
        for place, layer in (("trunk", layers[0]), ("top", layers[-1])):
            first = next(iter(layer.children()))
            first.register_forward_hook(lambda *_call, place=place: seen.append(place))
    return seen


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_hidden_states_are_those_of_the_whole_model_to_the_bit(deep: dict[str, Path], name: str) -> None:
    whole, split = make_pair(deep[name]).policy, make_pair(deep[name], trainable_layers=TOP).policy
    reference = frozen_copy(split)
    for micro in parts(BATCH, 64):
        expected = whole.states(micro)
        for model in (split, reference, split):
            torch.testing.assert_close(model.states(micro), expected, atol=0, rtol=0)
        torch.testing.assert_close(reference.states(micro), expected, atol=0, rtol=0)


@pytest.mark.parametrize("name", FAMILIES)
def test_gradients_of_the_top_are_those_of_the_whole_model(deep: dict[str, Path], name: str) -> None:
    whole, split = make_pair(deep[name]), make_pair(deep[name], trainable_layers=TOP)
    reference = frozen_copy(split.policy)
    for pair in (whole, split):
        for micro in parts(BATCH, 64):
            with torch.no_grad():
                reference.states(micro)  # so that the policy finds the trunk's output at hand
            pair(micro).logprobs_N.sum().backward()
    expected = {name: p.grad for name, p in whole.policy.named_parameters()}
    for key, parameter in split.policy.named_parameters():
        if parameter.requires_grad:
            torch.testing.assert_close(parameter.grad, expected[key], atol=1e-6, rtol=1e-5)
        else:
            assert parameter.grad is None


def test_what_trains_by_hand(deep: dict[str, Path]) -> None:
    def kinds(name: str) -> set[str]:
        names = trained(make_pair(deep[name], trainable_layers=1))
        assert any(".3." in name for name in names)
        return {name for name in names if ".3." not in name}

    norm = {"lm.transformer.ln_f.weight", "lm.transformer.ln_f.bias"}
    assert kinds("gpt2") == norm  # its head is tied to the embedding, which is frozen
    assert kinds("llama_tied") == {"lm.model.norm.weight"}
    assert kinds("llama") == {"lm.model.norm.weight", "lm.lm_head.weight"}
    # the projection to the head is above the layers, the one from the embedding below them
    opt = {"lm.model.decoder.final_layer_norm.weight", "lm.model.decoder.final_layer_norm.bias"}
    assert kinds("opt") == opt | {"lm.model.decoder.project_out.weight"}


def test_experts_that_the_first_look_did_not_reach_are_frozen_too(deep: dict[str, Path]) -> None:
    names = trained(make_pair(deep["mixtral"], trainable_layers=1))
    assert {name.split(".")[3] for name in names if ".layers." in name} == {"3"}


@pytest.mark.parametrize(("wanted", "count"), [(1, 1), (3, 3), (0.33, 1), (0.5, 2), (0.01, 1)])
def test_layers_are_counted_or_a_share(deep: dict[str, Path], wanted: float, count: int) -> None:
    pair = make_pair(deep["gpt2"], trainable_layers=wanted)
    assert {int(name.split(".")[3]) for name in trained(pair) if ".h." in name} == set(
        range(LAYERS - count, LAYERS)
    )


@pytest.mark.parametrize("algorithm", [PPO(num_epochs=2), NLPO(num_epochs=2), TRPO(), GRPO()])
@pytest.mark.parametrize("options", [{}, {"value_trunk": "separate"}, {"gradient_checkpointing": True}])
def test_an_update_moves_the_top_alone_and_begins_at_the_reference(
    deep: dict[str, Path], algorithm: Algorithm, options: dict[str, Any]
) -> None:
    learner = learner_of(deep["llama"], algorithm, **options)
    below, before = frozen(learner.pair), snapshot(learner.pair.policy)
    assert learner.reference is not None
    start = snapshot(learner.reference)
    first = learner.update(ROLLOUTS)
    assert first["kl/mean"] == 0  # the reference reads the same activations with the same weights
    assert learner.update(ROLLOUTS)["kl/mean"] != 0
    torch.testing.assert_close(frozen(learner.pair), below, atol=0, rtol=0)
    torch.testing.assert_close(snapshot(learner.reference), start, atol=0, rtol=0)
    after = snapshot(learner.pair.policy)
    assert {name for name in after if not after[name].equal(before[name])} == trained(learner.pair)


@pytest.mark.parametrize(
    "algorithm",
    [
        PPO(optimizer=SMOOTH),
        NLPO(optimizer=SMOOTH),
        TRPO(cg_max_steps=2, optimizer=SMOOTH),
        GRPO(optimizer=SMOOTH),
    ],
)
@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_an_update_is_that_of_a_whole_model_frozen_by_hand(
    deep: dict[str, Path], algorithm: Algorithm, name: str
) -> None:
    """Each pass of each model is its own there. (Many conjugate steps would enlarge what rounding leaves.)"""
    from learner.optimization.optimizer import build_optimizer

    split, whole = (learner_of(deep[name], algorithm, trainable_layers=k) for k in (TOP, None))
    names = trained(split.pair)
    for key, parameter in whole.pair.policy.named_parameters():
        parameter.requires_grad_(key in names)
    whole.optimizer = build_optimizer(whole.pair, algorithm)
    for _ in range(2):
        metrics, expected = (without_times(learner.update(ROLLOUTS)) for learner in (split, whole))
        assert metrics == pytest.approx(expected, rel=1e-4, abs=1e-6)
    torch.testing.assert_close(snapshot(split.pair), snapshot(whole.pair), atol=1e-6, rtol=1e-5)


@pytest.mark.parametrize("value_trunk", ["shared", "separate"])
@pytest.mark.parametrize("algorithm", [PPO(), NLPO()])
def test_scoring_runs_the_trunk_once_a_micro_batch(
    deep: dict[str, Path], algorithm: Algorithm, value_trunk: str
) -> None:
    from contracts.rollout import Sampling

    learner = Learner(
        ModelSettings(path=str(deep["gpt2"]), trainable_layers=TOP, value_trunk=value_trunk),  # type: ignore[arg-type]
        algorithm,
        LearnerSettings(device="cpu", token_budget=64),
        seed=0,
        iterations=4,
        sampling=Sampling(max_tokens=2**31, masked=isinstance(algorithm, NLPO)),
    )
    models = [model for model in (learner.pair.policy, learner.reference, learner.mask) if model is not None]
    seen = passes(*models)
    critic = learner.pair.critic.trunk
    if critic is not None:
        critic.h[0].ln_1.register_forward_hook(lambda *_call: seen.append("trunk"))
        critic.h[-1].ln_1.register_forward_hook(lambda *_call: seen.append("top"))
    batch = collate(ROLLOUTS)
    num_micro = len(list(parts(batch, 64)))
    assert num_micro > 2
    learner._score_batch(batch, ROLLOUTS)
    assert seen.count("trunk") == num_micro
    assert seen.count("top") == num_micro * (len(models) + (critic is not None))


def test_activations_go_with_their_micro_batch(deep: dict[str, Path]) -> None:
    learner = learner_of(deep["gpt2"], PPO())
    learner.update(ROLLOUTS)
    assert learner.pair.shared_trunk is not None
    assert learner.pair.shared_trunk._output is None
    micro = next(parts(BATCH, 64))
    learner.pair.policy.states(micro)
    assert learner.pair.shared_trunk._output is not None
    del micro
    gc.collect()
    assert learner.pair.shared_trunk._output is None


def test_copies_take_memory_for_the_top_alone(deep: dict[str, Path]) -> None:
    pair = make_pair(deep["llama"], trainable_layers=1, value_trunk="separate")
    for copied in (frozen_copy(pair.policy), pair.critic):
        copied_ids = {id(p) for p in copied.parameters()} - {id(p) for p in pair.policy.parameters()}
        shared = {id(p) for p in copied.parameters()} & {id(p) for p in pair.policy.parameters()}
        assert copied_ids
        assert shared == {id(p) for p in pair.policy.parameters() if not p.requires_grad}
    learner = learner_of(deep["llama"], PPO(), trainable_layers=1)
    learner.update(ROLLOUTS)
    in_optimizer = {id(p) for p in learner.optimizer.state}
    assert in_optimizer == {id(p) for p in learner.pair.parameters() if p.requires_grad}


@pytest.mark.parametrize("algorithm", [PPO(num_epochs=2), NLPO(), Supervised()])
@pytest.mark.parametrize(("name", "value_trunk"), [("gpt2", "shared"), ("llama", "separate")])
def test_a_resumed_run_continues_to_the_bit(
    deep: dict[str, Path], tmp_path: Path, algorithm: Algorithm, name: str, value_trunk: str
) -> None:
    through, stopped, resumed = (learner_of(deep[name], algorithm, value_trunk=value_trunk) for _ in range(3))
    for learner in (through, stopped):
        learner.update(ROLLOUTS)
    stopped.save(str(tmp_path))
    perturb(resumed.pair.critic.head)
    resumed.load(str(tmp_path))
    assert without_times(resumed.update(ROLLOUTS)) == without_times(through.update(ROLLOUTS))
    torch.testing.assert_close(snapshot(resumed.pair), snapshot(through.pair), atol=0, rtol=0)


def test_a_checkpoint_holds_what_trains(deep: dict[str, Path], tmp_path: Path) -> None:
    from safetensors.torch import load_file

    learner = learner_of(deep["gpt2"], NLPO())
    learner.save(str(tmp_path))
    names = {f"policy.{name}" for name in trained(learner.pair)} | {"critic.head.weight", "critic.head.bias"}
    moments = {f"value_norm.{name}" for name in ("mean", "square", "weight")}
    assert load_file(tmp_path / "policy.safetensors").keys() == names | moments | {"frozen"}
    mask = load_file(tmp_path / "mask.safetensors").keys()
    assert mask == {name.removeprefix("policy.") for name in names if "critic" not in name} | {"frozen"}


def test_a_checkpoint_of_another_trunk_or_of_other_layers_is_refused(
    deep: dict[str, Path], tmp_path: Path
) -> None:
    learner_of(deep["gpt2"], PPO()).save(str(tmp_path))
    other = learner_of(deep["gpt2"], PPO())
    with torch.no_grad():
        other.pair.lm.transformer.wte.weight[3, 2] += 1e-3
    with pytest.raises(LearnerError, match=r"the frozen layers of model\.path differ"):
        other.load(str(tmp_path))
    with pytest.raises(LearnerError, match=r"parameters differ.*model\.trainable_layers"):
        learner_of(deep["gpt2"], PPO(), trainable_layers=1).load(str(tmp_path))


def test_what_is_published_and_exported_is_the_whole_model(deep: dict[str, Path], tmp_path: Path) -> None:
    learner = learner_of(deep["llama"], PPO())
    learner.update(ROLLOUTS)
    manifest, arrays = learner.publish("float32")
    assert set(arrays) == set(manifest.dtypes) == {name for name, _ in learner.pair.lm.named_parameters()}
    learner.export(str(tmp_path))
    lm = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    for name, parameter in lm.named_parameters():
        assert parameter.equal(torch.from_numpy(arrays[name]))
    expected = torch.cat([plain_logprobs(learner.pair.lm, one) for one in ROLLOUTS[:2]])
    torch.testing.assert_close(torch.cat([plain_logprobs(lm, one) for one in ROLLOUTS[:2]]), expected)


# Refusals


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"trainable_layers": 4}, "trainable_layers=4: the model has 4 layers"),
        ({"trainable_layers": 0.99}, "trainable_layers=0.99: the model has 4 layers"),
        ({"trainable_layers": 5}, "expected fewer, or leave it out to train all"),
    ],
)
def test_a_trunk_of_no_layers_is_refused(deep: dict[str, Path], options: dict[str, Any], error: str) -> None:
    with pytest.raises(InputError, match=error):
        make_pair(deep["gpt2"], **options)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"trainable_layers": 0}, "greater than 0"),
        ({"trainable_layers": 1.0}, "expected a share below 1"),
        ({"trainable_layers": True}, "valid integer"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options: dict[str, Any], error: str) -> None:
    with pytest.raises(ValueError, match=error):
        ModelSettings(path="gpt2", **options)


def test_an_encoder_decoder_is_refused(seq2seq: dict[Name, Path]) -> None:
    with pytest.raises(InputError, match="is an encoder-decoder; expected a causal model"):
        make_pair(next(iter(seq2seq.values())), trainable_layers=1)


def test_a_model_whose_top_reads_more_than_the_trunks_output_is_refused(deep: dict[str, Path]) -> None:
    from learner.models.policy import family
    from learner.models.shared_trunk import SharedTrunk

    lm = AutoModelForCausalLM.from_pretrained(deep["llama"]).eval()
    layers = lm.model.layers
    kept: list[Tensor] = []
    layers[0].mlp.register_forward_hook(lambda _m, _i, out: kept.append(out))
    layers[3].register_forward_hook(lambda _m, _i, out: out + kept.pop() if kept else out)
    with pytest.raises(InputError, match=r"llama can't be split.*its upper layers read more"):
        SharedTrunk(family(lm)(lm, 2**20), ModelSettings(path="m", trainable_layers=2))


def test_a_model_without_one_list_of_layers_is_refused(deep: dict[str, Path]) -> None:
    lm = AutoModelForCausalLM.from_pretrained(deep["llama"])
    lm.model.layers = nn.ModuleList(list(lm.model.layers)[:3])
    with pytest.raises(InputError, match="it has 0 lists of 4 layers"):
        decoder_layers(lm)
