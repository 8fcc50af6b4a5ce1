"""A learner of several processes is refused where it does not go together with something else."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.preflight.checks.process_checks import check_processes
from services.preflight.placement import fits
from tests.services.preflight.test_placement import placed_on


def settings(count: int = 2, **given: Any) -> RunSettings:
    model = {"path": "gpt2", **given.pop("model", {})}
    learner = {"num_processes": count, **given.pop("learner", {})}
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": model, **given}
    return build(RunSettings, {**whole, "learner": learner}, where="")


def files(**config: Any) -> ModelFiles:
    return ModelFiles(Path("gpt2"), Path("gpt2"), {"model_type": "gpt2", **config}, num_parameters=100)


def check(run: RunSettings, model: ModelFiles) -> None:
    check_processes(run.learner, run.model, run.algorithm, run.cluster.learner_gpus, model)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": {"adapter": {"kind": "lora"}}}, "model.adapter.kind=lora"),
    ({"model": {"trainable_layers": 2}}, "model.trainable_layers=2"),
    ({"cluster": {"learner_gpus": 0.5, "worker_gpus": 0.5}}, "cluster.learner_gpus=0.5"),
]


@pytest.mark.parametrize(("given", "named"), REFUSED)
def test_what_does_not_go_together_is_named_with_both_ways_out(given: dict[str, Any], named: str) -> None:
    check(settings(1, **given), files())
    with pytest.raises(InputError, match=r"learner\.num_processes=2") as caught:
        check(settings(2, **given), files())
    assert named in str(caught.value) and "expected" in str(caught.value)


@pytest.mark.parametrize("given", [{"model": {"adapter": {"kind": "lora"}}}, {"algorithm": "trpo"}])
def test_what_can_not_be_offloaded_is_refused(given: dict[str, Any]) -> None:
    check(settings(1, **given), files())
    with pytest.raises(InputError, match=r"learner\.offload=true does not go.*or learner\.offload=false"):
        check(settings(1, **given, learner={"offload": True}), files())
    check(settings(1, learner={"offload": True}), files(layerdrop=0.1))


def test_causal_models_and_encoder_decoders_are_spread_alike() -> None:
    check(settings(), files())
    check(settings(), files(is_encoder_decoder=True))


def test_dropout_is_no_reason_and_layers_that_are_skipped_are() -> None:
    """Each process skips layers of its own choice, so that one would wait for another's part for ever."""
    noisy = settings(model={"dropout": True})
    check(noisy, files(resid_pdrop=0.1, layerdrop=0.0))
    check(settings(), files(layerdrop=0.1))  # ppo trains without dropout
    for run in (noisy, settings(algorithm="supervised")):
        with pytest.raises(InputError, match=r"drops whole layers out: expected model\.dropout=false"):
            check(run, files(layerdrop=0.1))


@pytest.mark.parametrize(("workers", "gpus"), [(1, 2), (2, 2), (7, 2), (4, 4)])
def test_no_two_processes_of_a_learner_find_room_on_one_gpu(workers: int, gpus: int) -> None:
    placed = placed_on(settings(2, rollout={"num_workers": workers}), gpus)
    assert fits(placed, gpus, 2) and placed.num_learners == 2
    assert placed.learner.num_gpus > 0.5


def test_more_processes_than_gpus_do_not_fit() -> None:
    assert not fits(placed_on(settings(3), 2), 2, 2)
