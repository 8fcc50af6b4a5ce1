"""`whetstone train … data=ROWS`: rows as they are, whatever the algorithm needs of them, in one command."""

import json
import math
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from contracts.settings import build
from services.config.compose import compose, run_settings
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.training.preflight import preflight
from services.training.train import own_annotation
from tests.local_run import LocalLearner, small_run, told_at_start, train_here
from tests.models import make_tiny_model

NUM = 12  # prompts of train
PAIRS = [{"prompt": f"{i} 1", "chosen": f" {i} 77", "rejected": f" {i} {i + 1}"} for i in range(NUM)]
HELD_OUT = [{"prompt": f"{i} 1", "chosen": f" {i} 77", "rejected": f" {i} {i + 1}"} for i in range(40, 44)]
Rows = list[dict[str, Any]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), sharpness=3.0)


def folder_of(place: Path, train: Rows, held_out: Rows) -> Path:
    place.mkdir(parents=True, exist_ok=True)
    for split, rows in (("train", train), ("validation", held_out), ("test", held_out)):
        text = "".join(json.dumps(row) + "\n" for row in rows)
        (place / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return place


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return folder_of(tmp_path_factory.mktemp("pairs"), PAIRS, HELD_OUT)


def settings(model: Path, output: Path, data: Path, name: str = "dpo", **changes: Any) -> RunSettings:
    """Batches of four examples: an epoch of twelve has three. As `data=` gives them, with its task."""
    words = [f"data={data}", f"algorithm={name}", f"model.path={model}"]
    composed = compose(words)
    whole = {
        "algorithm": {"name": name, "learning_rate": 1e-3},
        "task": composed["task"],
        "data": composed.get("data"),
        "reward": None,
        "iterations": 3,
        "rollout": {"prompts_per_iteration": 4, "max_tokens": 6},
        **changes,
    }
    return small_run(model, output, **whole)


def evaluated(folder: RunFolder) -> list[dict[str, float]]:
    return [row["metrics"] for row in folder.evaluations("val")]


def test_dpo_learns_from_pairs_and_is_measured_by_held_out_ones(
    model: Path, pairs: Path, tmp_path: Path
) -> None:
    folder = train_here(settings(model, tmp_path, pairs, iterations=9))
    first, last = folder.training_info()[0], folder.training_info()[-1]
    assert first["loss/policy"] == pytest.approx(math.log(2), abs=1e-4)  # the policy is its own reference
    assert last["loss/policy"] < 0.6 and last["rewards/accuracy"] == 1.0
    before, after = evaluated(folder)
    assert before["loss"] == pytest.approx(math.log(2), abs=1e-4)
    assert after["loss"] < 0.6 and after["rewards/margin"] > 0.1
    # a rank is no reward
    assert not any(key.startswith("reward/mean") for key in (*before, *folder.rollout_info()[0]))


def test_the_log_probabilities_are_the_start_models(model: Path, pairs: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    train_here(settings(model, tmp_path, pairs, iterations=1))
    lm = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    for split, count in (("train", 2 * NUM), ("validation", 4), ("test", 4)):
        kept = pq.read_table(tmp_path / "run" / "data" / split / "annotated.parquet").to_pylist()
        assert len(kept) == count
        for row in kept[:4]:
            whole = [*row["prompt_tokens"], *row["tokens"]]
            with torch.no_grad():
                logprobs_LV = lm(torch.tensor([whole])).logits[0].log_softmax(-1)
            start = len(row["prompt_tokens"])
            expected = [float(logprobs_LV[at - 1, whole[at]]) for at in range(start, len(whole))]
            assert row["ref_logprobs"] == pytest.approx(expected, abs=1e-4)


def test_a_resumed_run_computes_nothing_again_and_ends_as_one_that_never_stopped(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = train_here(settings(model, tmp_path / "whole", pairs, iterations=6))
    train_here(settings(model, tmp_path / "half", pairs, iterations=3))
    batch_sizes: list[int] = []
    logprobs = LocalLearner.logprobs

    def counted(self: LocalLearner, rollouts: Any, on_progress: Any) -> Any:
        batch_sizes.append(len(rollouts))
        return logprobs(self, rollouts, on_progress)

    monkeypatch.setattr(LocalLearner, "logprobs", counted)
    half = train_here(settings(model, tmp_path / "half", pairs, iterations=6))
    assert batch_sizes == []
    same = ("loss/policy", "rewards/margin")
    for ours, theirs in zip(half.training_info(), whole.training_info(), strict=True):
        assert [ours[key] for key in same] == [theirs[key] for key in same]


def test_a_start_that_was_killed_goes_on_with_the_missing_parts(
    model: Path, pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(own_annotation, "ROWS_PER_PART", 8)
    batch_sizes: list[int] = []
    logprobs = LocalLearner.logprobs

    def dies_at_the_second(self: LocalLearner, rollouts: Any, on_progress: Any) -> Any:
        batch_sizes.append(len(rollouts))
        if len(batch_sizes) == 2:
            raise KeyboardInterrupt
        return logprobs(self, rollouts, on_progress)

    monkeypatch.setattr(LocalLearner, "logprobs", dies_at_the_second)
    with pytest.raises(KeyboardInterrupt):
        train_here(settings(model, tmp_path, pairs))
    train_here(settings(model, tmp_path, pairs))
    # three parts of train, of which the first was kept; one of the two prompts that evaluations ask
    assert batch_sizes == [8, 8, 8, 8, 4, 4]


def test_rows_that_changed_are_not_mixed_with_others(model: Path, tmp_path: Path) -> None:
    data = folder_of(tmp_path / "pairs", PAIRS, HELD_OUT)
    train_here(settings(model, tmp_path / "runs", data, iterations=1))
    folder_of(data, [*PAIRS[:-1], {**PAIRS[-1], "chosen": " 9 9"}], HELD_OUT)
    with pytest.raises(Exception, match=r"of other data or of another model:\n  rows\.sha256"):
        train_here(settings(model, tmp_path / "runs", data, iterations=2))


@pytest.mark.parametrize("name", ["ipo", "simpo", "orpo"])
def test_other_losses_over_pairs(model: Path, pairs: Path, tmp_path: Path, name: str) -> None:
    folder = train_here(settings(model, tmp_path, pairs, name, iterations=6))
    assert {"loss", "rewards/accuracy"} <= set(evaluated(folder)[-1])
    assert evaluated(folder)[-1]["loss"] < evaluated(folder)[0]["loss"]
    is_compared = name == "ipo"  # the two others need no reference
    assert (tmp_path / "run" / "data").exists() == is_compared


def test_kto_reads_trls_columns(model: Path, tmp_path: Path) -> None:
    rows = [
        {"prompt": row["prompt"], "completion": row[column], "label": column == "chosen"}
        for row in PAIRS
        for column in ("chosen", "rejected")
    ]
    data = folder_of(tmp_path / "rows", rows, rows[:8])
    folder = train_here(settings(model, tmp_path, data, "kto", iterations=6))
    assert [row["rollouts/trained"] for row in folder.rollout_info()] == [4] * 6
    assert evaluated(folder)[0]["loss"] == pytest.approx(0.5, abs=1e-4)


def test_pro_reads_ranked_lists(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i} 1", "response": [f" {i} 77", f" {i} 50", f" {i} 2"]} for i in range(NUM)]
    data = folder_of(tmp_path / "rows", rows, rows[:4])
    run = settings(model, tmp_path, data, "pro", iterations=6)
    ranked = run.model_copy(update={"data": run.data.model_copy(update={"num_responses": 3})})  # type: ignore[union-attr]
    losses = [row["loss/policy"] for row in train_here(ranked).training_info()]
    assert losses[-1] < losses[0]


def test_a_pair_of_conversations_shares_its_beginning(model: Path, tmp_path: Path) -> None:
    """TRL's form without a prompt: chosen and rejected are whole conversations."""
    rows = [
        {
            name: [{"role": "user", "content": row["prompt"]}, {"role": "assistant", "content": row[name]}]
            for name in ("chosen", "rejected")
        }
        for row in PAIRS
    ]
    data = folder_of(tmp_path / "rows", rows, rows[:4])
    train_here(settings(model, tmp_path, data, iterations=1))
    kept = pq.read_table(tmp_path / "run" / "data" / "train" / "annotated.parquet").to_pylist()
    assert [row["prompt"] for row in kept[:2]] == [PAIRS[0]["prompt"]] * 2
    assert [row["good"] for row in kept[:2]] == [True, False]


def test_a_lol_is_scored_and_valued_inside_of_the_command(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i} 1", "response": f" {i} 77"} for i in range(NUM)]
    data = folder_of(tmp_path / "rows", rows, rows[:8])
    run = settings(model, tmp_path, data, "a_lol", reward="tests.services.annotated_rows:Last", iterations=3)
    folder = train_here(run)
    kept = pq.read_table(tmp_path / "run" / "data" / "train" / "annotated.parquet").to_pylist()
    assert [row["reward.Last"] for row in kept] == pytest.approx([0.77] * NUM)
    assert all(0 <= row["value"] <= 1 for row in kept)
    training = folder.training_info()
    assert training[0]["ratio/mean"] == pytest.approx(1.0, abs=1e-4)
    assert {"loss", "perplexity", "token_accuracy", "reward/mean"} <= set(evaluated(folder)[-1])


def test_supervised_training_on_rows_needs_no_reward(model: Path, tmp_path: Path) -> None:
    rows = [{"prompt": f"{i} 1", "completion": f" {i} 77"} for i in range(NUM)]
    data = folder_of(tmp_path / "rows", rows, rows[:4])
    run = settings(model, tmp_path, data, "supervised", iterations=8)
    assert run.data is None and run.task_name == "prompts" and run.reward == ()
    folder = train_here(run)
    before, after = evaluated(folder)
    assert after["loss"] < before["loss"] and after["perplexity"] == pytest.approx(math.exp(after["loss"]))
    assert not any("reward" in key for key in after)


def test_the_best_checkpoint_by_a_loss_is_the_lowest(model: Path, pairs: Path, tmp_path: Path) -> None:
    whole = settings(
        model, tmp_path, pairs, iterations=4, evaluate_every=1, save_every=1, keep_best="val/loss"
    )
    folder = train_here(whole)
    losses = {row["epoch"]: row["metrics"]["loss"] for row in folder.evaluations("val") if row["epoch"]}
    best = json.loads(folder.best_file.read_text())
    assert (best["better"], best["iteration"]) == ("min", min(losses, key=losses.__getitem__))


@pytest.mark.parametrize(
    ("name", "rows", "message"),
    [
        ("dpo", [{"prompt": "1 1", "response": " 2 2"}], "none of 1 prompts has 2 responses"),
        ("a_lol", [{"prompt": "1 1", "response": " 2 2"}], "weights responses by their rewards.*reward=NAME"),
        ("dpo", [{"text": "1 1"}], "no column 'prompt'.*learns from rows of prompt, chosen and rejected"),
    ],
)
def test_what_does_not_fit_is_refused_before_the_start(
    model: Path, tmp_path: Path, name: str, rows: Rows, message: str
) -> None:
    data = folder_of(tmp_path / "rows", rows * 2, rows)
    assert re.search(message, told_at_start(settings(model, tmp_path, data, name)), re.DOTALL)


def test_data_that_is_neither_rows_nor_an_annotation_is_refused(model: Path, tmp_path: Path) -> None:
    missing = {"folder": str(tmp_path / "nowhere")}
    whole = small_run(model, tmp_path, algorithm="dpo", data=missing, task="increasing_numbers")
    assert "there is no annotation and no rows; expected" in told_at_start(whole)


def test_columns_are_named_as_everywhere(model: Path, tmp_path: Path) -> None:
    rows = [{"q": row["prompt"], "yes": row["chosen"], "no": row["rejected"]} for row in PAIRS]
    file = folder_of(tmp_path / "rows", rows, rows[:4]) / "train.jsonl"
    words = [f"data.files={file}", "data.prompt=q", "data.chosen=yes", "data.rejected=no"]
    run = run_settings([*words, "algorithm=dpo", f"model.path={model}"])
    assert run.data is not None and run.data.has_rows and run.task_name == "prompts"
    again = build(RunSettings, run.resolved(), where="")
    assert again.data == run.data


def test_held_out_prompts_alone_are_asked_and_not_measured(model: Path, tmp_path: Path) -> None:
    """Said before the start, unless the best checkpoint is chosen by what is not there."""
    data = folder_of(tmp_path / "rows", PAIRS, [{"prompt": "40 1"}, {"prompt": "41 1"}])
    run = settings(model, tmp_path, data, iterations=1)
    warnings = preflight.check(run).warnings
    for split in ("validation", "test"):
        start = f"evaluations do not measure {split} responses: data"
        assert sum(warning.startswith(start) for warning in warnings) == 1
    folder = train_here(run)
    assert evaluated(folder) and "loss" not in evaluated(folder)[0]
    by_loss = run.model_copy(update={"keep_best": "val/loss"})
    assert "keep_best=val/loss needs validation responses: data" in told_at_start(by_loss)
