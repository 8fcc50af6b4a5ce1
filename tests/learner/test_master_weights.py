"""Float32 masters beside bfloat16 working weights: no step is lost, and files and pushes are as without."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from contracts.errors import InputError
from learner.algorithms.classes import algorithm_class
from learner.algorithms.grpo import GRPO
from learner.algorithms.ppo import PPO
from learner.learner import Learner
from learner.models.policy import Policy, family
from learner.models.rounding import matrices, round_frozen, round_states
from learner.optimization.master_weights import MasterWeights
from learner.optimization.number_formats import keeps_masters, why_float32
from learner.settings import LearnerSettings, ModelSettings
from tests.learner.seq2seq import Name, single_turns
from tests.learner.tiny import make_learner, make_pair, perturb, random_rollouts, snapshot, without_times
from tests.learner.tiny import parts as micro_batches_of

ROUNDED = {"autocast": "bfloat16", "param_dtype": "bfloat16"}
HALF_ULP = 2.0**-9  # of bfloat16 just below 1: a smaller step from 1 is lost


def exact(learner: Learner) -> dict[str, Tensor]:
    with learner.masters.exact():
        return snapshot(learner.pair)


def moments(learner: Learner) -> dict[str, Tensor]:
    entries = learner.optimizer.state_dict()["state"].items()
    return {f"{index}.{key}": value for index, entry in entries for key, value in entry.items()}


def stepped(weight: nn.Parameter, num_steps: int) -> float:
    """Take steps of HALF_ULP / 4 down; return where the weight is."""
    masters = MasterWeights([weight]) if weight.dtype == torch.float32 else MasterWeights()
    optimizer = torch.optim.AdamW([weight], lr=HALF_ULP / 4, weight_decay=0.0)
    masters.step_with(optimizer)
    for _ in range(num_steps):
        weight.sum().backward()
        optimizer.step()
        optimizer.zero_grad()
    return float(weight.detach())


def test_steps_below_bfloat16s_last_digit_add_up_in_the_master() -> None:
    """Adam's step is its rate, 2^-11: four of them lead to 1 - 2^-9, which bfloat16 does not have."""
    for num_steps, expected in ((1, 1.0), (6, 1 - 2 * HALF_ULP), (16, 1 - 4 * HALF_ULP)):
        assert stepped(nn.Parameter(torch.ones(1)), num_steps) == expected
    assert stepped(nn.Parameter(torch.ones(1, dtype=torch.bfloat16)), 64) == 1.0  # each step is lost


def test_gradients_add_up_in_float32() -> None:
    """In bfloat16 1 + 2^-9 is 1, however often it is added."""
    weight = nn.Parameter(torch.ones(1))
    MasterWeights([weight])
    for slope in (1.0, *[2.0**-9] * 64):
        (weight.sum() * slope).backward()
    assert weight.dtype == torch.bfloat16 and weight.grad is not None
    assert weight.grad.dtype == torch.float32 and float(weight.grad) == 1.125


def test_a_tied_matrix_has_one_master_and_a_value_head_none(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], PPO(), value_trunk="separate", **ROUNDED)
    rounded = {name for name, p in learner.pair.named_parameters() if p.dtype == torch.bfloat16}
    assert "policy.lm.lm_head.weight" in rounded and "critic.trunk.layers.1.mlp.up_proj.weight" in rounded
    assert {name for name in rounded if "norm" in name or "embed" in name or "head." in name} == {
        "policy.lm.lm_head.weight"
    }
    assert len(rounded) == len(learner.masters) == 2 * 14 + 1  # two layers of seven matrices, two trunks
    tied = make_learner(models["llama_tied"], PPO(), **ROUNDED)
    assert tied.pair.lm.lm_head.weight.dtype == torch.float32 and len(tied.masters) == 14


