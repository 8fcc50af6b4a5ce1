"""Groups of runs: seeds together, everything else apart."""

from pathlib import Path
from typing import Any

import pytest

from contracts.errors import InputError
from services.runs.folder import RunFolder
from services.studies.comparison.groups import differing_settings, read_groups

BASE: dict[str, Any] = {"seed": 0, "iterations": 4, "algorithm": {"name": "ppo", "learning_rate": 1e-3}}


def a_run(place: Path, name: str, **changed: Any) -> RunFolder:
    return RunFolder.open(place, name, {**BASE, "run_name": name, **changed}, resume="auto")


def test_runs_that_differ_in_their_seed_alone_are_one_group(tmp_path: Path) -> None:
    folders = [
        a_run(tmp_path, "ppo-seed0"),
        a_run(tmp_path, "fast-seed0", algorithm={"name": "ppo", "learning_rate": 3e-3}),
        a_run(tmp_path, "ppo-seed1", seed=1),
        a_run(tmp_path, "ppo-seed2", seed=2, keep_checkpoints=3, rollout={"num_workers": 2}),
        a_run(tmp_path, "ppo-long", iterations=8),
    ]
    groups = read_groups(folders)
    assert [group.name for group in groups] == ["ppo", "fast-seed0", "ppo-long"]
    assert [[run.seed for run in group.runs] for group in groups] == [["0", "1", "2"], ["0"], ["0"]]
    assert differing_settings(groups) == [
        ("iterations", ("4", "4", "8")),
        ("algorithm.learning_rate", ("0.001", "0.003", "0.001")),
    ]


def test_a_setting_that_one_group_lacks_is_a_dash(tmp_path: Path) -> None:
    groups = read_groups(
        [
            a_run(tmp_path, "a", reward=[{"name": "math", "weight": 1.0}]),
            a_run(tmp_path, "b", task={"name": "gsm8k", "files": None, "shuffle": True}),
        ]
    )
    assert differing_settings(groups) == [
        ("reward", ("{name: math, weight: 1.0}", "–")),
        ("task.name", ("–", "gsm8k")),
        ("task.files", ("–", "null")),
        ("task.shuffle", ("–", "true")),
    ]


def test_runs_of_one_name_are_told_apart_by_their_places(tmp_path: Path) -> None:
    folders = [a_run(tmp_path / place, "run", iterations=n) for place, n in (("a", 4), ("b", 5))]
    assert [group.name for group in read_groups(folders)] == [str(folder.path) for folder in folders]


def test_fewer_than_two_runs_are_no_comparison(tmp_path: Path) -> None:
    run = a_run(tmp_path, "one")
    for runs in ([], [run], [run, RunFolder(tmp_path / "one")]):
        with pytest.raises(InputError, match="expected two or more different runs"):
            read_groups(runs)
