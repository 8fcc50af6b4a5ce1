"""`whetstone push`: a folder that loads, a commit on a hub on loopback, and what is refused."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from services.inference.publishing.card import write_card
from services.inference.publishing.publish import is_folder_name
from services.runs import provenance
from services.runs.checkpoint_retention import Keeper
from services.runs.folder import RunFolder
from tests.fakes import FakeLearner
from tests.models import make_tiny_model
from tests.services.inference.publishing.hub import hub

TOKEN = "hf_only_for_this_test"
CONFIG = {
    "model": {"path": "gpt2"},
    "algorithm": {"name": "ppo"},
    "task": {"name": "increasing_numbers"},
    "reward": [{"name": "increasing_numbers"}],
    "iterations": 3,
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A finished run with a real model, two evaluations and a record of its start."""
    folder = RunFolder.open(tmp_path_factory.mktemp("runs"), "numbers", CONFIG, resume="auto")
    make_tiny_model(folder.model, architecture="gpt2")
    folder.append_rollout_info(3, {"reward/mean": 0.5})
    folder.append_evaluation(0, "test", {"reward/mean": 0.25})
    folder.append_evaluation(3, "test", {"reward/mean": 0.75})
    folder.curves.write_bytes(b"a picture")
    provenance.record(folder, {})
    return folder


def push(*words: str | Path, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "services.cli", "push", *map(str, words)]
    offline = {"HF_HUB_OFFLINE": "0", "HF_TOKEN": TOKEN}
    return subprocess.run(
        command, env={**os.environ, **offline, **environment}, capture_output=True, text=True
    )


def test_a_folder_holds_model_card_and_curves(run: RunFolder, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    done = push(run.path, tmp_path / "out")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "out")
    AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    AutoTokenizer.from_pretrained(tmp_path / "out")
    assert (tmp_path / "out" / "learning_curves.png").read_bytes() == b"a picture"
    _, head, text = (tmp_path / "out" / "README.md").read_text().split("---\n", 2)
    metadata = yaml.safe_load(head)
    assert metadata["base_model"] == "gpt2" and "ppo" in metadata["tags"]
    assert "| test | `reward/mean` | 0.25 | 0.75 |" in text
    assert "3 iterations of\n`ppo` on the task `increasing_numbers`" in text
    assert provenance.starts(run)[0]["versions"]["torch"] in text
    assert "iterations: 3" in text


def test_the_card_tells_of_the_model_that_is_published(tmp_path: Path) -> None:
    """The best model is of iteration 2; after iteration 3, the end, the run went on to 5 and was stopped."""
    folder = RunFolder.open(tmp_path, "numbers", CONFIG | {"keep_best": "val/reward/mean"}, resume="auto")
    keeper, learner = Keeper(folder, keep=9, keep_best="val/reward/mean"), FakeLearner([])
    for iteration, reward in ((0, 0.25), (2, 0.875), (3, 0.75), (5, 0.5)):
        folder.append_rollout_info(iteration, {"reward/mean": reward})
        folder.append_evaluation(iteration, "validation", {"reward/mean": reward})
        if iteration != 2:
            folder.append_evaluation(iteration, "test", {"reward/mean": reward})
        keeper.save(learner, iteration, {})
        if iteration == 3:
            keeper.export(learner, iteration)
    last, best = (write_card(folder, model, False) for model in (folder.model, folder.best_model))
    assert "3 iterations of" in last and "2 iterations of" in best
    assert "| `reward/mean` | 0.25 | 0.75 |" in last and "0.875" not in last and "| 0.5 |" not in last
    assert "| validation | `reward/mean` | 0.25 | 0.875 |" in best and "| test |" not in best


def test_the_hub_gets_one_commit(run: RunFolder) -> None:
    with hub(TOKEN) as kept:
        done = push(run.path, "me/numbers", "--private", HF_ENDPOINT=kept.url)
    assert done.returncode == 0, done.stderr
    assert kept.made[0]["name"] == "numbers" and kept.made[0]["visibility"] == "private"
    assert {"config.json", "model.safetensors", "tokenizer.json", "README.md"} <= set(kept.files)
    assert kept.files["model.safetensors"] == (run.model / "model.safetensors").read_bytes()


def test_nothing_private_goes_into_a_public_repository(run: RunFolder) -> None:
    with hub(TOKEN) as kept:
        kept.is_private = False
        done = push(run.path, "me/numbers", "--private", HF_ENDPOINT=kept.url)
    assert done.returncode == 2 and "is there already, and public: nothing was pushed" in done.stderr
    assert not kept.files


def test_a_hub_that_does_not_answer_is_told(run: RunFolder) -> None:
    done = push(run.path, "me/numbers", HF_ENDPOINT="http://127.0.0.1:1")
    assert done.returncode == 1
    assert "me/numbers: the upload failed: ConnectError" in done.stderr and "unexpected" not in done.stderr


def test_a_wrong_token_is_told_and_not_shown(run: RunFolder) -> None:
    with hub(TOKEN) as kept:
        done = push(run.path, "me/numbers", HF_ENDPOINT=kept.url, HF_TOKEN="hf_another_token")
    assert done.returncode == 2 and "HF_TOKEN" in done.stderr
    assert "hf_another_token" not in done.stdout + done.stderr and not kept.files


def test_pickles_full_folders_and_unfinished_runs_are_refused(run: RunFolder, tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("kept")
    full = push(run.path, tmp_path / "there")
    assert full.returncode == 2 and "not empty" in full.stderr
    best = push(run.path, tmp_path / "new", "--best")
    assert best.returncode == 2 and "keep_best" in best.stderr and not (tmp_path / "new").exists()
    other = RunFolder.open(tmp_path, "pickled", CONFIG, resume="auto")
    other.model.mkdir()
    (other.model / "config.json").write_text("{}")
    (other.model / "pytorch_model.bin").write_bytes(b"")
    pickled = push(other.path, tmp_path / "new")
    assert pickled.returncode == 2 and "pytorch_model.bin" in pickled.stderr


@pytest.mark.parametrize(
    ("name", "is_folder"),
    [
        ("me/model", False),
        ("model", False),
        ("/tmp/out", True),
        ("./out", True),
        ("~/out", True),
        ("..", True),
    ],
)
def test_a_folder_is_told_from_a_name_on_the_hub(name: str, is_folder: bool) -> None:
    assert is_folder_name(name) == is_folder
