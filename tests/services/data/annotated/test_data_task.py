"""A run on annotated data that names no task: whose prompts it is evaluated with, and what is told."""

import io
import json
from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.commands import annotate
from services.config.compose import compose, run_settings
from services.data.annotated.task import disagreement
from tests.local_run import train_here
from tests.models import make_tiny_model

PAIRS = "tests.services.annotated_rows:Pairs"
MODEL = "model.path=some/model"
HERE = ["executor=here", "reward=length"]


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("annotated") / "pairs"
    rewards = "reward=[{name: length, target: 4}, {name: distinct_n, weight: 0.5}]"
    arguments = [f"task={PAIRS}", "task.num=7", rewards, "executor=here", f"output={folder}"]
    assert annotate.run(arguments) == 0
    return folder


def asked(data: Path, *overrides: str) -> dict[str, Any]:
    return compose([MODEL, "algorithm=wbc", f"data={data}", *overrides])


def test_the_task_and_its_rewards_are_those_that_were_annotated(pairs: Path) -> None:
    options = asked(pairs)
    assert options["task"] == {"name": PAIRS, "num": 7}
    run = run_settings([MODEL, "algorithm=wbc", f"data={pairs}"])
    assert run.run_name == "Pairs-wbc-seed0"
    assert [(part.name, part.weight, part.options) for part in run.reward] == [
        ("length", 1.0, {"target": 4}),
        ("distinct_n", 0.5, {}),
    ]


def test_what_is_named_is_what_was_named(pairs: Path, tmp_path: Path) -> None:
    assert asked(pairs, "task=increasing_numbers")["task"] == {"name": "increasing_numbers"}
    assert asked(pairs, "task={name: dates}")["task"] == {"name": "dates"}
    assert asked(pairs, "reward=rouge")["reward"] == "rouge"
    assert asked(pairs, "reward.distinct_n.weight=2")["reward"] is not None
    of_experiment = tmp_path / "mine.yaml"
    of_experiment.write_text("# @package _global_\ndefaults:\n  - override /task: dates\n")
    options = asked(pairs, f"experiment={of_experiment}")
    assert options["task"] == {"name": "dates"} and "reward" not in options


def test_options_are_laid_over_the_tasks_own(pairs: Path) -> None:
    assert asked(pairs, "task.num=3")["task"] == {"name": PAIRS, "num": 3}
    assert asked(pairs, f"task={PAIRS}")["task"] == {"name": PAIRS, "num": 7}  # the same task: what is unsaid
    with pytest.raises(InputError, match=r"task\.nun: there is no such option; did you mean 'num'"):
        run_settings([MODEL, "algorithm=wbc", f"data={pairs}", "task.nun=3"])


def test_rows_of_files_are_asked_as_the_task_prompts(tmp_path: Path) -> None:
    rows = [{"question": f"{n} 1", "response": f"{n} 2", "good": True} for n in range(20)]
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    arguments = [f"data.files={file}", "data.prompt=question", f"output={tmp_path / 'out'}", *HERE]
    assert annotate.run(arguments) == 0
    run = run_settings([MODEL, "algorithm=wbc", f"data={tmp_path / 'out'}"])
    # of each ten rows the ninth is for validation and the tenth for the test, and neither is annotated
    assert [prompt.text for prompt in run.task.prompts("validation")] == ["8 1", "18 1"]
    assert [prompt.text for prompt in run.task.prompts("test")] == ["9 1", "19 1"]
    annotated = json.loads((tmp_path / "out" / "manifest.json").read_text())["rows"]["num_rows"]
    assert annotated == 16


def test_other_rows_of_the_same_task_take_nothing_over(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"question": "1", "response": "2"}\n' * 2)
    arguments = [f"data.files={tmp_path / 'rows.jsonl'}", "data.prompt=question", *HERE]
    assert annotate.run([*arguments, f"output={tmp_path / 'out'}"]) == 0
    options = asked(tmp_path / "out", "task=prompts", "task.path=somebody/data")
    assert options["task"] == {"name": "prompts", "path": "somebody/data"}


def test_a_data_set_that_does_not_say_its_task_asks_for_one(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"rows": {"num_rows": 3}}')
    with pytest.raises(InputError, match=r"does not name its task: give task=NAME"):
        asked(tmp_path)
    assert asked(tmp_path, "task=dates")["task"] == {"name": "dates"}
    assert asked(tmp_path / "nothing")["task"] == {"name": "increasing_numbers"}  # told when it is opened
    assert disagreement(tmp_path, "dates") is None


def test_a_disagreement_is_told_when_the_run_begins(
    pairs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = io.StringIO()
    monkeypatch.setattr("tests.local_run.new_screen", lambda: screen)
    assert disagreement(pairs, PAIRS) is None
    model = make_tiny_model(tmp_path / "model")
    small = [
        "iterations=1",
        "rollout.max_tokens=4",
        "rollout.engine=transformers",
        "evaluation.num_prompts=2",
    ]
    named = ["task=increasing_numbers", "reward=length", "tracking.enabled=false", "save_every=0"]
    run = run_settings(
        [
            *(f"model.path={model}", "algorithm=wbc", f"data={pairs}", f"output_dir={tmp_path}"),
            *(*small, *named, "learner.device=cpu"),
        ]
    )
    train_here(run)
    output = " ".join(screen.getvalue().split())
    assert (
        f"annotated with task={PAIRS}, but evaluations use the prompts of task=increasing_numbers" in output
    )
