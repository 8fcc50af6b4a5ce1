"""A matrix: the composition of its sections, and the choices in its experiments' names."""

from pathlib import Path
from typing import Any

import pytest

from services.config.compose import CONF, choices_of, compose
from services.config.matrix import matrix_experiments

MATRIX = """
shared:
  defaults: [rl4lms/float32]
  model: {path: base}
  rollout: {max_tokens: 8, top_k: 5}
runs:
  ppo:
    iterations: 3
    algorithm: {gamma: 0.5, kl: {coefficient: 0.1, target: 1.0}}
  ppo_again:
    like: ppo
    model: {path: '???'}
    algorithm: {name: ppo, kl: {target: 2.0}}
tasks:
  dates:
    rollout: {max_tokens: 9}
    runs:
      ppo: {iterations: 4}
      nlpo: {like: ppo, defaults: []}
  imdb: {}
  more: {task: {name: prompts, limit: 2}}
"""


@pytest.fixture
def says(tmp_path: Path) -> dict[str, Any]:
    (tmp_path / "matrix").mkdir()
    (tmp_path / "matrix" / "some.yaml").write_text(MATRIX)
    experiments = matrix_experiments(tmp_path)
    assert {cell.file for cell in experiments.values()} == {tmp_path / "matrix" / "some.yaml"}
    return {name: dict(cell.says) for name, cell in experiments.items()}


def test_each_task_has_each_run_and_those_of_its_own(says: dict[str, Any]) -> None:
    tasks = ("dates", "imdb", "more")
    assert says.keys() == {f"{task}_{run}" for task in tasks for run in ("ppo", "ppo_again")} | {"dates_nlpo"}


def test_a_run_lies_over_its_task_and_that_over_what_is_shared(says: dict[str, Any]) -> None:
    assert says["imdb_ppo"]["rollout"] == {"max_tokens": 8, "top_k": 5}
    assert says["dates_ppo"]["rollout"] == {"max_tokens": 9, "top_k": 5}
    assert (says["imdb_ppo"]["iterations"], says["dates_ppo"]["iterations"]) == (3, 4)


def test_a_run_lies_over_the_one_that_it_is_like(says: dict[str, Any]) -> None:
    assert says["dates_ppo_again"]["iterations"] == says["dates_nlpo"]["iterations"] == 4
    assert says["imdb_ppo_again"]["algorithm"] == {"gamma": 0.5, "kl": {"coefficient": 0.1, "target": 2.0}}
    assert says["imdb_ppo_again"]["model"] == {"path": "???"}  # what is to be given replaces what was
    assert not any("like" in section for section in says.values())


def test_its_name_chooses_task_and_algorithm_unless_a_section_does(says: dict[str, Any]) -> None:
    def chosen(name: str) -> list[Any]:
        return [*says[name]["defaults"], says[name].get("run_name")]

    task, algorithm = "override /task", "override /algorithm"
    assert chosen("imdb_ppo") == ["rl4lms/float32", {task: "imdb"}, {algorithm: "ppo"}, None]
    assert chosen("dates_nlpo") == [{task: "dates"}, {algorithm: "nlpo"}, None]
    named = "more-ppo-seed${oc.select:seed,0}"
    assert chosen("more_ppo") == ["rl4lms/float32", {task: "prompts"}, {algorithm: "ppo"}, named]
    named = "imdb-ppo_again-seed${oc.select:seed,0}"
    assert chosen("imdb_ppo_again") == ["rl4lms/float32", {task: "imdb"}, {algorithm: "ppo"}, named]
    assert says["more_ppo"]["task"] == {"limit": 2}


def test_no_name_is_both_a_file_and_in_a_matrix() -> None:
    files = {path.stem for path in (CONF / "experiment").glob("*.yaml")}
    cells = matrix_experiments(CONF).keys()
    assert not files & cells and files | cells == set(choices_of("experiment"))


def test_an_experiment_of_ones_own_is_built_on_one_of_a_matrix(tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    defaults = "defaults:\n  - atomic_a_lol_seq\n  - override /algorithm: ppo\n"
    file.write_text(f"# @package _global_\n{defaults}\niterations: 7\n")
    tree = compose([f"experiment={file}", "model.path=some/model", "reward.model=some/judge"])
    assert (tree["task"], tree["seed"], tree["iterations"]) == ({"name": "atomic"}, 901, 7)
    assert (tree["algorithm"]["name"], tree["algorithm"]["max_grad_norm"]) == ("ppo", 1.0)
