"""The sampler on a real engine: one job's fault, or deleted weights, never change another job's text."""

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file
from torch import Tensor

from contracts.errors import InputError, WorkerError
from contracts.rollout import COOLEST, Sampling
from services.training.service.jobs import Job, Sampled
from services.training.service.sampler import Sampler

GREEDY = Sampling(max_tokens=8, temperature=0.0)
HEAD = "lm_head.weight"


@pytest.fixture
def sampler(tiny: Path) -> Sampler:
    return Sampler(str(tiny), "transformers", None)


def job(name: str, first: int, sampling: Sampling = GREEDY) -> Job:
    return Job(name, (first, first + 1), sampling, 1, seed=0)


def saved(tiny: Path, folder: Path, change: Callable[[Tensor], Tensor]) -> str:
    """Save the tiny model's weights with another head, as a whole model's checkpoint for sampling."""
    weights = load_file(tiny / "model.safetensors")
    folder.mkdir()
    save_file(weights | {HEAD: change(weights[HEAD]).contiguous()}, folder / "model.safetensors")
    return str(folder)


def tokens(drawn: Sampled | str) -> tuple[int, ...]:
    assert isinstance(drawn, Sampled)
    return drawn.drawn[0].tokens


def test_a_draw_that_failed_leaves_nothing_to_the_next(sampler: Sampler, tiny: Path, tmp_path: Path) -> None:
    expected = tokens(sampler.draw(None, [job("b", 20)])["b"])
    diverged = saved(tiny, tmp_path / "nan", lambda head: head * float("nan"))
    with pytest.raises(WorkerError, match="weights have diverged"):
        sampler.draw(diverged, [job("a", 5)])
    assert tokens(sampler.draw(None, [job("b", 20)])["b"]) == expected


def test_a_job_that_leaves_nothing_to_draw_fails_alone(sampler: Sampler, tiny: Path, tmp_path: Path) -> None:
    steep = saved(tiny, tmp_path / "steep", lambda head: head * 3e37)
    expected = tokens(sampler.draw(steep, [job("b", 20)])["b"])
    cold = replace(GREEDY, temperature=COOLEST)
    drawn = sampler.draw(steep, [job("a", 5, cold), job("b", 20)])
    assert "no token to draw" in str(drawn["a"])
    assert tokens(drawn["b"]) == expected


def test_a_name_that_is_saved_again_means_the_new_weights(
    sampler: Sampler, tiny: Path, tmp_path: Path
) -> None:
    folder = saved(tiny, tmp_path / "again", lambda head: head)
    before = tokens(sampler.draw(folder, [job("a", 5)])["a"])
    shutil.rmtree(folder)
    saved(tiny, tmp_path / "again", lambda head: -head)
    assert tokens(sampler.draw(folder, [job("a", 5)])["a"]) != before


def test_deleted_weights_are_not_the_bases(sampler: Sampler, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="were deleted"):
        sampler.draw(str(tmp_path / "gone"), [job("a", 5)])
    (tmp_path / "half").mkdir()  # a deletion is not done yet
    with pytest.raises(InputError, match="were deleted"):
        sampler.draw(str(tmp_path / "half"), [job("a", 5)])
