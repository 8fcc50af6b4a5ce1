"""`whetstone evaluate`: the settings it makes of a run and overrides, its numbers, and what is refused."""

import json
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from contracts.errors import InputError
from contracts.rollout import Rollout
from contracts.settings import build
from reward_servers.local import LocalRewardClient
from services.commands.generate import write
from services.config.reward_view import as_sample
from services.config.settings import RunSettings
from services.inference.evaluation.configuration import settings_for
from services.inference.evaluation.result import output_file, print_table
from services.inference.generation.run_model import find_model
from services.runs.folder import RunFolder
from services.training.loop.evaluations.held_out import held_out_leases
from tests.models import make_tiny_model
from tests.services.test_cli import PROMISED_S, whetstone

CONFIG: dict[str, Any] = {
    "algorithm": "ppo",
    "task": {"name": "increasing_numbers", "num_eval_prompts": 6},
    "model": {"path": "the/model/it/began/with"},
    "run_name": "numbers",
    "iterations": 3,
    "rollout": {"engine": "transformers", "max_tokens": 5, "kv_cache_gib": 0.01, "num_threads": 1},
    "evaluation": {"samples_per_prompt": 2},
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """The folder of a run that is finished, as far as this command looks at it."""
    settings = build(RunSettings, CONFIG, where="")
    folder = RunFolder.open(
        tmp_path_factory.mktemp("runs"), "numbers", config=settings.resolved(), resume="auto"
    )
    make_tiny_model(folder.model)
    return folder


# Settings


def test_a_run_is_evaluated_under_its_own_settings_with_its_trained_model(run: RunFolder) -> None:
    settings = settings_for(run, [])
    assert settings.model.path == str(run.model)
    assert settings.rollout == build(RunSettings, CONFIG, where="").rollout
    assert settings.resolved()["task"] == {**run.config()["task"], "num_eval_prompts": 6}


def test_overrides_are_laid_over_the_run_s_configuration(run: RunFolder) -> None:
    overrides = ["evaluation.temperature=0", "task.num_eval_prompts=4", "reward.weight=2", "seed=7"]
    settings = settings_for(run, overrides)
    assert settings.sampling(evaluating=True).temperature == 0
    assert len(settings.task.prompts("validation")) == 4
    assert [part.weight for part in settings.reward] == [2]
    assert settings.seed == 7


def test_options_of_one_of_several_rewards_are_addressed_by_its_label(run: RunFolder) -> None:
    overrides = [
        "reward=[length, {name: rouge, label: near}]",
        "reward.near.weight=3",
        "reward.length.target=9",
    ]
    length, near = settings_for(run, overrides).reward
    assert (length.options, near.weight) == ({"target": 9}, 3)


def test_another_model_brings_its_own_tokenizer(run: RunFolder) -> None:
    config = run.config() | {
        "model": {**run.config()["model"], "tokenizer": "some/tokenizer", "revision": "v1"}
    }
    run.config_file.write_text(yaml.safe_dump(config))
    other = settings_for(run, ["model.path=other/model"]).model
    assert (other.path, other.tokenizer, other.revision) == ("other/model", None, None)
    chosen = settings_for(run, ["model.path=other/model", "model.tokenizer=one"]).model
    assert chosen.tokenizer == "one"


def test_another_model_task_and_reward_take_the_run_s_place(run: RunFolder) -> None:
    overrides = ["model.path=another", "task=dates", "task.num_eval_prompts=3", "reward=length", "metrics=[]"]
    settings = settings_for(run, overrides)
    assert (settings.model.path, settings.task_name) == ("another", "dates")
    assert len(settings.task.prompts("test")) == 3
    assert [part.label for part in settings.reward] == ["length"]
    assert settings.metrics == ()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        (
            "evaluation.num_prompt=4",
            "evaluation.num_prompt: there is no such option; did you mean 'num_prompts'",
        ),
        ("seed=1,2", "seed=1,2: expected one value"),
        ("cluster=laptop", "cluster: got 'laptop'"),
        ("reward=rogue", "did you mean 'rouge'"),
        ("evaluation.temperature=-1", "evaluation.temperature: got -1"),
    ],
)
def test_wrong_overrides_of_a_run(run: RunFolder, override: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        settings_for(run, [override])
    assert expected in str(caught.value)


# Numbers


@pytest.mark.ray
def test_the_numbers_are_those_of_the_model_s_texts(run: RunFolder) -> None:
    before = {path.name for path in run.path.iterdir()}
    command = [sys.executable, "-m", "services.cli", "evaluate", "--json", str(run.path), "--split", "test"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout)

    settings = settings_for(run, [])
    rollouts: list[Rollout] = []
    for finished in write(find_model(str(run.path)), "transformers", held_out_leases(settings, "test")):
        rollouts += finished
    rollouts.sort(key=lambda rollout: rollout.lease_id)
    scores = LocalRewardClient(settings.reward).submit([as_sample(r, "test") for r in rollouts]).result()
    totals = [score.total for score in scores if score.total is not None]
    assert len(totals) == 12  # 6 prompts, two texts each
    assert result["metrics"]["reward/mean"] == pytest.approx(statistics.fmean(totals))
    assert result["metrics"]["synthetic/increasing_numbers_in_text"] == pytest.approx(
        statistics.fmean(totals)
    )
    assert (result["num_texts"], result["num_unscored"], result["split"]) == (12, 0, "test")

    assert {path.name for path in run.path.iterdir()} - before == {"evaluation_test.json"}
    saved = json.loads((run.path / "evaluation_test.json").read_text())
    assert saved["metrics"] == result["metrics"]
    assert [row["generated_text"] for row in saved["predictions"]] == [r.text for r in rollouts]


def test_a_plain_model_s_result_is_printed_and_written_only_where_asked(
    run: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert output_file(None, None, "test") is None
    assert output_file(None, run, "test") == run.path / "evaluation_test.json"
    assert output_file(str(tmp_path / "here.json"), None, "test") == tmp_path / "here.json"
    metrics = {"reward/mean": 0.75, "reward/standard_error": 0.0125, "length/mean_words": 4.0}
    print_table(
        {"model": "gpt2", "split": "test", "num_texts": 9, "num_unscored": 1, "metrics": metrics}, None
    )
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "gpt2, test: 9 texts, 1 could not be scored"
    assert [cells for line in printed if "│" in line for cells in [line.replace("│", " ").split()]] == [
        ["reward/mean", "0.75", "0.0125"],
        ["length/mean_words", "4"],
    ]


def test_other_players_stand_beside_the_model(capsys: pytest.CaptureFixture[str]) -> None:
    metrics = {"reward/mean": 0.75, "reward/standard_error": 0.0125, "length/mean_words": 4.0}
    metrics |= {"baseline/random/reward/mean": 0.1, "baseline/expert/reward/mean": 1.0}
    metrics |= {"baseline/random/length/mean_words": 2.0}
    whole = {"model": "gpt2", "split": "test", "num_texts": 9, "num_unscored": 0, "metrics": metrics}
    print_table(whole, None)
    printed = capsys.readouterr().out.splitlines()
    assert [line.split("┃")[4:6] for line in printed if "metric" in line] == [[" random ", " expert "]]
    assert [cells for line in printed if "│" in line for cells in [line.replace("│", " ").split()]] == [
        ["reward/mean", "0.75", "0.0125", "0.1", "1"],
        ["length/mean_words", "4", "2"],
    ]


# Refusals


def refusal(*arguments: str, cwd: Path | None = None) -> str:
    done = whetstone("evaluate", *arguments, cwd=cwd)
    assert (done.code, done.out) == (2, "")
    assert "Traceback" not in done.err
    assert done.cpu_s < PROMISED_S
    return done.err


def test_a_run_that_is_not_there(run: RunFolder) -> None:
    message = refusal("numbr", cwd=run.path.parent)
    assert "numbr: there is no such folder; expected a run's folder" in message
    assert "Runs nearby, newest first:\n  numbers" in message


def test_a_model_is_no_run_and_says_how_to_evaluate_it(run: RunFolder) -> None:
    assert f"whetstone evaluate model.path={run.model} task=… reward=…" in refusal(str(run.model))


def test_a_run_without_its_model(run: RunFolder, tmp_path: Path) -> None:
    unfinished = RunFolder.open(tmp_path, "numbers", config=run.config(), resume="auto")
    assert "has no model yet" in refusal(str(unfinished.path))


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], "model.path is required"),
        (["--split", "train"], "invalid choice: 'train'"),
        (["one", "two"], "expected one run, got one and two"),
        (["model.path=nowhere/at/all"], "model.path=nowhere/at/all: there is no such folder"),
    ],
)
def test_wrong_arguments_are_refused_at_once(arguments: list[str], expected: str) -> None:
    assert expected in refusal(*arguments)


