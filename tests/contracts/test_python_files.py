"""Classes and functions of a user's file, named `FILE.py:NAME`, wherever a component's name is taken."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cloudpickle
import pytest

from contracts.components import find, import_module
from contracts.errors import InputError
from contracts.processes.python_files import module_name, spec_of
from contracts.processes.working_folder import FOLDER
from contracts.rollout import Prompt
from reward_servers.user_rewards.own import find_grader
from rollout_workers.environments.factory import Factory
from rollout_workers.environments.gymnasium_text import GymnasiumText
from rollout_workers.environments.partners import make_partner
from rollout_workers.tools.tool_functions import FunctionTools
from services.config.compose import run_settings
from services.config.measures import Measures
from services.config.post_processing import find_post_processor

MINE = '''
from typing import ClassVar

import gymnasium
from beside import SUFFIX
from gymnasium.spaces import Text
from learner.algorithms.grpo import GRPO
from learner.models.critic import LinearCritic
from whetstone import EnvironmentSettings, MetricValue, Prompt, Settings


class Rows(Settings):
    default_reward: ClassVar = "length"
    default_metrics: ClassVar = ()

    def prompts(self, split):
        return [Prompt(id=f"{split}{place}", text=str(place)) for place in range(4)]


class Half(GRPO):
    half: float = 0.5


class Mine(EnvironmentSettings):
    def make(self):
        return Game()


class Game(gymnasium.Env):
    observation_space = action_space = Text(9)


class Words:
    def compute(self, samples):
        return {"mine/words": MetricValue(corpus=float(len(samples)))}


class Short:
    def score(self, samples):
        return [float(-len(sample.text)) for sample in samples]


class Share:
    def measure(self, rollouts):
        return {"mine/rollouts": len(rollouts)}


class Parrot:
    def reply(self, history, seed):
        return history[-1]


class Head(LinearCritic):
    pass


def double(number: int) -> int:
    """Double a number.

    Args:
        number: the number.
    """
    return 2 * number


def shorter(text):
    return text[:2] + SUFFIX
'''
FILE = "a.b/my_parts.py"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.b").mkdir()
    (tmp_path / "beside.py").write_text("SUFFIX = '!'\n")
    (tmp_path / FILE).write_text(MINE)
    yield tmp_path
    for name in [name for name in sys.modules if name == "beside" or name.startswith(module_name(tmp_path))]:
        del sys.modules[name]


def run(*overrides: str) -> Any:
    return run_settings(["model.path=m", *overrides])


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda: len(run(f"task={FILE}:Rows").task.prompts("train")), 4),
        (lambda: run(f"algorithm={FILE}:Half", "algorithm.half=0.25").algorithm.half, 0.25),
        (lambda: type(run("task=dummy", f"environment={FILE}:Mine").environment).__name__, "Mine"),
        (lambda: list(find_grader("metric", f"{FILE}:Words")().compute([1, 2])), ["mine/words"]),
        (lambda: find_grader("reward", f"{FILE}:Short")().score([Prompt("", "abc")]), [-3.0]),
        (lambda: Measures(f"{FILE}:Share")(()), {"mine/rollouts": 0.0}),
        (lambda: make_partner(f"{FILE}:Parrot", {}, "").reply(["a", "b"], 0), "b"),
        (lambda: find("model.critic", f"{FILE}:Head", {}).__name__, "Head"),
        (lambda: find_post_processor(f"{FILE}:shorter")("abcd"), "ab!"),
        (lambda: FunctionTools([f"{FILE}:double"]).call("double", {"number": 4}, 9.0), "8"),
        (lambda: GymnasiumText(class_path=f"{FILE}:Game").check(), None),
        (lambda: Factory(factory=f"{FILE}:Game").rewards_itself, True),
    ],
    ids=[
        "task",
        "algorithm",
        "environment",
        "metric",
        "reward",
        "measure",
        "partner",
        "critic",
        "text",
        "tool",
        "gymnasium",
        "factory",
    ],
)
def test_a_file_can_be_named_for_each_kind(take: Callable[[], Any], expected: Any) -> None:
    assert take() == expected


def test_a_class_of_a_file_travels_to_a_process_that_has_not_imported_it(folder: Path) -> None:
    half = run(f"algorithm={FILE}:Half", "algorithm.half=0.25").algorithm
    (folder / "packed").write_bytes(cloudpickle.dumps(half))
    code = """import pickle
from contracts.processes.working_folder import search_last
search_last()
print(pickle.load(open("packed", "rb")).half)"""
    places = {FOLDER: str(folder), "PYTHONPATH": str(Path(__file__).parents[2])}
    process = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | places, capture_output=True, text=True, check=False
    )
    assert (process.stdout, process.stderr) == ("0.25\n", "")


def test_a_file_is_imported_once_by_any_of_its_names(folder: Path) -> None:
    places = (FILE, f"./{FILE}", str(folder / FILE), f"../{folder.name}/{FILE}", f"a.b/../{FILE}")
    assert len({import_module(place, "here") for place in places}) == 1


def test_a_way_back_from_a_linked_folder_is_followed(folder: Path) -> None:
    (folder / "far/off").mkdir(parents=True)
    (folder / "link").symlink_to(folder / "far/off")
    (folder / "far/here.py").write_text("PLACE = 'far'\n")
    (folder / "here.py").write_text("PLACE = 'near'\n")
    assert import_module("link/../here.py", "here").PLACE == "far"
    assert import_module("far/../here.py", "here").PLACE == "near"


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("my_part.py:Rows", r"task=my_part.py:Rows: there is no file .*/my_part.py; give its place"),
        (f"{FILE}:Row", r"task=a.b/my_parts.py:Row: a.b/my_parts.py has no class Row; did you mean 'Rows'"),
        (f"{FILE}:double", r"got a function \(function\); expected a class"),
        ("bad.py:Rows", r"importing .*/bad.py failed: ZeroDivisionError"),
        ("bad.py", r"no such task"),
    ],
)
def test_what_a_file_lacks_is_said(folder: Path, address: str, message: str) -> None:
    (folder / "bad.py").write_text("1 / 0\n")
    with pytest.raises(InputError, match=message):
        find("task", address, {})


def test_only_names_of_files_that_are_there_have_a_specification(folder: Path) -> None:
    assert spec_of(module_name(folder / FILE)) is not None
    assert [spec_of(name) for name in ("torch", "my_parts.py", module_name(folder / "gone.py"))] == [None] * 3
