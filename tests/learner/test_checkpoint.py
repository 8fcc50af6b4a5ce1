"""Checkpoints continue to the last bit, and exports are ordinary models."""

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from contracts.errors import LearnerError
from learner.algorithms.a2c import A2C
from learner.algorithms.base import Algorithm
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.algorithms.rejection import RejectionSampling
from learner.algorithms.supervised import Supervised
from learner.checkpoint import export
from learner.learner import Learner
from learner.optimization.kl_control import KLSettings
from learner.settings import ModelSettings
from tests.learner.tiny import (
    VOCAB,
    make_learner,
    make_model,
    make_pair,
    perturb,
    plain_logprobs,
    random_rollouts,
    snapshot,
    without_times,
)

ADAPTING = PPO(minibatch_size=4, num_epochs=2, kl=KLSettings(coefficient=0.1, target=0.05))


def moments(learner: Learner) -> dict[str, torch.Tensor]:
    entries = learner.optimizer.state_dict()["state"].items()
    return {f"{index}.{key}": value for index, entry in entries for key, value in entry.items()}


@pytest.mark.parametrize("algorithm", [ADAPTING, Supervised(minibatch_size=4)])
@pytest.mark.parametrize(("name", "value_trunk"), [("gpt2", "shared"), ("llama_tied", "separate")])
def test_a_loaded_learner_continues_to_the_last_bit(
    models: dict[str, Path], tmp_path: Path, algorithm: Algorithm, name: str, value_trunk: Any
) -> None:
    def fresh() -> Learner:
        return make_learner(models[name], algorithm, value_trunk=value_trunk, lr_schedule="cosine")

    uninterrupted, resumed = fresh(), fresh()
    uninterrupted.update(random_rollouts(10, seed=1))
    uninterrupted.save(str(tmp_path))
    expected = [without_times(uninterrupted.update(random_rollouts(10, seed=seed))) for seed in (2, 3)]
    resumed.update(random_rollouts(5, seed=9))  # something else was there before
    torch.randn(3)
    resumed.load(str(tmp_path))
    assert resumed.version == 1
    got = [without_times(resumed.update(random_rollouts(10, seed=seed))) for seed in (2, 3)]
    assert got == expected
    assert (resumed.version, resumed.kl_coefficient) == (3, uninterrupted.kl_coefficient)
    torch.testing.assert_close(snapshot(resumed.pair), snapshot(uninterrupted.pair), atol=0, rtol=0)
    torch.testing.assert_close(moments(resumed), moments(uninterrupted), atol=0, rtol=0)


def test_the_elite_lasts_and_continues(models: dict[str, Path], tmp_path: Path) -> None:
    algorithm = RejectionSampling(elite_size=3, learning_rate=1e-3, minibatch_size=2)
    uninterrupted, resumed = (make_learner(models["llama"], algorithm) for _ in range(2))
    best = replace(random_rollouts(1)[0], reward_parts={"length": 0.25, "distance": math.inf}, lease_id=99)
    uninterrupted.update([*random_rollouts(8, seed=1), best])
    uninterrupted.save(str(tmp_path))
    resumed.load(str(tmp_path))
    assert resumed.elite == uninterrupted.elite and len(resumed.elite) == 3
    for seed in (2, 3):
        expected = without_times(uninterrupted.update(random_rollouts(8, seed=seed)))
        assert without_times(resumed.update(random_rollouts(8, seed=seed))) == expected
    assert resumed.elite == uninterrupted.elite
    torch.testing.assert_close(snapshot(resumed.pair), snapshot(uninterrupted.pair), atol=0, rtol=0)


@pytest.mark.parametrize("algorithm", [A2C(), PPO(normalize_values=True, minibatch_size=4)])
def test_other_optimisers_and_the_values_units_continue_too(
    models: dict[str, Path], tmp_path: Path, algorithm: Algorithm
) -> None:
    uninterrupted, resumed = (make_learner(models["gpt2"], algorithm) for _ in range(2))
    uninterrupted.update(random_rollouts(8, seed=1))
    uninterrupted.save(str(tmp_path))
    resumed.load(str(tmp_path))
    expected = without_times(uninterrupted.update(random_rollouts(8, seed=2)))
    assert without_times(resumed.update(random_rollouts(8, seed=2))) == expected
    torch.testing.assert_close(snapshot(resumed.pair), snapshot(uninterrupted.pair), atol=0, rtol=0)
    if uninterrupted.pair.value_norm is not None:
        assert resumed.pair.value_norm.state_dict() == uninterrupted.pair.value_norm.state_dict()
        assert float(resumed.pair.value_norm.weight) > 0


def test_a_masked_runs_checkpoint_is_not_another_algorithms(models: dict[str, Path], tmp_path: Path) -> None:
    make_learner(models["gpt2"], PPO()).save(str(tmp_path))
    with pytest.raises(LearnerError, match="no mask model"):
        make_learner(models["gpt2"], NLPO()).load(str(tmp_path))


def test_the_random_numbers_continue_too(models: dict[str, Path], tmp_path: Path) -> None:
    learner = make_learner(models["gpt2"], PPO())
    learner.save(str(tmp_path))
    expected = torch.randn(4)
    learner.load(str(tmp_path))
    assert torch.equal(torch.randn(4), expected)


def test_the_reference_stays_the_initial_model_after_a_resume(
    models: dict[str, Path], tmp_path: Path
) -> None:
    learner, resumed = make_learner(models["gpt2"], ADAPTING), make_learner(models["gpt2"], ADAPTING)
    assert learner.reference is not None and resumed.reference is not None
    initial = snapshot(learner.reference)
    learner.update(random_rollouts(6))
    learner.save(str(tmp_path))
    resumed.load(str(tmp_path))
    for reference in (learner.reference, resumed.reference):
        torch.testing.assert_close(snapshot(reference), initial, atol=0, rtol=0)


