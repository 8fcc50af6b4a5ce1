"""A learner of several processes is refused where it does not go together with something else."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from contracts.settings import build
from services.config.settings import RunSettings
from services.models.files import ModelFiles
from services.training.preflight.capacity.memory_model import MemoryNeeds
from services.training.preflight.checks.process_checks import check_processes
from services.training.preflight.placement import fits
from tests.services.training.preflight.test_placement import placed_on


def settings(count: int = 2, **changes: Any) -> RunSettings:
    model = {"path": "gpt2", **changes.pop("model", {})}
    learner = {"num_processes": count, **changes.pop("learner", {})}
    whole = {"algorithm": "ppo", "task": "increasing_numbers", "model": model, **changes}
    return build(RunSettings, {**whole, "learner": learner}, where="")


def files(**config: Any) -> ModelFiles:
    return ModelFiles(Path("gpt2"), Path("gpt2"), {"model_type": "gpt2", **config}, num_parameters=100)


def check(run: RunSettings, model: ModelFiles) -> None:
    check_processes(run.learner, run.model, run.algorithm, run.cluster.learner_gpus, model)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"model": {"trainable_layers": 2}}, "model.trainable_layers=2"),
    ({"cluster": {"learner_gpus": 0.5, "worker_gpus": 0.5}}, "cluster.learner_gpus=0.5"),
]


@pytest.mark.parametrize(("changes", "named"), REFUSED)
def test_what_does_not_go_together_is_named_with_both_ways_out(changes: dict[str, Any], named: str) -> None:
    check(settings(1, **changes), files())
    with pytest.raises(InputError, match=r"learner\.num_processes=2") as caught:
        check(settings(2, **changes), files())
    assert named in str(caught.value) and "expected" in str(caught.value)


LORA = {"kind": "lora"}
WHOLE: list[tuple[dict[str, Any], str]] = [
    ({"algorithm": "trpo"}, "expected another algorithm"),
    ({"algorithm": "trpo", "model": {"adapter": LORA}}, "expected another algorithm"),
    ({"model": {"adapter": {"kind": "qlora"}}}, r"kind=qlora, .* expected model\.adapter\.kind=lora"),
    (
        {"model": {"adapter": LORA | {"serve": "adapter", "roles": ["pro"]}}},
        r"roles=\['pro'\], .* expected model\.adapter\.roles=\[\]",
    ),
    (
        {"model": {"adapter": LORA, "value_trunk": "separate"}},
        r"separate, .* expected model\.value_trunk=shared",
    ),
    (
        {"algorithm": "nlpo", "model": {"adapter": LORA}},
        "a copy of the policy, .* expected another algorithm",
    ),
]


@pytest.mark.parametrize(("changes", "expected"), WHOLE)
def test_what_can_not_be_offloaded_is_refused(changes: dict[str, Any], expected: str) -> None:
    check(settings(1, **changes), files())
    with pytest.raises(
        InputError, match=rf"^learner\.offload=true does .*{expected}, or learner\.offload=false"
    ):
        check(settings(1, **changes, learner={"offload": True}), files())


def test_layers_that_are_skipped_and_a_plain_adapter_can_be_offloaded() -> None:
    check(settings(1, learner={"offload": True}), files(layerdrop=0.1))
    check(settings(1, model={"adapter": LORA}, learner={"offload": True}), files())


@pytest.mark.parametrize(
    ("changes", "copies"),
    [({}, 1), ({"model": {"adapter": LORA}}, 1), *((changes, 2) for changes, _ in WHOLE)],
)
def test_two_processes_share_one_copy_or_hold_two(changes: dict[str, Any], copies: int) -> None:
    run = settings(2, **changes)
    check(run, files())
    alone, together = (
        MemoryNeeds(run.model, run.algorithm, learner, run.rollout, 10**6).of_learner()
        for learner in (run.learner.model_copy(update={"num_processes": 1}), run.learner)
    )
    assert together == {what: copies * size for what, size in alone.items()}


def test_causal_models_and_encoder_decoders_are_spread_alike() -> None:
    check(settings(), files())
    check(settings(), files(is_encoder_decoder=True))


def test_dropout_is_no_reason_and_layers_that_are_skipped_are() -> None:
    """Each process skips layers of its own choice, so that one would wait for another's part for ever."""
    noisy = settings(model={"dropout": True})
    check(noisy, files(resid_pdrop=0.1, layerdrop=0.0))
    check(settings(), files(layerdrop=0.1))  # ppo trains without dropout
    for run in (noisy, settings(algorithm="supervised")):
        with pytest.raises(InputError, match=r"has layerdrop: expected model\.dropout=false"):
            check(run, files(layerdrop=0.1))


@pytest.mark.parametrize(("workers", "gpus"), [(1, 2), (2, 2), (7, 2), (4, 4)])
def test_no_two_processes_of_a_learner_find_room_on_one_gpu(workers: int, gpus: int) -> None:
    placed = placed_on(settings(2, rollout={"num_workers": workers}), gpus)
    assert fits(placed, gpus, 2) and placed.num_learners == 2
    assert placed.learner.num_gpus > 0.5


def test_more_processes_than_gpus_do_not_fit() -> None:
    assert not fits(placed_on(settings(3), 2), 2, 2)
