"""The experiments that ship: each composes and types; each that RL4LMs has, too, is what an import gives."""

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf

from contracts.components import find
from reward_servers.graders import METRICS, REWARDS
from reward_servers.settings import Part
from services.config import compose
from services.config.settings import RunSettings
from services.data.tasks import TASKS
from services.studies.benchmarks.offline import OFFLINE
from services.studies.rl4lms.experiment import read_configuration, to_yaml
from tests.services.rl4lms_compare import compare
from tests.services.rl4lms_table import FOLDER, configurations, read

GIVEN = {"model.path": "some/model", "reward.model": "some/judge"}  # where an experiment says ???
# Nothing of RL4LMs' shipped configurations.
OURS = ("demo", "demo_instruct", "imdb_gpt2", "stories_sentiment")
KINDS = ("supervised", "ppo", "nlpo", "ppo_on_supervised", "nlpo_on_supervised")
# Tasks that RL4LMs has no data for.
SYNTHESIZED = ("dummy", "increasing_numbers", "everyday_questions", "dates", "episodes", "textworld")
OF_ONES_OWN = ("prompts", "mixture", *SYNTHESIZED)
OF_LOLRL = ("helpful_harmless", "atomic", "reddit_comments", "wow", "faithdial", "faithdial_wow")
OF_PROBLEMS = ("gsm8k", "math", "reasoning_gym")
OF_OTHERS = (*OF_ONES_OWN, *OF_LOLRL, *OF_PROBLEMS)
FROM_DATA = {f"{task}_{algorithm}" for task in OF_LOLRL for algorithm in OFFLINE.algorithms}
# Options that experiments of learning from data leave open, by task.
CORPUS = f"reward.tfidf_diversity.corpus='{__file__}'"
OPEN = {
    "helpful_harmless": ("model.path=some/model", "reward.model=some/judge"),
    "atomic": ("model.path=some/model", "reward.model=some/judge"),
    "reddit_comments": ("model.path=some/model", "reward.safe.model=some/judge", CORPUS),
    **{task: ("model.path=some/model", CORPUS) for task in ("wow", "faithdial", "faithdial_wow")},
}
FOLDERS = {
    "imdb": "imdb_text_continuation/gpt2",
    "commongen": "common_gen/t5",
    "cnn_daily_mail": "summarization/t5",
    "totto": "totto/t5",
    "narrative_qa": "narrative_qa/t5",
    "iwslt2017_en_de": "iwslt2017/t5",
    "daily_dialog": "dialog/gpt2",
}
NUMBERS = "synthetic_generate_increasing_numbers"
SYNTHETIC = {
    "imdb_a2c": "imdb_text_continuation/gpt2_a2c",
    "dates_ppo": "synthetic_generate_dates/gpt2_ppo",
    **{f"increasing_numbers_{kind}": f"{NUMBERS}/gpt2_{kind}" for kind in ("ppo", "nlpo", "a2c", "trpo")},
    **{f"increasing_numbers_{kind}": f"{NUMBERS}/{kind}" for kind in ("t5_ppo", "t5_nlpo", "bart_ppo")},
    "increasing_numbers_blenderbot_ppo": f"{NUMBERS}/blendorbot_ppo",
}
PUBLISHED = {
    **{f"{task}_{kind}": f"{folder}_{kind}" for task, folder in FOLDERS.items() for kind in KINDS},
    **SYNTHETIC,
}
PUBLISHED_HERE = [name for name, source in PUBLISHED.items() if source in configurations()]
SHIPPED = compose.choices_of("experiment")


@cache
def run_of(name: str, *overrides: str) -> RunSettings:
    if name in FROM_DATA:
        return compose.run_settings([f"experiment={name}", *left_open(name), *overrides])
    is_open = OmegaConf.missing_keys(compose.experiment(name))
    filled = [f"{key}={value}" for key, value in GIVEN.items() if key in is_open]
    return compose.run_settings([f"experiment={name}", *filled, *overrides])


