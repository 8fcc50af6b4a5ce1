"""Tokens of a micro-batch on a CPU: chosen by the model's size and the memory, kept where they were set."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.gpu_plans import run_of
from benchmarks.qwen_shapes import CONFIGS, files_of
from contracts.settings import with_options
from services.models.shape import shape_of
from services.training.preflight.capacity import cpu_budget
from services.training.preflight.capacity.cpu_budget import (
    BUDGETS,
    ENOUGH,
    FAST,
    Budget,
    budget_of,
    token_budget,
)
from services.training.preflight.capacity.gpu_defaults import memory_needs
from services.training.preflight.capacity.memory_model import GIB, KEPT_PIECES, pass_bytes
from services.training.preflight.deployment import Machine, deployment_of

CPU = Machine(2.0, 0)
LARGE, SMALL = 1000 * GIB, 1 * GIB


def chosen(available: float, config: dict[str, Any] | None = None, **options: int) -> Budget:
    run, files = run_of(learner=dict(options)), files_of("0.5B", config)
    needs = memory_needs(run.model, run.algorithm, run.learner, run.rollout, files)
    shape = shape_of(files)
    assert needs is not None and shape is not None
    return budget_of(needs, shape, available)


def of_run(folder: Path, machine: Machine, **options: int) -> Budget | None:
    run, files = run_of(learner=dict(options)), files_of("0.5B")
    needs = memory_needs(run.model, run.algorithm, run.learner, run.rollout, files)
    return token_budget(needs, shape_of(files), deployment_of(run, files, machine), folder)


def test_more_than_enough_is_not_taken() -> None:
    """A CPU is as fast with small micro-batches, down to FAST tokens."""
    budget, larger = chosen(LARGE), chosen(LARGE, token_budget=2 * FAST)
    assert budget.is_chosen and budget.tokens == FAST and larger.passes > ENOUGH
    assert budget.notes and not budget.warnings


@pytest.mark.parametrize(("width", "tokens"), [(64, 16384), (576, 1024)])
def test_a_small_model_takes_large_micro_batches(width: int, tokens: int) -> None:
    """Five layers, 64 wide; and SmolLM2-135M, for which 2,048 tokens take 4.7 GiB."""
    layers, heads = (5, 8) if width == 64 else (30, 9)
    shape = {"hidden_size": width, "intermediate_size": 8 * width // 3, "num_hidden_layers": layers}
    words = {"num_attention_heads": heads, "num_key_value_heads": heads // 2, "vocab_size": 49_152}
    config = {**CONFIGS["0.5B"], **shape, **words}
    assert chosen(LARGE, config).tokens == tokens


def test_the_sum_counts_what_malloc_keeps() -> None:
    run, files = run_of(), files_of("0.5B")
    needs, shape = memory_needs(run.model, run.algorithm, run.learner, run.rollout, files), shape_of(files)
    assert needs is not None and shape is not None
    passes = sum(pass_bytes(needs, shape, 4096, 4, on_cpu=True).values())
    assert chosen(LARGE, token_budget=4096).passes == pytest.approx((1 + KEPT_PIECES) * passes)


def test_less_memory_takes_a_lower_budget_and_too_little_is_a_warning() -> None:
    much = chosen(LARGE)
    less = chosen(much.rest + 0.7 * much.passes)
    assert less.tokens < much.tokens and less.fits
    none = chosen(SMALL)
    assert none.tokens == BUDGETS[-1] and not none.notes
    assert none.warnings[0].startswith(f"memory may not suffice: learner.token_budget={BUDGETS[-1]}: ")
    assert "lower learner.token_budget" not in none.warnings[0]


def test_what_somebody_set_stays_and_warns() -> None:
    budget = chosen(20 * GIB, token_budget=16384)
    assert budget.tokens == 16384 and not budget.is_chosen and not budget.notes
    assert "lower learner.token_budget" in budget.warnings[0]


def test_a_run_has_the_choice_in_its_configuration_and_keeps_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_budget, "available_bytes", lambda: LARGE)
    budget = of_run(tmp_path, CPU)
    assert budget is not None
    config = with_options(run_of(), budget.options).resolved()
    assert config["learner"]["token_budget"] == budget.tokens == FAST

    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"learner": config["learner"]}))
    monkeypatch.setattr(cpu_budget, "available_bytes", lambda: SMALL)
    again = of_run(tmp_path, CPU)
    assert again is not None and again.tokens == FAST and again.warnings
    mine = of_run(tmp_path, CPU, token_budget=640)
    assert mine is not None and mine.tokens == 640


def test_a_run_of_a_gpu_that_goes_on_on_a_cpu_takes_what_fits_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cpu_budget, "available_bytes", lambda: LARGE)
    on_gpu = run_of().resolved()
    assert on_gpu["learner"]["token_budget"] == BUDGETS[0]
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"learner": on_gpu["learner"]}))
    budget = of_run(tmp_path, CPU)
    assert budget is not None and budget.is_chosen and budget.tokens == FAST
    mine = of_run(tmp_path, CPU, token_budget=BUDGETS[0])
    assert mine is not None and mine.tokens == BUDGETS[0]


def test_a_gpu_and_a_cluster_choose_for_themselves(tmp_path: Path) -> None:
    for machine in (Machine(8.0, 1, gpu_bytes=80e9), Machine(8.0, 0, cluster="127.0.0.1:6379")):
        assert of_run(tmp_path, machine) is None
