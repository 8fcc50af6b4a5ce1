"""Every shipped experiment does an iteration: its own algorithm, reward and metrics, the rest stand-ins.

The model is tiny, of the same family; the data are a few rows with the data set's columns; graders that need
a model of the hub, Java or data that is not there are a stand-in. Options and wiring are the experiment's.
"""

import json
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from contracts.components import find
from contracts.errors import InputError
from reward_servers.graders import METRICS, REWARDS
from reward_servers.requirements import check_requirements
from services.config import compose
from tests.local_run import train_here
from tests.models import make_tiny_model
from tests.stand_ins import write_data
from tests.test_experiments import FROM_DATA, OURS, SHIPPED

OF_MODELS = (
    *("learned_reward", "intent_accuracy", "preference_model", "bert_score", "bleurt"),
    *("summaCZS", "summaCConv"),
)
FAMILIES = {"t5": "t5", "unifiedqa": "t5", "bart": "bart", "blenderbot": "bart", "gpt2": "gpt2"}
WINDOW = 1024  # as GPT-2's: perplexity goes over it in strides of 512
TINY = (
    "model.tokenizer=null",
    "iterations=1",
    "save_every=0",
    "tracking.enabled=false",
    "rollout.engine=transformers",
    "rollout.prompts_per_iteration=2",
    "rollout.max_tokens=4",
    "rollout.min_tokens=2",
    "rollout.max_prompt_tokens=64",
    "evaluation.num_prompts=2",
    "evaluation.max_tokens=4",
    "evaluation.min_tokens=1",
)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        family: make_tiny_model(folder / family, architecture=family, window=WINDOW)  # type: ignore[arg-type]
        for family in sorted(set(FAMILIES.values()))
    }


@pytest.fixture(autouse=True)
def _stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.terminal.interrupts.signal.signal", lambda number, handler: None)
    for kind, table in (("reward", REWARDS), ("metric", METRICS)):
        for name in table:
            if name in OF_MODELS or not is_complete(kind, name, table):
                monkeypatch.setitem(table, name, "tests.stand_ins:Judge")


def is_complete(kind: str, name: str, table: dict[str, str]) -> bool:
    try:
        check_requirements(find(kind, name, table), where=name)
    except InputError:
        return False
    return True


def family_of(name: str) -> str:
    """By the model's name; where the experiment leaves it open, by its task."""
    path = OmegaConf.to_container(compose.experiment(name))["model"]["path"]  # type: ignore[call-overload,index]
    if path == "???":
        return "gpt2" if name.startswith("crd3") else "t5"
    return next(family for part, family in FAMILIES.items() if part in path)


def is_long(name: str) -> bool:
    """Leave the variants of a task to the long tests: they differ from its PPO by an algorithm or a model."""
    return not name.endswith("_ppo")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.long] * is_long(name))
        for name in SHIPPED
        if name not in {*OURS, *FROM_DATA, "helpful_harmless_ppo"}  # its data are pairs of dialogues
    ],
)
def test_an_experiment_does_an_iteration(name: str, models: dict[str, Path], tmp_path: Path) -> None:
    chosen = [f"experiment={name}", f"output_dir='{tmp_path}'", "run_name=run"]
    chosen.append(f"model.path='{models[family_of(name)]}'")
    if "reward.model" in OmegaConf.missing_keys(compose.experiment(name)):
        chosen.append("reward.model=given")
    task = compose.compose(chosen)["task"]["name"]
    data = write_data(tmp_path / "data", task)
    run = compose.run_settings([*chosen, *TINY, *([f"task.data_files='{data}'"] if data else [])])

    folder = train_here(run)

    (row,) = folder.rollout_info()
    assert row["rollouts/trained"] >= 2
    assert (folder.model / "config.json").exists()
    for split in ("validation", "test"):
        evaluated = folder.evaluations(split)
        assert [evaluation["epoch"] for evaluation in evaluated] == [0, 1]
        assert len(evaluated[-1]["metrics"]) > 3
        json.dumps(evaluated, allow_nan=False)