def left_open(name: str) -> list[str]:
    """Overrides that an experiment on data needs."""
    tree = compose.experiment(name)
    open_keys = OPEN[tree.task.name]
    has_model = not OmegaConf.is_missing(tree.model, "path")
    return [option for option in open_keys if not (has_model and option.startswith("model.path"))]


# Those that learn from data are in test_experiments_offline.py.
@pytest.mark.parametrize("name", [name for name in SHIPPED if name not in FROM_DATA])
def test_every_experiment_is_a_valid_run(name: str) -> None:
    run = run_of(name)
    assert isinstance(run, RunSettings)
    assert run.run_name.endswith(f"seed{run.seed}")


@pytest.mark.parametrize("name", ["demo", "imdb_ppo", "daily_dialog_openrl"])
def test_a_runs_name_has_its_seed(name: str) -> None:
    assert run_of(name, "seed=7").run_name.endswith("seed7")


def test_every_task_of_rl4lms_has_all_five() -> None:
    wanted = {f"{task}_{kind}" for task in TASKS if task not in OF_OTHERS for kind in KINDS}
    assert wanted - set(SHIPPED) == set()


@pytest.mark.parametrize("task", [task for task in TASKS if task not in OF_OTHERS])
@pytest.mark.parametrize("kind", KINDS)
def test_an_experiment_does_what_its_name_says(task: str, kind: str) -> None:
    run = run_of(f"{task}_{kind}")
    # RL4LMs' supervised model of reviews learns from halves of reviews, which are another pool.
    file_task = "imdb_seq2seq" if (task, kind) == ("imdb", "supervised") else task
    assert (run.task_name, run.algorithm_name) == (file_task, kind.partition("_")[0])


def test_no_two_experiments_share_a_folder() -> None:
    names = [run_of(name).run_name for name in SHIPPED if name not in {*OURS, *FROM_DATA}]
    assert len(names) == len(set(names))


def test_all_of_rl4lms_configurations_ship() -> None:
    there = {name for name in PUBLISHED.values() if name in configurations()}
    assert there == set(configurations())


@pytest.mark.parametrize("name", PUBLISHED_HERE)
def test_an_import_is_the_shipped_experiment(name: str) -> None:
    assert as_data(imported_run(name, configurations()[PUBLISHED[name]])) == as_data(run_of(name))


@pytest.mark.parametrize("name", PUBLISHED_HERE)
def test_an_experiment_has_every_field_of_its_file(name: str) -> None:
    comparison = compare(PUBLISHED[name], configurations()[PUBLISHED[name]], run_of(name))
    assert comparison.different == []
    assert comparison.left == set(), "a key of the file that nothing is compared with"


@pytest.mark.skipif(not FOLDER.is_dir(), reason="RL4LMs' own files are not at hand")
def test_the_table_is_what_the_files_say() -> None:
    assert read(FOLDER) == configurations()


def imported_run(name: str, says: Mapping[str, Any]) -> RunSettings:
    """The run that an import of this file gives, under the shipped experiment's name."""
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        conf, file = Path(folder), Path(folder) / "file.yml"
        file.write_text(yaml.safe_dump(says, sort_keys=False))
        text = to_yaml(read_configuration(file), "imported")
        for part in compose.CONF.iterdir():
            if part.name != "experiment":
                (conf / part.name).symlink_to(part)
        (conf / "experiment").mkdir()
        filled = text.replace("model: ???", f"model: {GIVEN['reward.model']}")
        (conf / "experiment" / f"{name}.yaml").write_text(filled)
        patch.setattr(compose, "CONF", conf)
        return run_of(name)


def as_data(run: RunSettings) -> dict[str, Any]:
    """All of it, the graders' defaults spelled out."""
    data = {key: value for key, value in run.resolved().items() if key != "run_name"}
    tables = {"reward": REWARDS, "metrics": METRICS}
    spelled_out = {
        key: [
            {**part, **find(key, part["name"], table)(**options_of(part)).model_dump()} for part in data[key]
        ]
        for key, table in tables.items()
    }
    return data | spelled_out


def options_of(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key not in Part.model_fields}
