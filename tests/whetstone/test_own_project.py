"""Everything runs inside of a project whose packages have our names, also with it first on the path."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import whetstone
from contracts.processes import working_folder
from tests.models import make_tiny_model
from tests.runs import QUICK
from whetstone import own_place

NAMES = (*own_place.NAMES, "tests")
COMMAND = Path(sys.executable).with_name("whetstone")
REWARD = "from word_lists import variety\ndef own_variety(samples): return [variety(s) for s in samples]\n"
HELPER = "def variety(sample): return len(set(sample.text.split())) / max(1, len(sample.text.split()))\n"
SCRIPT = """
import json, sys
import whetstone
from my_rewards import own_variety

def brevity(samples: "list[Sample]") -> list[float]:
    import math
    return [math.exp(-len(sample.text.split()) / 10) for sample in samples]

overrides = json.load(open("overrides.json"))
run = whetstone.train(reward=[brevity, {"name": own_variety, "weight": 0.5}], **overrides)
again = whetstone.train(reward=[brevity, {"name": own_variety, "weight": 0.5}], **overrides)
texts = run.generate(["1 2", "3 4"], n=2, max_tokens=4)
print(json.dumps([str(run.folder), run == again, texts, sorted(set(sys.modules))]))
"""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Packages that end the process that imports them; rewards, a helper, a script and a model."""
    folder = tmp_path_factory.mktemp("own") / "project"
    for name in NAMES:
        (folder / name).mkdir(parents=True)
        (folder / name / "__init__.py").write_text(f"raise SystemExit('the folder {name}/ was imported')\n")
    (folder / "my_rewards.py").write_text(REWARD)
    (folder / "word_lists.py").write_text(HELPER)
    (folder / "train.py").write_text(SCRIPT)
    make_tiny_model(folder / "model")
    keys = dict(word.split("=") for word in QUICK)
    typed = {key: json.loads(value) if value[0] in "0123456789tf" else value for key, value in keys.items()}
    lean = {"model.path": "model", "rollout.engine": "transformers", "metrics": [], "tracking.enabled": False}
    overrides = {**typed, **lean, "iterations": 2, "task": "increasing_numbers"}
    (folder / "overrides.json").write_text(json.dumps(overrides))
    return folder


def run_in(project: Path, *command: str | Path, pythonpath: str | None, timeout: float) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    environment |= {} if pythonpath is None else {"PYTHONPATH": pythonpath}
    done = subprocess.run(
        command, cwd=project, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("command", "pythonpath"),
    [
        pytest.param((COMMAND,), None, marks=pytest.mark.long),
        ((COMMAND,), "."),
        pytest.param((sys.executable, "-m", "whetstone"), None, marks=pytest.mark.long),
        pytest.param(
            (sys.executable, "-P", "-m", "whetstone"), "{project}:{project}/model", marks=pytest.mark.long
        ),
    ],
)
def test_plan_reads_no_package_of_the_project(
    project: Path, command: tuple[str | Path, ...], pythonpath: str | None
) -> None:
    reward = ("reward=function", "reward.function=my_rewards:own_variety")
    words = (*command, "plan", "model.path=model", "task=increasing_numbers", *reward)
    path = None if pythonpath is None else pythonpath.format(project=project)
    assert "Nothing was started" in run_in(project, *words, pythonpath=path, timeout=250)


