"""A learner with weights, gradients and moments in the host's memory learns like any other."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from contracts.rollout import Rollout
from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.distributed.sharding import whole
from learner.learner import Learner
from learner.models.merged_weights import merged_parameters
from learner.optimization.kl_control import KLSettings
from learner.publishing.weight_publisher import PROBE_TOLERANCE
from tests.contracts.adapters.peft_made import make_adapter
from tests.learner.adapted import adapted_learner
from tests.learner.seq2seq import Name, single_turns
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, without_times

CLOSE: dict[str, float] = {"atol": 1e-5, "rtol": 1e-5}
STEADY: dict[str, Any] = {"num_epochs": 1, "learning_rate": 1e-3, "optimizer": SMOOTH}
ALGORITHMS = {
    "ppo": PPO(**STEADY, minibatch_size=4),
    "nlpo": NLPO(**STEADY, minibatch_size=4, target_update_iterations=1),
}
# The reference makes a pass within each step.
IN_THE_LOSS = KLSettings(placement="loss", estimator="full", coefficient=0.1)
WITH_REFERENCE = PPO(**STEADY, minibatch_size=4, kl=IN_THE_LOSS)


@pytest.fixture(params=ALGORITHMS)
def both(request: pytest.FixtureRequest, models: dict[str, Path]) -> Iterator[tuple[Learner, Learner]]:
    """One that offloads, alone in its group, and a plain one."""
    algorithm = ALGORITHMS[request.param]
    options: dict[str, Any] = {"value_trunk": "separate", "token_budget": 80}
    offloading = make_learner(models["llama_tied"], algorithm, offload=True, **options)
    yield offloading, make_learner(models["llama_tied"], algorithm, **options)
    offloading.leave()


def parameters_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: whole(p.detach()).clone() for name, p in learner.pair.named_parameters()}


def test_it_trains_publishes_saves_and_exports_as_a_plain_one(
    both: tuple[Learner, Learner], tmp_path: Path
) -> None:
    check_both(*both, tmp_path, random_rollouts)


@pytest.mark.parametrize("kind", ["gpt2", "t5", "further"])
def test_so_does_one_with_an_adapter_whose_frozen_base_is_offloaded(
    models: dict[str, Path], seq2seq: dict[Name, Path], tmp_path: Path, kind: str
) -> None:
    """GPT-2's weights are transposed. An adapter that is trained further has a frozen copy as reference."""
    more: dict[str, Any] = {"token_budget": 80}
    rollouts = single_turns if kind == "t5" else random_rollouts
    if kind == "further":
        more["adapter_options"] = {"path": str(make_adapter(tmp_path))}
    path = tmp_path / "llama" if kind == "further" else seq2seq["t5"] if kind == "t5" else models["gpt2"]
    offloading = adapted_learner(path, WITH_REFERENCE, offload=True, **more)
    try:
        check_both(offloading, adapted_learner(path, WITH_REFERENCE, **more), tmp_path, rollouts)
    finally:
        offloading.leave()


def check_both(
    offloading: Learner, plain: Learner, folder: Path, rollouts: Callable[[int, int], list[Rollout]]
) -> None:
    """Check that both learn the same, and that either goes on from what the other has saved."""
    both = offloading, plain
    assert all(isinstance(parameter, DTensor) for parameter in offloading.pair.parameters())
    before = parameters_of(plain)
    for seed in (0, 1):
        metrics, expected = (without_times(learner.update(rollouts(9, seed))) for learner in both)
        assert metrics == pytest.approx(expected, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(parameters_of(offloading), parameters_of(plain), **CLOSE)
    assert any((before[name] - after).abs().max() > 1e-3 for name, after in parameters_of(plain).items())
    (manifest, sent), (its_manifest, its_sent) = (learner.publish("float32") for learner in both)
    assert manifest.probe.logprobs == pytest.approx(its_manifest.probe.logprobs, abs=1e-4)
    assert manifest.dtypes == its_manifest.dtypes and sent.keys() == its_sent.keys()

    (folder / "saved").mkdir()
    offloading.save(str(folder / "saved"))
    plain.load(str(folder / "saved"))  # by any number of processes, offloaded or not
    torch.testing.assert_close(parameters_of(plain), parameters_of(offloading), atol=0, rtol=0)
    metrics, expected = (without_times(learner.update(rollouts(9, 2))) for learner in both)
    assert metrics == pytest.approx(expected, abs=1e-5, rel=1e-5)

    (folder / "model").mkdir()
    offloading.export(str(folder / "model"))
    again = make_learner(folder / "model", PPO())
    exported = {name: p.detach() for name, p in again.pair.lm.named_parameters()}
    kept = {name: whole(tensor) for name, tensor in merged_parameters(offloading.pair.lm)}
    torch.testing.assert_close(exported, kept, atol=0, rtol=0)


def test_in_bfloat16_its_probe_is_as_exact_as_the_layers_that_it_copies(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], ALGORITHMS["ppo"], offload=True, autocast="bfloat16")
    learner.update(random_rollouts(9))
    try:
        assert learner.publish("float32")[0].probe.tolerance == PROBE_TOLERANCE["bfloat16"]
    finally:
        learner.leave()