def test_a_checkpoint_holds_no_pickle(models: dict[str, Path], tmp_path: Path) -> None:
    learner = make_learner(models["gpt2"], PPO(num_epochs=1))
    learner.update(random_rollouts(3))
    learner.save(str(tmp_path))
    assert {path.suffix for path in tmp_path.iterdir()} == {".safetensors", ".json"}
    assert json.loads((tmp_path / "learner.json").read_text())["version"] == 1


def test_a_checkpoint_of_another_model_is_refused(models: dict[str, Path], tmp_path: Path) -> None:
    make_learner(models["gpt2"], PPO()).save(str(tmp_path))
    with pytest.raises(LearnerError, match=r"a checkpoint of another model; .* parameters differ"):
        make_learner(models["llama"], PPO()).load(str(tmp_path))


@pytest.mark.parametrize("name", ["policy.safetensors", "learner.json", "elite.json", "random.safetensors"])
@pytest.mark.parametrize("how", ["cut", "missing"])
def test_a_damaged_file_is_a_fault_that_another_learner_would_meet_too(
    models: dict[str, Path], tmp_path: Path, name: str, how: str
) -> None:
    folder = tmp_path / "run" / "checkpoints" / "4"
    folder.mkdir(parents=True)
    learner = make_learner(models["gpt2"], PPO())
    learner.save(str(folder))
    content = (folder / name).read_bytes()
    (folder / name).unlink()
    if how == "cut":
        (folder / name).write_bytes(content[: len(content) // 2])
    with pytest.raises(LearnerError) as refusal:
        learner.load(str(folder))
    assert type(refusal.value) is LearnerError
    assert str(folder) in str(refusal.value)
    if how == "cut" or name != "policy.safetensors":
        assert f"`whetstone doctor {tmp_path / 'run'}`" in str(refusal.value)


def test_a_checkpoint_of_another_size_is_refused_and_changes_nothing(
    models: dict[str, Path], tmp_path: Path
) -> None:
    wider = make_model(tmp_path / "wider", "llama", intermediate_size=48)
    (tmp_path / "checkpoint").mkdir()
    make_learner(wider, PPO()).save(str(tmp_path / "checkpoint"))
    learner = make_learner(models["llama"], PPO())
    before = snapshot(learner.pair)
    with pytest.raises(LearnerError, match=r"a checkpoint of another model; .*mlp"):
        learner.load(str(tmp_path / "checkpoint"))
    torch.testing.assert_close(snapshot(learner.pair), before, atol=0, rtol=0)


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied"])
def test_an_exported_model_is_the_trained_one_with_its_tokenizer_and_its_own_configuration(
    models: dict[str, Path], tmp_path: Path, name: str
) -> None:
    learner = make_learner(models[name], PPO())
    perturb(learner.pair.lm)
    learner.export(str(tmp_path))
    lm = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert {parameter.dtype for parameter in lm.parameters()} == {torch.float32}
    with torch.no_grad():
        for one in random_rollouts(4):
            torch.testing.assert_close(
                plain_logprobs(lm, one), plain_logprobs(learner.pair.lm, one), atol=1e-6, rtol=1e-6
            )
    assert AutoTokenizer.from_pretrained(tmp_path)("w5 w9").input_ids == [5, 9]
    before, after = (json.loads((folder / "config.json").read_text()) for folder in (models[name], tmp_path))
    assert after == before
    assert any(value == 0.1 for key, value in before.items() if "drop" in key) or name == "llama_tied"


def test_an_export_names_its_architecture_even_if_the_files_did_not(
    models: dict[str, Path], tmp_path: Path
) -> None:
    folder = make_model(tmp_path / "unnamed", "gpt2")
    config = json.loads((folder / "config.json").read_text())
    config.pop("architectures")
    (folder / "config.json").write_text(json.dumps(config))
    make_learner(folder, PPO()).export(str(tmp_path / "exported"))
    exported = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert exported["architectures"] == ["GPT2LMHeadModel"]  # other engines look here
    assert exported["vocab_size"] == VOCAB


def test_a_revision_is_of_the_model_and_not_of_another_tokenizer(
    models: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cache has the tokenizer's main revision alone, as a hub without a branch v1 would."""
    kept = tmp_path / "hub" / "models--me--words"
    (kept / "refs").mkdir(parents=True)
    (kept / "refs" / "main").write_text("abc")
    shutil.copytree(
        models["gpt2"], kept / "snapshots" / "abc", ignore=shutil.ignore_patterns("*.safetensors")
    )
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    settings = ModelSettings(path=str(models["gpt2"]), tokenizer="me/words", revision="v1")
    (tmp_path / "out").mkdir()
    export(tmp_path / "out", make_pair(models["gpt2"]), settings)
    assert AutoTokenizer.from_pretrained(tmp_path / "out")("w5 w9").input_ids == [5, 9]


def test_an_exported_model_can_be_trained_on(models: dict[str, Path], tmp_path: Path) -> None:
    first = make_learner(models["gpt2"], Supervised(learning_rate=1e-2))
    first.update(random_rollouts(4))
    first.export(str(tmp_path))
    second = make_learner(tmp_path, PPO())
    assert second.reference is not None
    torch.testing.assert_close(snapshot(second.reference.lm), snapshot(first.pair.lm), atol=0, rtol=0)
