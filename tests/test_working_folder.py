"""Nothing in the working folder takes the place of an installed module; modules of one's own are found."""

import importlib
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from contracts.components import find
from contracts.errors import InputError
from contracts.processes import working_folder
from contracts.processes.working_folder import SearchedLast, clashes
from contracts.scores import Sample
from reward_servers.settings import Part, Sandbox
from reward_servers.user_rewards.sandbox import SandboxedServer
from services.cluster.job_actions import entrypoint
from tests.hostile import NAMES, make_hostile
from tests.models import make_tiny_model
from tests.runs import Run

# As the installed command: nothing of its own on the path.
WHETSTONE = (sys.executable, "-P", "-m", "services.cli")
REWARD = "my_rewards:Variety"


@pytest.fixture
def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    folder = make_hostile(tmp_path / "work")
    monkeypatch.chdir(folder)
    before = list(sys.meta_path)
    # Tests before this one may have left modules, and folders that are searched for them.
    forget_own_modules()
    sys.meta_path[:] = [finder for finder in before if not isinstance(finder, SearchedLast)]
    yield folder
    sys.meta_path[:] = before
    forget_own_modules()


def forget_own_modules() -> None:
    for name in ("my_rewards", "word_lists", "own"):
        sys.modules.pop(name, None)


def whetstone(folder: Path, *arguments: str) -> str:
    done = subprocess.run([*WHETSTONE, *arguments], cwd=folder, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ones_own_module_and_its_helper_are_found_and_named_folders_stay_hidden(hostile: Path) -> None:
    kind = find("reward", REWARD, {})

    assert kind().score([Sample(text="a a b c")]) == [0.75]
    assert str(hostile) not in sys.path
    assert importlib.import_module("json").__file__ != str(hostile / "json" / "__init__.py")
    assert importlib.util.find_spec("wandb") is None or "site-packages" in str(
        importlib.util.find_spec("wandb")
    )


def test_a_folder_of_python_files_is_a_package_and_one_of_data_is_none(hostile: Path) -> None:
    (hostile / "own" / "deep").mkdir(parents=True)
    assert SearchedLast(str(hostile)).find_spec("own") is None

    (hostile / "own" / "deep" / "lengths.py").write_text("class Length: ...")
    assert find("reward", "own.deep.lengths:Length", {}).__name__ == "Length"


@pytest.mark.parametrize("name", ["services:Mine", "services.mine:Mine"])
def test_a_module_that_has_one_of_our_names_is_told_to_be_renamed(hostile: Path, name: str) -> None:
    with pytest.raises(InputError) as refusal:
        find("reward", name, {})

    assert f"{hostile}/services is hidden by the installed 'services'" in str(refusal.value)
    assert "rename yours" in str(refusal.value)


def test_a_module_that_ends_the_process_is_an_error_of_the_users(hostile: Path) -> None:
    (hostile / "own.py").write_text("import sys; sys.exit('no arguments')")

    with pytest.raises(InputError, match="importing own failed: SystemExit: no arguments"):
        find("reward", "own:Mine", {})


def test_a_sandboxed_reward_is_found_too(hostile: Path) -> None:
    server = SandboxedServer(Part(name=REWARD), Sandbox(seconds=20))
    try:
        assert server.score([Sample(text="a a b c")]) == [(0.75, None)]
    finally:
        server.close()


def test_commands_that_start_nothing_are_at_home_there(hostile: Path, tmp_path: Path) -> None:
    (hostile / "texts.jsonl").write_text('{"prediction": "a a b c"}\n')
    model = make_tiny_model(tmp_path / "model")

    scored = json.loads(whetstone(hostile, "score", REWARD, "--predictions", "texts.jsonl", "--json"))
    assert scored == {"Variety": {"corpus": 0.75, "rows": [0.75]}}
    assert "rouge" in whetstone(hostile, "list", "rewards")
    plan = whetstone(hostile, "plan", f"model.path={model}", "task=increasing_numbers", f"reward={REWARD}")
    assert "Nothing was started" in plan


SERVED = """
import sys, ray
from contracts.scores import Sample
from reward_servers.serving.client import RewardClient
from reward_servers.serving.app import deploy
from reward_servers.settings import Part, RewardServersSettings
from services.cluster.ray_cluster import cluster

class Reporter:
    def report(self, own):
        import learner, torch
        return sys.path, type(own).__name__

with cluster():
    import my_rewards
    actor = ray.remote(Reporter).options(num_cpus=0).remote()
    path, name = ray.get(actor.report.remote(my_rewards.Variety()))
    parts = [Part(name="my_rewards:Variety")]
    settings = RewardServersSettings()
    deploy(parts, (), settings, http=False)
    score = RewardClient(parts, settings).submit([Sample(text="a a b c")]).result(60)[0]
print([path, name, score.total])
"""


@pytest.mark.ray
def test_actors_and_replicas_are_at_home_there(hostile: Path) -> None:
    script = "from contracts.processes.working_folder import search_last; search_last()\n" + SERVED
    done = subprocess.run(
        [sys.executable, "-P", "-c", script], cwd=hostile, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stdout + done.stderr
    path, name, score = eval(done.stdout.splitlines()[-1])
    assert str(hostile) not in path
    assert (name, score) == ("Variety", 0.75)


@pytest.mark.ray
@pytest.mark.long
@pytest.mark.timeout(1500)
def test_a_run_is_at_home_there(hostile: Path, tmp_path: Path) -> None:
    model = make_tiny_model(tmp_path / "model")
    overrides = (f"model.path={model}", f"reward={REWARD}", "metrics=[]", "iterations=1")
    run = Run(tmp_path / "runs", "run", *overrides, cwd=hostile)
    try:
        assert run.start().finish() == 0, run.output
    finally:
        run.end()
    assert (run.folder.model / "config.json").is_file()
    assert run.folder.rollout_info()[0]["reward/Variety/mean"] > 0


def test_names_that_an_uploaded_folder_must_not_have(hostile: Path) -> None:
    assert set(clashes(hostile)) >= {"services", "datasets", "json"}
    assert not {"my_rewards", "word_lists", "wandb"} & set(clashes(hostile))


def test_a_job_of_this_folder_keeps_it_off_the_path(hostile: Path) -> None:
    assert f"{sys.executable} -P -m services.cli train" in entrypoint(["iterations=5"], None)


def test_a_process_is_told_of_the_folder_of_its_command(
    hostile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = working_folder.variable()
    monkeypatch.chdir(tmp_path)
    assert working_folder.working_folder() == str(tmp_path)

    monkeypatch.setenv(*next(iter(variables.items())))
    assert working_folder.working_folder() == os.fspath(hostile)
    assert find("reward", REWARD, {}).__name__ == "Variety"


def test_processes_that_a_library_starts_leave_the_folder_out(hostile: Path) -> None:
    command = [sys.executable, "-c", "import json"]  # as multiprocessing and `-m` do it
    assert b"the folder json/ was imported" in subprocess.run(command, capture_output=True).stderr

    with working_folder.off_the_path_of_children():
        assert subprocess.run(command, capture_output=True).returncode == 0
    assert working_folder.SAFE_PATH not in os.environ


def test_names_are_those_of_all_our_packages() -> None:
    assert {"contracts", "conf", "learner", "reward_servers", "rollout_workers", "services"} < set(NAMES)
