"""An adapter for each role over one base: two trained together equal two trained alone, bit for bit."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from pydantic import ValidationError
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM

from contracts.errors import InputError, LearnerError
from learner.learner import Learner
from learner.models.adapter_settings import AdapterSettings
from learner.role_learners import RoleLearners
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.debates import ALGORITHMS, BOTH, adapter, debates, make
from tests.learner.tiny import without_times


def train(learners: RoleLearners, seeds: Sequence[int], *roles: str) -> list[dict[str, float]]:
    metrics = [without_times(learners.update(debates(seed, *roles))) for seed in seeds]
    return [{key: value for key, value in row.items() if "/time/" not in key} for row in metrics]


def weights(learners: RoleLearners, role: str) -> dict[str, Tensor]:
    """A role's adapter and critic by names that do not depend on the other roles."""
    critic = learners.learners[role].pair.critic.named_parameters()
    others = learners.learners[role].pair.adapter.others()  # type: ignore[union-attr]
    of_critic = [p.detach().clone() for _, p in critic if id(p) not in others]
    return learners.adapters.state(role) | {f"critic {number}": p for number, p in enumerate(of_critic)}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(one[key].equal(other[key]) for key in one)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_two_together_are_each_alone_to_the_bit(models: dict[str, Path], name: str) -> None:
    together = make(models["llama"], name, *BOTH)
    before = {role: weights(together, role) for role in BOTH}
    metrics = train(together, [0, 1, 2])
    for role in BOTH:
        alone = make(models["llama"], name, role)
        assert same(weights(alone, role), before[role])
        for ours, theirs in zip(metrics, train(alone, [0, 1, 2], role), strict=True):
            assert {key: ours[f"role/{role}/{key}"] for key in theirs if "/" + role not in key} == {
                key: value for key, value in theirs.items() if "/" + role not in key
            }
        assert same(weights(alone, role), weights(together, role))
        moved = [key for key, value in weights(together, role).items() if not value.equal(before[role][key])]
        assert any("lora_B" in key for key in moved)
    assert together.version == 3


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_roles_step_leaves_the_others_weights_to_the_bit(models: dict[str, Path], name: str) -> None:
    learners = make(models["llama"], name, *BOTH)
    train(learners, [0])
    pro, con = (weights(learners, role) for role in BOTH)
    base = {key: p.clone() for key, p in learners.first.pair.lm.named_parameters() if "lora" not in key}
    train(learners, [1], "con")
    assert same(weights(learners, "pro"), pro) and not same(weights(learners, "con"), con)
    assert {learner.version for learner in learners.learners.values()} == {2}
    kept = dict(learners.first.pair.lm.named_parameters())
    assert all(kept[key].equal(value) for key, value in base.items())


def test_a_role_learns_as_the_only_adapter_of_a_learner(models: dict[str, Path]) -> None:
    """The same matrices to begin with give the same update by the learner of one adapter."""
    learners = make(models["llama"], "grpo", *BOTH)
    model = ModelSettings(path=str(models["llama"]), dropout=False, adapter=adapter())
    plain = Learner(model, ALGORITHMS["grpo"], LearnerSettings(device="cpu"), seed=5, iterations=4)
    begun = learners.adapters.state("con")
    for key, parameter in matrices(plain).items():
        parameter.data.copy_(begun[key])
    for seed in (0, 1):
        learners.update(debates(seed))
        plain.update(debates(seed, "con"))
    assert same(matrices(plain), learners.adapters.state("con"))


def matrices(learner: Learner) -> dict[str, Tensor]:
    assert learner.pair.adapter is not None
    return learner.pair.adapter.published()[1]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_resumed_run_goes_on_to_the_bit(models: dict[str, Path], tmp_path: Path, name: str) -> None:
    learners = make(models["llama"], name, *BOTH)
    train(learners, [0, 1])
    learners.save(str(tmp_path))
    resumed = make(models["llama"], name, *BOTH)
    resumed.load(str(tmp_path))
    assert resumed.version == 2
    assert train(resumed, [2]) == train(learners, [2])
    assert all(same(weights(resumed, role), weights(learners, role)) for role in BOTH)
    with pytest.raises(LearnerError, match=r"lacks the role judge.*model\.adapter\.roles"):
        make(models["llama"], name, "judge").load(str(tmp_path))


def test_each_adapter_is_published_by_name_with_a_proof_of_its_own(models: dict[str, Path]) -> None:
    learners = make(models["llama"], "grpo", *BOTH)
    train(learners, [0])
    manifest, arrays = learners.publish("float32")
    assert manifest.roles is not None and list(manifest.roles) == list(BOTH)
    assert manifest.dtypes.keys() == arrays.keys() and manifest.version == 1
    for role, part in manifest.roles.items():
        assert part.adapter is not None and part.adapter["r"] == 4
        for key, value in learners.adapters.state(role).items():
            assert torch.from_numpy(arrays[f"{role}/{key}"]).equal(value)
    probes = {manifest.probe.logprobs, *(part.probe.logprobs for part in manifest.roles.values())}
    assert len(probes) == 3
    base, tokens = AutoModelForCausalLM.from_pretrained(models["llama"]), manifest.probe.tokens
    with torch.no_grad():
        scores = base(torch.tensor([tokens])).logits[0, :-1].log_softmax(-1)
    expected = scores.gather(-1, torch.tensor(tokens)[1:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(manifest.probe.logprobs), expected, atol=1e-5, rtol=0)


def test_the_base_and_an_adapter_a_role_are_exported(models: dict[str, Path], tmp_path: Path) -> None:
    learners = make(models["llama"], "grpo", *BOTH)
    train(learners, [0])
    learners.export(str(tmp_path))
    base = load_file(models["llama"] / "model.safetensors")
    assert same(load_file(tmp_path / "model.safetensors"), base)
    tokens = torch.tensor([[3, 8, 5, 13]])
    for role in BOTH:
        adapted = PeftModel.from_pretrained(
            AutoModelForCausalLM.from_pretrained(tmp_path), tmp_path / "adapter" / role
        )
        with torch.no_grad(), learners.adapters.use(role):
            expected = learners.first.pair.lm(tokens).logits
            assert adapted.eval()(tokens).logits.equal(expected)


def test_each_token_is_scored_by_its_roles_adapter(models: dict[str, Path]) -> None:
    learners, rollouts = make(models["llama"], "grpo", *BOTH), debates(3)
    train(learners, [0, 1])
    got = learners.logprobs(rollouts)
    for rollout, scores in zip(rollouts, got, strict=True):
        expected: list[float] = []
        for turn in rollout.turns:
            alone = replace(rollout, turns=(turn,))
            expected += learners.logprobs([alone])[0]
        assert scores == pytest.approx(expected, abs=1e-5)


def test_roles_without_an_adapter_are_named(models: dict[str, Path]) -> None:
    learners = make(models["llama"], "grpo", "pro")
    with pytest.raises(LearnerError, match=r"has the role 'con'; expected those of model\.adapter\.roles"):
        learners.update(debates(0))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"roles": ("a.b",)}, "'a.b' is not a role name"),
        ({"roles": ("a", "a")}, "each name once"),
        ({"roles": ("a",), "serve": "merged"}, "expected serve=adapter"),
        ({"roles": ("a",), "path": "x"}, "path=x: expected serve=adapter"),
        ({"roles": ("a",), "kind": "none"}, "expected kind=lora"),
    ],
)
def test_what_does_not_fit_roles_is_refused(options: dict[str, Any], named: str) -> None:
    with pytest.raises((ValidationError, InputError), match=named):
        AdapterSettings(**{"kind": "lora", "serve": "adapter", **options})
