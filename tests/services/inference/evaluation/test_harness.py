"""Evaluating a model by lm-eval: refusals, and the reading of its numbers."""

import importlib.util
import json
from pathlib import Path

import pytest

from contracts.errors import InputError
from services.commands.evaluate import run as evaluate
from services.inference.evaluation.harness import (
    HarnessOptions,
    check_harness,
    engine_of,
    metrics_of,
)
from services.inference.evaluation.result import print_tasks
from services.inference.generation.run_model import find_model
from tests.models import make_tiny_model

HAS_LM_EVAL = importlib.util.find_spec("lm_eval") is not None
TASK = """task: ours
dataset_path: json
dataset_kwargs:
  data_files:
    test: {data}
test_split: test
output_type: multiple_choice
doc_to_text: "{{{{q}}}}"
doc_to_choice: "{{{{[good, bad]}}}}"
doc_to_target: 0
metric_list:
  - metric: acc
    aggregation: mean
    higher_is_better: true
"""


@pytest.mark.skipif(HAS_LM_EVAL, reason="lm-eval is installed")
def test_without_lm_eval_the_command_that_installs_it_is_told() -> None:
    with pytest.raises(InputError, match=r"lm-eval, which is not installed: pip install 'lm_eval\[hf\]'"):
        evaluate(["model.path=gpt2", "--tasks", "gsm8k"])


def test_a_task_s_file_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(InputError, match=r"--tasks nowhere/ours.yaml: there is no such file"):
        check_harness(HarnessOptions(("gsm8k", "nowhere/ours.yaml")))


@pytest.mark.parametrize(
    "words", [[], ["model.path=gpt2", "seed=1"], ["model.path=gpt2", "model.path=gpt2-xl"], ["task=imdb"]]
)
def test_a_model_and_nothing_else_is_handed_over(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    with pytest.raises(InputError, match=r"expected a run's folder or model.path=MODEL, and nothing else"):
        evaluate([*words, "--tasks", "gsm8k"])


def test_numbers_are_named_by_task_metric_and_rule(capsys: pytest.CaptureFixture[str]) -> None:
    gsm8k = {
        "alias": "gsm8k",
        "exact_match,strict-match": 0.25,
        "exact_match_stderr,strict-match": 0.02,
        "exact_match,flexible-extract": 0.5,
        "exact_match_stderr,flexible-extract": "N/A",
    }
    metrics = metrics_of({"gsm8k": gsm8k, "words": {"alias": "words", "word_perplexity,none": 37.5}})
    assert metrics == {
        "gsm8k/exact_match/strict-match": 0.25,
        "gsm8k/exact_match/strict-match/standard_error": 0.02,
        "gsm8k/exact_match/flexible-extract": 0.5,
        "words/word_perplexity": 37.5,
    }
    count = {"gsm8k": 1319}
    print_tasks({"model": "gpt2", "lm_eval": "0.4.13", "metrics": metrics, "num_questions": count}, None)
    printed = capsys.readouterr().out.splitlines()
    assert [line.replace("│", " ").split() for line in printed if "│" in line] == [
        ["gsm8k/exact_match/strict-match", "0.25", "0.02", "1319"],
        ["gsm8k/exact_match/flexible-extract", "0.5", "1319"],
        ["words/word_perplexity", "37.5"],
    ]


def test_a_cpu_answers_with_transformers_unless_the_run_says_vllm(tmp_path: Path) -> None:
    model = find_model(str(make_tiny_model(tmp_path / "model")))
    assert engine_of(model, on_gpu=False) == "transformers"


@pytest.mark.slow
@pytest.mark.skipif(not HAS_LM_EVAL, reason="needs lm-eval")
def test_a_local_task_is_asked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = tmp_path / "rows.jsonl"
    data.write_text("".join(json.dumps({"q": "a", "good": " b", "bad": " c"}) + "\n" for _ in range(4)))
    (tmp_path / "ours.yaml").write_text(TASK.format(data=data))
    model = make_tiny_model(tmp_path / "model")
    assert evaluate([f"model.path={model}", "--tasks", str(tmp_path / "ours.yaml"), "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["metrics"]["ours/acc"] in (0.0, 1.0)  # four times the same question
    assert printed["num_questions"] == {"ours": 4}