@pytest.mark.parametrize(("name", "value_trunk"), [("gpt2", "shared"), ("llama_tied", "separate")])
def test_a_resumed_run_repeats_to_the_bit(
    models: dict[str, Path], tmp_path: Path, name: str, value_trunk: Any
) -> None:
    algorithm = PPO(learning_rate=1e-3, minibatch_size=4)
    whole, resumed = (make_learner(models[name], algorithm, value_trunk=value_trunk, **ROUNDED) for _ in "12")
    for seed in (1, 2):
        whole.update(random_rollouts(8, seed=seed))
    whole.save(str(tmp_path))
    resumed.update(random_rollouts(5, seed=9))  # something else was there before
    resumed.load(str(tmp_path))
    for seed in (3, 4):
        got, expected = (one.update(random_rollouts(8, seed=seed)) for one in (resumed, whole))
        assert without_times(got) == without_times(expected)
    for ours, theirs in ((exact(resumed), exact(whole)), (snapshot(resumed.pair), snapshot(whole.pair))):
        torch.testing.assert_close(ours, theirs, atol=0, rtol=0)
    torch.testing.assert_close(moments(resumed), moments(whole), atol=0, rtol=0)
    assert {moment.dtype for moment in moments(whole).values()} == {torch.float32}
    started = snapshot(make_pair(models[name], value_trunk=value_trunk))
    assert any(not torch.equal(value, started[key]) for key, value in exact(resumed).items())
    for key, value in snapshot(whole.pair).items():
        assert torch.equal(value, exact(whole)[key].to(value.dtype))


@pytest.mark.parametrize("begun", ["float32", "bfloat16"])
def test_a_run_goes_on_from_the_other_formats_checkpoint(
    models: dict[str, Path], tmp_path: Path, begun: str
) -> None:
    other = {"float32": "bfloat16", "bfloat16": "float32"}[begun]
    one, two = (
        make_learner(models["gpt2"], GRPO(), autocast="bfloat16", param_dtype=which)
        for which in (begun, other)
    )
    one.update(random_rollouts(8))
    one.save(str(tmp_path))
    saved = load_file(tmp_path / "policy.safetensors")
    assert {tensor.dtype for tensor in saved.values() if tensor.is_floating_point()} == {torch.float32}
    two.load(str(tmp_path))
    torch.testing.assert_close(exact(two), exact(one), atol=0, rtol=0)
    two.update(random_rollouts(8, seed=1))


def test_files_and_pushes_are_as_without_masters(models: dict[str, Path], tmp_path: Path) -> None:
    """Two learners with the same weights, of which one rounds them in passes."""
    made = [
        make_learner(models["llama"], GRPO(), autocast="bfloat16"),
        make_learner(models["llama"], GRPO(), **ROUNDED),
    ]
    for learner in made:
        with learner.masters.exact():
            perturb(learner.pair.lm, size=1e-4)
    for dtype in ("bfloat16", "float32"):
        (plain, arrays), (manifest, got) = (learner.publish(dtype) for learner in made)
        assert list(got) == list(arrays) and manifest.dtypes == plain.dtypes
        assert manifest.num_bytes == plain.num_bytes
        assert all(value.tobytes() == arrays[name].tobytes() for name, value in got.items())
    for learner, folder in zip(made, ("plain", "rounded"), strict=True):
        learner.export(str(tmp_path / folder))
    files = [load_file(tmp_path / folder / "model.safetensors") for folder in ("plain", "rounded")]
    torch.testing.assert_close(files[1], files[0], atol=0, rtol=0)
    configs = [(tmp_path / folder / "config.json").read_text() for folder in ("plain", "rounded")]
    assert configs[0] == configs[1]


def test_a_rounded_reference_scores_to_the_bit_as_before(models: dict[str, Path]) -> None:
    batch_of = random_rollouts(6)
    for name in ("gpt2", "llama", "opt"):
        learner = make_learner(models[name], GRPO(), autocast="bfloat16", param_dtype="float32")
        assert learner.reference is not None
        dtypes = [parameter.dtype for parameter in learner.reference.parameters()]
        assert torch.bfloat16 in dtypes and torch.float32 in dtypes
        assert {parameter.dtype for parameter in learner.pair.parameters()} == {torch.float32}
        # before training the policy has the same weights, in float32
        assert learner.update(batch_of)["kl/mean"] == 0.0


def test_before_training_the_reference_is_the_policy(models: dict[str, Path]) -> None:
    learner = make_learner(models["gpt2"], GRPO(), **ROUNDED)
    assert learner.update(random_rollouts(6))["kl/mean"] == 0.0