@pytest.fixture(scope="module")
def trained(project: Path) -> list[Any]:
    """Return the output of the script, with its folder first on the path of every process that it starts."""
    printed = run_in(project, sys.executable, "train.py", pythonpath=str(project), timeout=1000)
    answer: list[Any] = json.loads(printed.splitlines()[-1])
    return answer


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_script_of_the_project_trains(project: Path, trained: list[Any]) -> None:
    folder, is_the_same, texts, _ = trained
    assert Path(folder).parent == project / "runs" and is_the_same
    assert len(texts) == 4 and all(len(text.split()) <= 4 for text in texts)
    run = whetstone.load_run(folder)
    assert (run.model / "config.json").is_file()
    metrics = run.metrics
    assert list(metrics.index) == [1, 2]
    parts = metrics["reward/brevity/mean"] + 0.5 * metrics["reward/own_variety/mean"]
    assert list(metrics["reward/mean"]) == pytest.approx(list(parts))
    assert {"loss/policy", "kl/mean", "time/update_s"} <= set(metrics.columns)
    assert set(run.evaluations["epoch"]) == {0, 2} and set(run.evaluations["split"]) == {"validation", "test"}
    assert len(run.samples) == 4 * 8  # two splits before and after, of 8 prompts each


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_source_of_the_scripts_function_is_in_the_runs_folder(trained: list[Any]) -> None:
    (file,) = Path(trained[0], "functions").glob("brevity@*.py")
    assert "def brevity(samples" in file.read_text() and "own_variety" not in file.read_text()


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1200)
def test_the_scripts_process_imports_none_of_our_packages(trained: list[Any]) -> None:
    assert not {*own_place.NAMES, "ray", "torch"} & set(trained[3])


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_run_is_evaluated_with_its_own_rewards_and_with_others(
    project: Path, trained: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project)
    run = whetstone.load_run(trained[0])
    with pytest.raises(whetstone.InputError, match="brevity was a function or class of a script or notebook"):
        whetstone.evaluate(run, split="test")

    def brevity(samples: list[Any]) -> list[float]:
        import math

        return [math.exp(-len(sample.text.split()) / 10) for sample in samples]

    own_variety = {"name": "my_rewards:own_variety", "weight": 0.5}
    evaluation = whetstone.evaluate(run, split="test", reward=[brevity, own_variety])
    last = run.evaluations.iloc[-1]
    assert evaluation.metrics["reward/mean"] == last["reward/mean"]  # the same prompts and seeds
    assert len(evaluation.samples) == 8

    def eights(samples: list[Any]) -> list[float]:
        return [float("8" in sample.text.split()) for sample in samples]

    other = whetstone.evaluate(trained[0], reward=eights, evaluation__num_prompts=4)
    assert set(other.samples["reward"]) <= {0.0, 1.0} and len(other.samples) == 4


def test_a_start_that_is_refused_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)

    def constant(samples: list[Any]) -> list[float]:
        return [1.0 for _ in samples]

    with pytest.raises(whetstone.InputError, match="nowhere"):
        whetstone.train("demo", model__path="nowhere", reward=constant)
    assert not (tmp_path / "runs").exists() or not any((tmp_path / "runs").iterdir())


@pytest.fixture
def path_of_a_test(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(sys, "meta_path", list(sys.meta_path))
    for name in (own_place.PYTHONPATH, own_place.MORE_FOLDERS):
        monkeypatch.setenv(name, "")
    monkeypatch.chdir(tmp_path)
    yield tmp_path


def test_only_folders_with_a_package_of_our_names_are_set_aside(
    path_of_a_test: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clashing, other = path_of_a_test / "clashing", path_of_a_test / "other"
    (clashing / "learner").mkdir(parents=True)
    (other / "my_learner").mkdir(parents=True)
    (clashing / "only_there.py").write_text("VALUE = 3")
    monkeypatch.setenv("PYTHONPATH", f"{clashing}{os.pathsep}{other}")
    sys.path[:0] = [str(clashing), str(other)]

    own_place.leave_users_folders_to_the_end()

    assert str(clashing) not in sys.path and sys.path[0] == str(other)
    assert (os.environ["PYTHONPATH"], os.environ["WHETSTONE_PATH"]) == (str(other), str(clashing))
    assert working_folder.variable()["WHETSTONE_PATH"] == str(clashing)
    working_folder.search_last()
    assert __import__("only_there").VALUE == 3


def test_the_names_are_those_of_all_packages_that_are_installed_and_the_variable_is_the_same() -> None:
    project = Path(__file__).parents[2].joinpath("pyproject.toml").read_text()
    (line,) = [line for line in project.splitlines() if line.startswith("include = ")]
    assert {f'"{name}*"' for name in (*own_place.NAMES, "whetstone")} == set(
        line.partition("[")[2].rstrip("]").split(", ")
    )
    assert own_place.MORE_FOLDERS == working_folder.MORE_FOLDERS
