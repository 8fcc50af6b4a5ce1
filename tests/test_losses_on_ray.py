"""Losses by `whetstone train` with every part real: a student meets its teacher, and pairs are told apart."""

import json
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np
import pytest
import torch

from services.commands import annotate
from tests.learner.test_distillation import logits_of
from tests.models import make_tiny_model
from tests.rollout_workers.generation import load_lm, perturb
from tests.runs import Run

pytestmark = [pytest.mark.ray, pytest.mark.long, pytest.mark.timeout(900)]

LEAN = ("metrics=[]", "tracking.enabled=false", "evaluate_every=0", "save_every=0")


def finished(folder: Path, name: str, *overrides: str) -> Run:
    run = Run(folder, name, *LEAN, *overrides)
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    return run


@pytest.mark.vllm
def test_the_kl_to_a_tiny_teacher_falls_to_under_a_hundredth_a_token(tmp_path: Path) -> None:
    """Measured on fresh texts by both models' whole softmaxes, too, without the learner's code."""
    student, teacher = (
        make_tiny_model(tmp_path / name, vocab=[str(number) for number in range(20)])
        for name in ("student", "teacher")
    )
    lm = load_lm(teacher)
    perturb(lm, 1, 0.1)
    lm.save_pretrained(teacher)
    run = finished(
        tmp_path,
        "distilled",
        *(f"model.path={student}", f"model.reference.path={teacher}", "algorithm=distillation"),
        *("algorithm.learning_rate=3e-3", "learner.lr_schedule=cosine", "learner.lr_end=0.02"),
        *("iterations=160", "rollout.engine=vllm", "rollout.max_tokens=2", "task.num_prompts=4"),
        "task.below=20",
        *("rollout.prompts_per_iteration=4", "rollout.group_size=32", "evaluation.num_prompts=1"),
        "rollout.deterministic=false",
    )
    curve = [row["loss/policy"] for row in run.folder.training_info()]
    print("KL a token:", *(f"{value:.4f}" for value in (*curve[::20], curve[-1])))
    assert curve[0] > 0.2
    assert fmean(curve[-10:]) < 0.01
    measured = divergence(load_lm(run.folder.model), load_lm(teacher), prompts_of(run))
    print(f"measured anew: {measured:.4f}")
    assert measured < 0.01 < 0.2 < divergence(load_lm(student), load_lm(teacher), prompts_of(run))


def prompts_of(run: Run) -> torch.Tensor:
    """The training prompts' tokens, a row each; all have one length here."""
    from services.config.settings import RunSettings
    from services.training.sources.prompts import prompts_of
    from services.training.sources.reading import reading_of

    settings = RunSettings.model_validate(run.folder.config())
    prompts = prompts_of(settings.task, settings.task_name, "train")
    return torch.tensor([reading_of(settings, "train")(prompt) for prompt in prompts])


@torch.no_grad()
def divergence(student: Any, teacher: Any, prompts_BP: torch.Tensor) -> float:
    """The mean reverse KL of a first and a second token, drawn by the student: 256 texts of each prompt."""
    torch.manual_seed(0)
    tokens_BL, divergences = prompts_BP.repeat(256, 1), []
    for _ in range(2):
        own_BV, other_BV = (logits_of(lm, tokens_BL)[:, -1].log_softmax(-1) for lm in (student, teacher))
        divergences.append((own_BV.exp() * (own_BV - other_BV)).sum(-1))
        tokens_BL = torch.cat([tokens_BL, own_BV.exp().multinomial(1)], dim=-1)
    return float(torch.stack(divergences).mean())


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


@pytest.fixture(scope="module")
def pairs() -> list[dict[str, str]]:
    """Eight numbers in order, and the same ones in no order, after twelve prompts."""
    draw, rows = np.random.default_rng(0), []
    for place in range(48):
        numbers = draw.integers(10, 100, 8)
        responses = {"chosen": sorted(numbers), "rejected": list(numbers[::-1])}
        texts = {name: " ".join(map(str, those)) for name, those in responses.items()}
        rows.append({"prompt": f"{place % 12} {place // 12}", **texts})
    return rows


@pytest.fixture(scope="module")
def data(
    tmp_path_factory: pytest.TempPathFactory, model: Path, pairs: list[dict[str, str]]
) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("data")
    file = folder / "pairs.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in pairs))
    arguments = [f"data.files={{train: {file}, validation: {file}}}", "reward=increasing_numbers"]
    arguments += [f"reference={model}", f"output={folder / 'out'}", "executor=here", "learner.device=cpu"]
    assert annotate.run([*arguments, "rollout.engine=transformers", "rollout.max_tokens=16"]) == 0
    yield folder / "out"


@pytest.mark.parametrize("algorithm", ["kto", "orpo"])
def test_the_chosen_response_becomes_the_likelier_one(
    model: Path, data: Path, pairs: list[dict[str, str]], tmp_path: Path, algorithm: str
) -> None:
    run = finished(
        tmp_path,
        algorithm,
        *(f"data={data}", f"algorithm={algorithm}", "algorithm.beta=0.5", f"model.path={model}"),
        *("algorithm.learning_rate=3e-3", "iterations=40", "rollout.engine=transformers"),
    )
    rows = run.folder.training_info()
    losses = [row["loss/policy"] for row in rows]
    before, after = preferred(model, pairs), preferred(run.folder.model, pairs)
    print(
        algorithm, f"loss {fmean(losses[:4]):.3f} to {fmean(losses[-4:]):.3f}; preferred {before} to {after}"
    )
    assert fmean(losses[-4:]) < 0.9 * fmean(losses[:4])
    assert abs(before - 0.5) < 0.25 and after >= 0.9


@torch.no_grad()
def preferred(model: Path, pairs: list[dict[str, str]]) -> float:
    """The share of pairs whose chosen response the model finds likelier."""
    from transformers import AutoTokenizer

    lm, its = load_lm(model), AutoTokenizer.from_pretrained(model)
    wins = 0
    for row in pairs:
        scores = []
        for name in ("chosen", "rejected"):
            tokens_1L = torch.tensor([its(f"{row['prompt']} {row[name]}")["input_ids"]])
            logprobs_1LV = logits_of(lm, tokens_1L[:, :-1]).log_softmax(-1)
            taken_1L = logprobs_1LV.gather(-1, tokens_1L[:, 1:, None]).squeeze(-1)
            scores.append(float(taken_1L[0, len(its(row["prompt"])["input_ids"]) - 1 :].sum()))
        wins += scores[0] > scores[1]
    return wins / len(pairs)
