"""Whole runs in an environment, in this very process: an expert's play is learned, baselines beside it."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from contracts.settings import build
from services.config.settings import RunSettings
from services.runs.folder import RunFolder
from services.runs.json_lines import read_rows
from services.training.loop.live_episodes import EACH
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.services.countdown import COUNTDOWN


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), vocab=[*map(str, range(10)), "?"])


def trained(output_dir: Path, model: Path, **options: Any) -> RunFolder:
    whole = {
        "algorithm": {"name": "supervised", "learning_rate": 0.01},
        "task": {"name": "dummy", "n_samples": 8},
        "model": {"path": str(model)},
        "environment": {"name": COUNTDOWN, "max_turns": 5},
        "reward": [],
        "metrics": [],
        "evaluation": {"temperature": 0.0},
        "iterations": 30,
        "evaluate_every": 0,
        "save_every": 0,
        "output_dir": str(output_dir),
        "run_name": "run",
        "rollout": {"prompts_per_iteration": 8, "max_tokens": 3},
        "tracking": {"enabled": False},
        **options,
    }
    return train_here(build(RunSettings, whole, where=""))


@pytest.fixture(scope="module")
def warm_start(tmp_path_factory: pytest.TempPathFactory, model: Path) -> RunFolder:
    return trained(tmp_path_factory.mktemp("runs"), model)


def test_an_experts_play_is_learned(warm_start: RunFolder) -> None:
    info = warm_start.rollout_info()[0]
    # The expert is right three times of three; an answer is a number and the end of sequence.
    assert (info["reward/mean"], info["reward/environment/mean"]) == (3.0, 3.0)
    assert (info["environment/won/mean"], info["environment/steps/mean"]) == (1.0, 3.0)
    assert info["turns/mean"] == 3.0
    assert (info["environment/failed"], info["environment/restarts"], info["finish/cut"]) == (0.0, 0.0, 0.0)
    assert (info["response_length/mean"], info["throughput/generated_tokens_per_s"]) == (6.0, 0.0)

    before, after = (row["metrics"] for row in warm_start.evaluations("val"))
    assert before["environment/won/mean"] == 0.0
    assert after["environment/won/mean"] == 1.0
    assert before["baseline/expert/reward/mean"] == 3.0
    assert 0.0 < before["baseline/random/reward/mean"] < 3.0  # right once in three times
    assert not [key for key in after if key.startswith("baseline/")]  # once a run is enough


def test_predictions_hold_every_turn(warm_start: RunFolder) -> None:
    row = warm_start.predictions(30, "val")[0]
    assert [(turn["observation"], turn["answer"], turn["reward"]) for turn in row["turns"]] == [
        (f"{number} ?", str(number), 1.0) for number in (3, 2, 1)
    ]
    assert [turn["written"] for turn in row["turns"]] == [2, 2, 2]
    assert (row["end"], row["environment/won"], row["reward"]) == ("won", 1.0, 3.0)
    assert row["generated_text"] == "3\n2\n1"


def test_some_episodes_are_kept_as_they_come_without_those_of_baselines(warm_start: RunFolder) -> None:
    rows = read_rows(warm_start.episodes)
    counts = Counter((row["split"], row["weights"]) for row in rows)
    evaluated = warm_start.predictions(0, "val")
    assert 0 < counts["validation", 0] == min(EACH, len(evaluated)) < 2 * len(evaluated)
    assert counts["train", 0] == EACH and set(counts.values()) <= set(range(1, EACH + 1))
    kept = [row["turns"] for row in rows if row["split"] == "validation" and row["weights"] == 0]
    assert kept == [row["turns"] for row in evaluated][: len(kept)]


def test_an_episode_that_is_cut_off_says_so(tmp_path: Path, model: Path) -> None:
    cut = {"name": COUNTDOWN, "max_turns": 2}
    folder = trained(tmp_path, model, environment=cut, iterations=1)

    assert folder.rollout_info()[0]["finish/cut"] == 1.0
    assert {row["end"] for row in folder.predictions(0, "val")} == {"cut"}


def test_rewards_of_the_environment_and_of_graders_are_added(tmp_path: Path, model: Path) -> None:
    folder = trained(
        tmp_path,
        model,
        algorithm={"name": "ppo", "minibatch_size": 4, "num_epochs": 1},
        reward={"name": "length", "label": "short", "weight": 0.5},
        environment={"name": COUNTDOWN, "reward_at": "turn"},
        iterations=1,
    )
    info = folder.rollout_info()[0]
    assert info["reward/mean"] == pytest.approx(
        info["reward/environment/mean"] + 0.5 * info["reward/short/mean"]
    )
    assert info["reward/short/mean"] > 0
