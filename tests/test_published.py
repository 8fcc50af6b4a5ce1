"""LoL-RL's and OpenRL's experiments against what their code says: every field, in `tests/published/`."""

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from services.config import compose
from services.config.settings import RunSettings
from services.config.value_stage import ValueStage
from services.runs.claim import flatten
from tests.test_experiments import FROM_DATA, SHIPPED
from tests.test_experiments import run_of as run_anew

FOLDER = Path(__file__).parent / "published"
OPEN = "open"  # the user gives it
EXPERIMENTS = {
    **{name: "lolrl" for name in SHIPPED if name in FROM_DATA},
    "helpful_harmless_ppo": "lolrl_ppo",
    "daily_dialog_openrl": "openrl",
}
every = pytest.mark.parametrize("name", EXPERIMENTS)
run_of = functools.cache(run_anew)


@dataclass(frozen=True, slots=True)
class Published:
    """Example: `Published(901, "utils/utils.py: RANDOM_SEED")`"""

    value: Any
    place: str


@functools.cache
def sections(source: str) -> list[dict[str, Any]]:
    tables: list[dict[str, Any]] = yaml.safe_load((FOLDER / f"{source}.yaml").read_text())
    return tables


def published(name: str) -> dict[str, Published]:
    """The table's fields of one experiment; later sections win."""
    run, fields = run_of(name), dict[str, Published]()
    for section in sections(EXPERIMENTS[name]):
        algorithms = section.get("algorithms", [run.algorithm_name])
        if fnmatchcase(name, section["experiments"]) and run.algorithm_name in algorithms:
            fields |= {key: Published(*entry) for key, entry in section["fields"].items()}
    return fields


def with_labels(tree: Mapping[str, Any]) -> dict[str, Any]:
    """Dotted keys and values; rewards and metrics by their labels."""
    tree = dict(tree)
    for kind in ("reward", "metrics"):
        parts_of_kind = tree.pop(kind, None) or []
        parts = [parts_of_kind] if isinstance(parts_of_kind, Mapping) else parts_of_kind
        parts = [{"name": part} if isinstance(part, str) else dict(part) for part in parts]
        tree |= {f"{kind}.{part.pop('label', part['name'])}": part for part in parts}
    return flatten(tree)


def differences(run: RunSettings, expected: Mapping[str, Published]) -> dict[str, str]:
    """Where a run is not as published, by field."""
    resolved, lacking = with_labels(run.resolved()), {}
    for key, entry in expected.items():
        value = entry.value
        if isinstance(value, str):
            value = value.replace("{task}", run.task_name)
        if value == OPEN:
            continue
        if key not in resolved or resolved[key] != value:
            lacking[key] = f"{resolved.get(key, 'nothing')!r} for {value!r}, by {entry.place}"
    return lacking


@every
def test_every_field_is_as_published(name: str) -> None:
    assert differences(run_of(name), published(name)) == {}


@every
def test_an_experiment_says_nothing_that_the_table_does_not(name: str) -> None:
    """So that a value that nobody published has to be put there, with its reason."""
    written = with_labels(OmegaConf.to_container(compose.experiment(name), resolve=False))  # type: ignore[arg-type]
    groups = {key for key in written if key.startswith(("algorithm.name", "cluster"))}
    assert set(written) - groups - set(published(name)) == set()


@every
def test_dropout_is_on_in_lolrl_and_off_in_openrl(name: str) -> None:
    run = run_of(name)
    assert run.model.drops_out(run.algorithm) is (EXPERIMENTS[name] == "lolrl")


@pytest.mark.parametrize("name", ["atomic_a_lol", "helpful_harmless_dpo", "wow_r_lol", "daily_dialog_openrl"])
def test_a_wrong_value_of_any_field_is_found(name: str) -> None:
    run, expected = run_of(name), published(name)
    for key, entry in expected.items():
        if entry.value != OPEN:
            wrong = {**expected, key: Published("another", entry.place)}
            assert set(differences(run, wrong)) == {key}


@every
def test_each_value_says_where_it_is_published(name: str) -> None:
    assert all(len(entry.place) > 2 for entry in published(name).values())


def test_every_section_is_of_an_experiment() -> None:
    for source in set(EXPERIMENTS.values()):
        names = [name for name, of in EXPERIMENTS.items() if of == source]
        for section in sections(source):
            assert any(fnmatchcase(name, section["experiments"]) for name in names), section["experiments"]


def test_every_option_that_the_pages_name_is_there() -> None:
    known = {"data.value", *(f"value.{name}" for name in ValueStage.model_fields)}
    for name in EXPERIMENTS:
        known |= set(with_labels(run_of(name).resolved()))
    for page in ("from-lolrl.md", "from-openrl.md"):
        text = (FOLDER.parents[1] / "docs" / page).read_text()
        words = " ".join(re.findall(r"`([^`\n]+)`", text)).split()
        groups = r"(algorithm|rollout|model|learner|data|evaluation|task|value)\.\w"
        named = {word.strip("'").partition("=")[0] for word in words if re.match(groups, word.strip("'"))}
        assert len(named) > 20
        assert named - known == set()