def passes(policy: Policy, batch_of: Iterable[Any], *, rounds: bool) -> tuple[Tensor, Tensor]:
    """Return log-probabilities, and the gradient of their weighted sum over several micro-batches."""
    from learner.batches.batching import collate

    logprobs, generator = [], torch.Generator().manual_seed(5)
    for micro in micro_batches_of(collate(list(batch_of), torch.device("cpu")), 64):
        with torch.autocast("cpu", torch.bfloat16, enabled=rounds):
            logprobs_N = policy(micro)
        weights_N = torch.randn(len(logprobs_N), generator=generator).to(logprobs_N.dtype)
        (logprobs_N * weights_N).sum().backward()
        logprobs.append(logprobs_N.detach().double())
    gradients = [parameter.grad for parameter in policy.parameters() if parameter.grad is not None]
    return torch.cat(logprobs), torch.cat([gradient.double().flatten() for gradient in gradients])


@pytest.mark.parametrize("name", ["gpt2", "llama", "llama_tied", "t5", "t5_gated"])
def test_errors_are_at_most_twice_those_of_float32_parameters(
    models: dict[str, Path], seq2seq: dict[Name, Path], name: Any
) -> None:
    """Both have bfloat16 products; the oracle is the same model in float64."""
    causal = name in models
    rollouts = random_rollouts(24) if causal else single_turns(24)
    path = models[name] if causal else seq2seq[name]

    def made() -> Policy:
        lm = make_pair(path).lm
        return family(lm)(lm, 2**24)

    oracle, plain, rounded = made().double(), made(), made()
    round_states(rounded, rounded.lm)
    assert len(MasterWeights(matrices(rounded))) >= 8  # four a layer in GPT-2
    right = passes(oracle, rollouts, rounds=False)
    before, after = (passes(policy, rollouts, rounds=True) for policy in (plain, rounded))
    for kind in (0, 1):
        error, allowed = (
            float((of[kind] - right[kind]).norm() / right[kind].norm()) for of in (after, before)
        )
        assert 0 < error < 2 * allowed


def test_a_frozen_policy_rounded_twice_is_the_same(models: dict[str, Path]) -> None:
    policy = make_pair(models["gpt2"]).policy
    round_frozen(policy)
    once = snapshot(policy)
    round_frozen(policy)
    torch.testing.assert_close(snapshot(policy), once, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("settings", "model", "algorithm", "message"),
    [
        ({"autocast": "none"}, {}, "ppo", "products are not in bfloat16"),
        ({"num_processes": 2}, {}, "ppo", "several processes gather bfloat16 copies"),
        ({"offload": True}, {}, "ppo", r"with learner\.offload"),
        ({}, {"adapter": {"kind": "lora"}}, "ppo", "an adapter trains beside a frozen model"),
        ({}, {"trainable_layers": 2}, "ppo", "models share the frozen layers"),
        ({}, {"critic": "mine:Critic"}, "ppo", "critic of one's own"),
        ({}, {}, "trpo", "a trust region moves the parameters itself"),
    ],
)
def test_where_parameters_stay_float32(
    settings: dict[str, Any], model: dict[str, Any], algorithm: str, message: str
) -> None:
    learner, kind = {"autocast": "bfloat16", **settings}, algorithm_class(algorithm)()
    model_of_run = ModelSettings(path="gpt2", **model)
    with pytest.raises(InputError, match=rf"param_dtype=bfloat16: .*{message}.*; expected learner\.param_"):
        keeps_masters(LearnerSettings(**learner, param_dtype="bfloat16"), model_of_run, kind, on_gpu=True)
    assert not keeps_masters(LearnerSettings(**learner), model_of_run, kind, on_gpu=True)


def test_left_open_a_gpu_has_bfloat16_and_a_cpu_float32() -> None:
    model, ppo = ModelSettings(path="gpt2"), algorithm_class("ppo")()
    assert why_float32(LearnerSettings(), model, ppo, on_gpu=True) is None
    assert keeps_masters(LearnerSettings(), model, ppo, on_gpu=True)
    assert not keeps_masters(LearnerSettings(autocast="bfloat16"), model, ppo, on_gpu=False)
    assert not keeps_masters(LearnerSettings(param_dtype="float32"), model, ppo, on_gpu=True)
