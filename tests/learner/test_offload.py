"""A learner that keeps its weights, gradients and moments in the host's memory learns what others learn."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import DTensor

from learner.algorithms.nlpo import NLPO
from learner.algorithms.ppo import PPO
from learner.distributed.sharding import whole
from learner.learner import Learner
from learner.publishing.weight_publisher import PROBE_TOLERANCE
from tests.learner.tiny import SMOOTH, make_learner, random_rollouts, without_times

CLOSE: dict[str, float] = {"atol": 1e-5, "rtol": 1e-5}
STEADY = {"num_epochs": 1, "learning_rate": 1e-3, "optimizer": SMOOTH}
ALGORITHMS = {
    "ppo": PPO(**STEADY, minibatch_size=4),
    "nlpo": NLPO(**STEADY, minibatch_size=4, target_update_iterations=1),
}


@pytest.fixture(params=ALGORITHMS)
def both(request: pytest.FixtureRequest, models: dict[str, Path]) -> Iterator[tuple[Learner, Learner]]:
    """One that offloads, alone in its group, and a plain one."""
    algorithm = ALGORITHMS[request.param]
    options: dict[str, Any] = {"value_trunk": "separate", "token_budget": 80}
    offloading = make_learner(models["llama_tied"], algorithm, offload=True, **options)
    yield offloading, make_learner(models["llama_tied"], algorithm, **options)
    offloading.leave()


def parameters_of(learner: Learner) -> dict[str, torch.Tensor]:
    return {name: whole(p.detach()) for name, p in learner.pair.named_parameters()}


def test_it_trains_publishes_saves_and_exports_as_a_plain_one(
    both: tuple[Learner, Learner], tmp_path: Path
) -> None:
    offloading, plain = both
    assert all(isinstance(parameter, DTensor) for parameter in offloading.pair.parameters())
    for seed in (0, 1):
        told, expected = (without_times(each.update(random_rollouts(9, seed))) for each in both)
        assert told == pytest.approx(expected, abs=1e-5, rel=1e-5)
    torch.testing.assert_close(parameters_of(offloading), parameters_of(plain), **CLOSE)
    (manifest, sent), (its_manifest, its_sent) = (each.publish("float32") for each in both)
    assert manifest.probe.logprobs == pytest.approx(its_manifest.probe.logprobs, abs=1e-4)
    assert manifest.dtypes == its_manifest.dtypes and sent.keys() == its_sent.keys()

    (tmp_path / "saved").mkdir()
    offloading.save(str(tmp_path / "saved"))
    plain.load(str(tmp_path / "saved"))  # by any number of processes, offloaded or not
    torch.testing.assert_close(parameters_of(plain), parameters_of(offloading), atol=0, rtol=0)
    told, expected = (without_times(each.update(random_rollouts(9, 2))) for each in both)
    assert told == pytest.approx(expected, abs=1e-5, rel=1e-5)

    (tmp_path / "model").mkdir()
    offloading.export(str(tmp_path / "model"))
    again = make_learner(tmp_path / "model", PPO())
    exported = {name: p.detach() for name, p in again.pair.lm.named_parameters()}
    kept = {name: whole(p.detach()) for name, p in offloading.pair.lm.named_parameters()}
    torch.testing.assert_close(exported, kept, atol=0, rtol=0)


def test_in_bfloat16_its_probe_is_as_exact_as_the_layers_that_it_copies(models: dict[str, Path]) -> None:
    learner = make_learner(models["llama"], ALGORITHMS["ppo"], offload=True, autocast="bfloat16")
    learner.update(random_rollouts(9))
    try:
        assert learner.publish("float32")[0].probe.tolerance == PROBE_TOLERANCE["bfloat16"]
    finally:
        learner.leave()
