"""A learner of several processes is refused where it does not go together with something else."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.model_files import ModelFiles
from services.placement import fits, placement
from services.process_checks import check_processes
from services.settings import RunSettings


def settings(count: int = 2, **given: Any) -> RunSettings:
    model = {"path": "gpt2", **given.pop("model", {})}
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": model, **given}
    return build(RunSettings, {**whole, "learner": {"num_processes": count}}, where="")


def files(**config: Any) -> ModelFiles:
    return ModelFiles(Path("gpt2"), Path("gpt2"), {"model_type": "gpt2", **config}, num_parameters=100)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": {"adapter": {"kind": "lora"}}}, "model.adapter.kind=lora"),
    ({"model": {"trainable_layers": 2}}, "model.trainable_layers=2"),
    ({"cluster": {"learner_gpus": 0.5, "worker_gpus": 0.5}}, "cluster.learner_gpus=0.5"),
]


@pytest.mark.parametrize(("given", "named"), REFUSED)
def test_what_does_not_go_together_is_named_with_both_ways_out(given: dict[str, Any], named: str) -> None:
    check_processes(settings(1, **given), files())
    with pytest.raises(InputError, match=r"learner\.num_processes=2") as caught:
        check_processes(settings(2, **given), files())
    assert named in str(caught.value) and "expected" in str(caught.value)


def test_an_encoder_decoder_is_refused_and_a_causal_model_is_not() -> None:
    check_processes(settings(), files())
    with pytest.raises(InputError, match=r"model\.path=gpt2, an encoder-decoder: expected a causal model"):
        check_processes(settings(), files(is_encoder_decoder=True))


def test_dropout_is_no_reason_and_layers_that_are_skipped_are() -> None:
    """Each process skips layers of its own choice, so that one would wait for another's part for ever."""
    noisy = settings(model={"dropout": True})
    check_processes(noisy, files(resid_pdrop=0.1, layerdrop=0.0))
    check_processes(settings(), files(layerdrop=0.1))  # ppo trains without dropout
    for run in (noisy, settings(algorithm="supervised")):
        with pytest.raises(InputError, match=r"drops whole layers out: expected model\.dropout=false"):
            check_processes(run, files(layerdrop=0.1))


@pytest.mark.parametrize(("workers", "gpus"), [(1, 2), (2, 2), (7, 2), (4, 4)])
def test_no_two_processes_of_a_learner_find_room_on_one_gpu(workers: int, gpus: int) -> None:
    placed = placement(settings(2, rollout={"num_workers": workers}), gpus)
    assert fits(placed, gpus, 2) and placed.num_learners == 2
    assert placed.learner.num_gpus > 0.5


def test_more_processes_than_gpus_do_not_fit() -> None:
    assert not fits(placement(settings(3), 2), 2, 2)
