"""Published weights: everything, once, and with a proof."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM

from contracts.activations import fuse_activations
from contracts.weights import Probe
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.distributed.ranks import ALONE
from learner.publishing import weight_publisher
from learner.publishing.weight_publisher import PROBE_TOLERANCE, as_array, probe, proof, publish
from tests.learner.tiny import VOCAB, make_learner, perturb, random_rollouts


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied", "opt"])
def test_the_arrays_alone_turn_another_model_into_this_one(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models[name], PPO())
    perturb(learner.pair.lm)
    manifest, arrays = learner.publish("float32")
    other = AutoModelForCausalLM.from_pretrained(models[name])
    other.load_state_dict({key: torch.from_numpy(array) for key, array in arrays.items()}, strict=False)
    other.tie_weights()
    fuse_activations(other)
    tokens = torch.arange(10)[None]
    with torch.no_grad():
        assert torch.equal(other.eval()(tokens).logits, learner.pair.lm(tokens).logits)
    assert arrays.keys() == manifest.dtypes.keys() == dict(other.named_parameters()).keys()
    assert manifest.num_bytes == 4 * sum(p.numel() for p in other.parameters())


@pytest.mark.parametrize(("name", "head_is_sent"), [("llama", True), ("llama_tied", False), ("gpt2", False)])
def test_a_tied_parameter_is_sent_once_and_the_critic_never(
    models: dict[str, Path], name: str, head_is_sent: bool
) -> None:
    learner = make_learner(models[name], PPO(), value_trunk="separate")
    manifest, arrays = learner.publish("float32")
    assert ("lm_head.weight" in arrays) == head_is_sent
    assert not any(key.startswith(("value", "lm.")) for key in arrays)
    assert set(manifest.dtypes.values()) == {"float32"}


def test_the_version_counts_updates(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO(num_epochs=1))
    assert learner.publish("float32")[0].version == 0
    learner.update(random_rollouts(2))
    assert learner.publish("float32")[0].version == 1


def test_bfloat16_travels_as_its_bits() -> None:
    # bfloat16 is the upper half of a float32: 1.0 is 0x3f80, -2.0 is 0xc000
    array = as_array(torch.tensor([1.0, -2.0], dtype=torch.bfloat16))
    assert (array.dtype, array.tolist()) == (np.uint16, [0x3F80, 0xC000])


def test_a_model_in_bfloat16_says_so(models: dict[str, Path]) -> None:
    lm = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.bfloat16)
    manifest, arrays = publish(lm, 3, "bfloat16")
    assert set(manifest.dtypes.values()) == {"bfloat16"}
    assert {array.dtype for array in arrays.values()} == {np.dtype(np.uint16)}
    assert manifest.num_bytes == 2 * sum(p.numel() for p in lm.parameters())
    key = "model.norm.weight"
    sent = torch.from_numpy(arrays[key]).view(torch.bfloat16)
    assert torch.equal(sent, dict(lm.named_parameters())[key])


def test_engines_in_bfloat16_are_sent_what_they_would_round_to(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], NLPO())
    perturb(learner.pair.lm)
    manifest, arrays = learner.publish("bfloat16")
    parameters = dict(learner.pair.lm.named_parameters())
    assert arrays.keys() == parameters.keys() and set(manifest.dtypes.values()) == {"bfloat16"}
    assert manifest.num_bytes == sum(array.nbytes for array in arrays.values())
    assert manifest.num_bytes == 2 * sum(p.numel() for p in parameters.values())
    for name, parameter in parameters.items():
        assert torch.equal(torch.from_numpy(arrays[name]).view(torch.bfloat16), parameter.to(torch.bfloat16))
    mask_arrays = learner.publish_mask("bfloat16")  # read by the same manifest
    assert learner.mask is not None and mask_arrays is not None
    for name, parameter in learner.mask.lm.named_parameters():
        sent = torch.from_numpy(mask_arrays[name]).view(torch.bfloat16)
        assert torch.equal(sent, parameter.to(torch.bfloat16))


def probe_logprobs(learner_lm: torch.nn.Module, probe: Probe) -> torch.Tensor:
    with torch.no_grad():
        logits = learner_lm(torch.tensor([probe.tokens])).logits[0, :-1]
    rows = torch.arange(len(probe.tokens) - 1)
    return logits.log_softmax(-1)[rows, torch.tensor(probe.tokens[1:])]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_the_probe_is_what_the_model_says_and_tells_weights_apart(models: dict[str, Path], name: str) -> None:
    learner = make_learner(models[name], PPO())
    old = learner.publish("float32")[0].probe
    assert len(old.logprobs) == len(old.tokens) - 1 > 10
    assert len(set(old.tokens)) > 10 and all(0 <= token < VOCAB for token in old.tokens)
    torch.testing.assert_close(torch.tensor(old.logprobs), probe_logprobs(learner.pair.lm, old))
    perturb(learner.pair.lm, size=0.01)
    new = learner.publish("float32")[0].probe
    assert new.tokens == old.tokens
    difference = max(abs(a - b) for a, b in zip(old.logprobs, new.logprobs, strict=True))
    assert difference > 5 * new.tolerance


def test_the_probe_is_measured_without_dropout(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], PPO(num_epochs=1), dropout=True)
    learner.update(random_rollouts(3))
    probe = learner.publish("float32")[0].probe
    plain = AutoModelForCausalLM.from_pretrained(models["gpt2"]).eval()
    plain.load_state_dict(learner.pair.lm.state_dict())
    torch.testing.assert_close(torch.tensor(probe.logprobs), probe_logprobs(plain, probe))


def test_half_precision_is_allowed_more(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], PPO())
    exact, half = learner.publish("float32")[0].probe, learner.publish("bfloat16")[0].probe
    assert exact.tolerance < half.tolerance
    lm = AutoModelForCausalLM.from_pretrained(models["llama"], dtype=torch.bfloat16)
    difference = (probe_logprobs(lm, half).float() - torch.tensor(half.logprobs)).abs().max()
    assert exact.tolerance < float(difference) < half.tolerance


@torch.no_grad()
def test_a_sharp_model_in_bfloat16_is_allowed_what_rounding_does_to_it(models: dict[str, Path]) -> None:
    """A second copy in bfloat16 stands for an engine; weights that did not arrive are found all the same."""
    lm = AutoModelForCausalLM.from_pretrained(models["llama"]).eval()
    lm.lm_head.weight *= 20  # its logits go far beyond 30
    made = publish(lm, 0, "bfloat16")[0].probe
    engine = copy.deepcopy(lm).to(torch.bfloat16)
    differs = (probe_logprobs(engine, made).float() - torch.tensor(made.logprobs)).abs().max()
    assert 0.25 < differs < made.tolerance
    perturb(engine, size=0.3)
    assert (probe_logprobs(engine, made).float() - torch.tensor(made.logprobs)).abs().max() > made.tolerance
    assert publish(lm, 0, "float32")[0].probe.tolerance == 1e-3


def test_a_learner_in_bfloat16_measures_its_rounding_too(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], PPO(), autocast="bfloat16")
    with torch.no_grad():
        learner.pair.lm.lm_head.weight *= 20
    assert learner.publish("bfloat16")[0].probe.tolerance > PROBE_TOLERANCE["bfloat16"]
    assert learner.publish("float32")[0].probe.tolerance == PROBE_TOLERANCE["float32"]


def test_rounding_is_measured_at_the_first_of_ten_versions_and_after_a_checkpoint(
    models: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    lm, passes = make_learner(models["llama"], PPO()).pair.lm, list[float]()

    def counted(of: torch.nn.Module, tolerance: float) -> Probe:
        passes.append(tolerance)
        return probe(of, tolerance)

    monkeypatch.setattr(weight_publisher, "probe", counted)

    def num_passes(version: int | None) -> int:
        passes.clear()
        proof(lm, "bfloat16", ALONE, None, version)
        return len(passes)

    assert [num_passes(version) for version in range(12)] == [2, *[1] * 9, 2, 1]
    assert num_passes(11) == 2  # the same again: the run went back
    assert [num_passes(version) for version in (12, 4, 5, 7)] == [1, 2, 1, 2]
    assert num_passes(None) == 2


def test_between_measurements_the_last_rounding_is_allowed(models: dict[str, Path]) -> None:
    lm = make_learner(models["llama"], PPO()).pair.lm
    with torch.no_grad():
        lm.get_output_embeddings().weight.mul_(300)  # logits so large that rounding shows
    first = proof(lm, "bfloat16", ALONE, None, 0)
    perturb(lm)
    second = proof(lm, "bfloat16", ALONE, None, 1)
    assert second.tolerance == first.tolerance > PROBE_TOLERANCE["bfloat16"]
    assert second.logprobs != first.logprobs  # these are always the new weights'