def test_an_output_that_can_not_be_written_is_refused_before_anything_starts(
    run: RunFolder, tmp_path: Path
) -> None:
    message = refusal(str(run.path), "--output", str(tmp_path / "nowhere" / "file.json"))
    assert f"{tmp_path / 'nowhere'} is missing or not writable" in message
    assert "is a folder; expected a file's name" in refusal(str(run.path), "--output", str(tmp_path))


def test_another_models_result_is_refused_before_anything_starts(run: RunFolder) -> None:
    file = run.path / "evaluation_validation.json"
    file.write_text('{"overrides": []}')
    try:
        message = refusal(str(run.path), "model.path=nowhere/at/all")
    finally:
        file.unlink()
    assert "without overrides, and this one is with model.path=nowhere/at/all: give --output FILE" in message


def test_a_runs_own_result_is_not_written_over_by_that_of_other_overrides(tmp_path: Path) -> None:
    folder, other = RunFolder(tmp_path), ["model.path=gpt2", "seed=1"]
    file = tmp_path / "evaluation_test.json"
    file.write_text(json.dumps({"model": "runs/numbers/model", "overrides": [], "predictions": []}))
    assert output_file(None, folder, "test") == file  # the same command
    with pytest.raises(InputError, match=r"without overrides, and this one is with .*gpt2 .*--output FILE"):
        output_file(None, folder, "test", other)
    assert output_file(str(file), folder, "test", other) == file  # asked for by name
    file.write_text(json.dumps({"model": "gpt2", "overrides": other, "predictions": []}))
    assert output_file(None, folder, "test", other[::-1]) == file
    with pytest.raises(InputError, match=r"holds the result with model\.path=gpt2 seed=1, and this one is"):
        output_file(None, folder, "test", ["seed=1"])
    assert output_file(None, folder, "test", [*other, "rollout.num_workers=2"]) == file  # the same numbers
    assert output_file(None, folder, "test") == file  # the run's own result
    file.write_text("half")
    with pytest.raises(InputError, match=r"of a file that can't be read, and this one is .*--output FILE"):
        output_file(None, folder, "test", other)
